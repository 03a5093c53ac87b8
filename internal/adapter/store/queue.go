package store

import (
	"cmp"
	"slices"
	"time"
)

// overhead is what a message costs beside its body, for quotas.
const overhead = 256

// patience is how many messages of higher priority a channel's head lets pass
// before it is served: the bound of what priorities can delay.
const patience = 16

// record is a message as the writer keeps it. What is delivered to several
// recipients is one record.
type record struct {
	id       int64
	channel  *channel
	seq      uint64
	time     int64 // ns
	sender   int64
	key      key
	typ      Type
	rank     int64
	reply    uint64
	root     uint64
	size     int64  // of the body
	body     []byte // nil when it has to be read from the database
	critical bool
	refs     int // pending deliveries
}

func (r *record) weight() int64 { return r.size + overhead }

// channel is a sequence.
type channel struct {
	id      int64
	name    string
	last    uint64
	time    int64  // ns, of the last message
	row     bool   // it has a row in the database
	written uint64 // last as the row has it, which may be behind
	piece   int64  // of message_seq, that it has a row of place for
}

// placeBits is how many messages one piece of message_seq has.
const placeBits = 12

// channelStride is how many messages the row of a channel may be behind: its
// newest message has the same numbers, so not every send writes two rows. It
// is exact before that message is pruned.
const channelStride = 64

// entry is one pending delivery.
type entry struct {
	*record
	queue    *queue
	state    state
	attempts int
	nonce    int64         // of the lease; 0: none
	due      time.Duration // on the monotonic clock: the lease's end, or when it may be leased
	span     time.Duration // how far due was ahead when it was set
	reason   string        // of the last refusal
	heap     int           // place in the deadlines; -1: none
	dirty    bool          // to be written with this transaction
	fresh    bool          // it has no row yet
	ended    int64         // ms, with done and dead
}

// state of a delivery. The first three are all pending on disk.
type state uint8

const (
	ready   state = iota // may be leased
	leased               // somebody has it until due
	waiting              // for its retry at due
	done                 // acknowledged
	dead                 // given up
)

// queue is what one recipient has not acknowledged.
type queue struct {
	recipient int64
	name      string
	channels  map[int64]*lane
	entries   map[int64]*entry // by the message's id
	senders   map[int64]*share
	leased    int
	retrying  int
	bytes     int64
	dead      int
	tick      int64
}

// lane is one channel's part of a queue. Its first next entries are leased,
// entry next is not. Order is kept because only that one may be leased, and
// only by the Receive that has those before it: whoever else got it could be
// done with it before they come again.
type lane struct {
	channel *channel
	entries []*entry
	next    int
	holder  int64  // the Receive that has the leased ones
	served  int64  // tick of the last lease
	passed  int    // messages of higher priority that went before its head
	missed  uint64 // the last that found no place, see give
}

// share is one sender's part of a queue.
type share struct {
	count     int
	bytes     int64
	evictable int
}

func newQueue(recipient int64, name string) *queue {
	return &queue{recipient: recipient, name: name, channels: map[int64]*lane{}, entries: map[int64]*entry{}, senders: map[int64]*share{}}
}

// add puts an entry into its lane, by sequence but never before a leased one.
func (q *queue) add(e *entry) {
	l := q.lane(e.channel)
	at := len(l.entries)
	for at > l.next && l.entries[at-1].seq > e.seq {
		at--
	}
	l.entries = slices.Insert(l.entries, at, e)
	q.entries[e.id] = e
	s := q.senders[e.sender]
	if s == nil {
		s = &share{}
		q.senders[e.sender] = s
	}
	s.count++
	s.bytes += e.weight()
	if !e.critical {
		s.evictable++
	}
	q.bytes += e.weight()
	q.count(e.state, 1)
}

// lane gives a channel's.
func (q *queue) lane(ch *channel) *lane {
	l := q.channels[ch.id]
	if l == nil {
		l = &lane{channel: ch}
		q.channels[ch.id] = l
	}
	return l
}

// remove takes an entry out: it was acknowledged or is dead.
func (q *queue) remove(e *entry) {
	l := q.channels[e.channel.id]
	if i := slices.Index(l.entries, e); i >= 0 {
		if i == 0 {
			l.entries[0] = nil
			l.entries = l.entries[1:]
		} else {
			l.entries = slices.Delete(l.entries, i, i+1)
		}
		if i < l.next {
			l.next--
		} else if i == l.next {
			l.passed = 0
		}
	}
	delete(q.entries, e.id)
	s := q.senders[e.sender]
	s.count--
	s.bytes -= e.weight()
	if !e.critical {
		s.evictable--
	}
	if s.count == 0 {
		delete(q.senders, e.sender)
	}
	q.bytes -= e.weight()
	q.count(e.state, -1)
}

func (q *queue) count(s state, n int) {
	switch s {
	case leased:
		q.leased += n
	case waiting:
		q.retrying += n
	}
}

// set changes the state of an entry that stays in the queue.
func (q *queue) set(e *entry, s state) {
	q.count(e.state, -1)
	e.state = s
	q.count(s, 1)
}

// head is what may be leased next of a lane, or nil.
func (l *lane) head() *entry {
	if l.next < len(l.entries) && l.entries[l.next].state == ready {
		return l.entries[l.next]
	}
	return nil
}

// pick chooses what to deliver next: a channel that was passed over often
// enough, else the highest priority, else whose turn was longest ago.
func (q *queue) pick(w *waiter) *lane {
	var best *lane
	for _, l := range q.channels {
		if l.head() == nil || l.next > 0 && l.holder != w.id || w.Channel != "" && l.channel.name != w.Channel {
			continue
		}
		if best == nil || before(l, best) {
			best = l
		}
	}
	return best
}

func before(a, b *lane) bool {
	if x, y := a.passed >= patience, b.passed >= patience; x != y {
		return x
	}
	if x, y := a.head().rank, b.head().rank; x != y && a.passed < patience {
		return x > y
	}
	if a.served != b.served {
		return a.served < b.served
	}
	return a.head().id < b.head().id
}

// lease marks the head of l as leased.
func (q *queue) lease(l *lane, w *waiter) *entry {
	e := l.head()
	l.holder = w.id
	q.set(e, leased)
	q.tick++
	l.served, l.passed = q.tick, 0
	l.next++
	for _, o := range q.channels {
		if h := o.head(); o != l && o.next == 0 && h != nil && h.rank < e.rank {
			o.passed++
		}
	}
	return e
}

// back gives a leased entry back. Those of its lane that were leased after it
// are void: they come again after it, without having used up a try.
func (q *queue) back(e *entry, s state) (void []*entry) {
	l := q.channels[e.channel.id]
	i := slices.Index(l.entries[:l.next], e)
	void = slices.Clone(l.entries[i+1 : l.next])
	for _, o := range void {
		q.set(o, ready)
	}
	q.set(e, s)
	l.next = i
	// What was replayed from the dead letters may stand behind later ones.
	slices.SortStableFunc(l.entries[i:], func(a, b *entry) int { return cmp.Compare(a.seq, b.seq) })
	return void
}
