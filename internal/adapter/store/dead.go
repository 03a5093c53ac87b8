package store

// death is a new row of the dead letters.
type death struct {
	id, message, recipient, channel, at int64
	attempts                            int
	reason                              string
	told                                bool
	evicted                             bool // nobody failed at it: it had to go
}

// give gives a delivery up: it becomes a dead letter of its recipient. evicted: it
// has, or found, no place in the queue. It may have been leased before, but whether
// the recipient ever had it nobody knows, so it is one that was missed.
func (t *txn) give(e *entry, evicted bool, reason string) {
	t.end(e)
	e.state, e.ended, e.nonce = dead, t.ms(), 0
	t.touch(e)
	t.charge(e.sender, -e.weight())
	t.bury(e.sender, e.queue.recipient, e.weight())
	t.lastID.dead++
	d := &death{
		id: t.lastID.dead, message: e.id, recipient: e.queue.recipient, channel: e.channel.id, at: t.ms(), attempts: e.attempts, reason: reason,
		told: t.names[e.sender] == System, evicted: evicted,
	}
	t.deaths = append(t.deaths, d)
	e.queue.dead++
	if evicted {
		l := e.queue.lane(e.channel)
		l.missed = max(l.missed, e.seq)
	}
	t.counts.Dead++
	if d.told { // a notice: nobody else is told of it
		t.log.Warn("notice became a dead letter", "dead_letter", d.id, "recipient", e.queue.name, "channel_sequence_id", e.seq, "reason", reason)
		return
	}
	t.tell(e, d)
}
