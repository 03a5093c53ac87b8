package store

// Parts of a sender's quota that one recipient may hold, so that nobody who
// refuses everything, or takes nothing, stops a sender towards everybody else:
// a quarter is left. Critical messages are bound by the whole quota alone, or such a
// member of a channel would keep them from all others.
const (
	queuedShare = 2 // half of it in the recipient's queue, and what is begun below it
	deadShare   = 4 // a quarter of it in the recipient's dead letters
)

// held is what of a sender is in queues and dead letters, in bytes.
type held struct {
	queued int64
	dead   map[int64]int64 // by recipient; nothing else is in it
}

// charged is what counts for a quota of limit bytes: of the dead letters of one
// recipient no more than its part.
func (h *held) charged(limit int64) int64 {
	n := h.queued
	for _, bytes := range h.dead {
		n += min(bytes, limit/deadShare)
	}
	return n
}

// held gives what is held of a sender.
func (c *core) held(sender int64) *held {
	h := c.usage[sender]
	if h == nil {
		h = &held{dead: map[int64]int64{}}
		c.usage[sender] = h
	}
	return h
}

// charge counts bytes that come into queues, or leave them.
func (c *core) charge(sender, bytes int64) { c.held(sender).queued += bytes }

// bury counts bytes that come to a recipient's dead letters, or leave them.
func (c *core) bury(sender, recipient, bytes int64) {
	h := c.held(sender)
	if h.dead[recipient] += bytes; h.dead[recipient] <= 0 {
		delete(h.dead, recipient)
	}
}

// greedy says that a recipient holds its parts of a sender's quota already.
func (c *core) greedy(sender int64, q *queue, limit int64) bool {
	if s := q.senders[sender]; s != nil && s.bytes >= limit/queuedShare {
		return true
	}
	return c.held(sender).dead[q.recipient] >= limit/deadShare
}
