package store

// death is a new row of the dead letters.
type death struct {
	id, message, recipient, channel, at int64
	attempts                            int
	reason                              string
	told                                bool
}

// give gives a delivery up: it becomes a dead letter of its recipient.
func (t *txn) give(e *entry, reason string) {
	t.end(e)
	e.state, e.ended, e.nonce = dead, t.ms(), 0
	t.touch(e)
	t.charge(e.sender, -e.weight())
	t.bury(e.sender, e.queue.recipient, e.weight())
	t.lastID.dead++
	d := &death{
		id: t.lastID.dead, message: e.id, recipient: e.queue.recipient, channel: e.channel.id, at: t.ms(), attempts: e.attempts, reason: reason,
		told: t.names[e.sender] == System,
	}
	t.deaths = append(t.deaths, d)
	e.queue.dead++
	if e.attempts == 0 {
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
