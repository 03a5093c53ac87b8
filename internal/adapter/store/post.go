package store

import (
	"fmt"
	"strings"

	"bulkhead/internal/deny"
)

// party tells whether a channel is a direct one of agent.
func party(channel, agent string) bool { return other(channel, agent) != "" }

// other is the second of the two agents of a direct channel.
func other(channel, agent string) string {
	pair, ok := strings.CutPrefix(channel, "@")
	if !ok {
		return ""
	}
	a, b, _ := strings.Cut(pair, "+")
	switch agent {
	case a:
		return b
	case b:
		return a
	}
	return ""
}

// post gives a message its place in its channel and queues it for every
// recipient, or refuses it and changes nothing.
func (t *txn) post(m *record, channel, from string, to []*queue, direct bool) *deny.Reason {
	// All rooms are looked at before any is made: a refusal changes nothing.
	victims := make([]*entry, len(to))
	closed := make([]string, len(to)) // why it finds no place
	limit := t.quota(from)
	open := 0
	for i, q := range to {
		if limit > 0 && !m.critical && t.greedy(m.sender, q, limit) {
			closed[i] = fmt.Sprintf("the queue and the dead letters of %s hold what they may of the quota of %s (%d)", q.name, from, limit)
		} else {
			open++
		}
	}
	switch {
	case limit == 0 || len(to) == 0:
	case open == 0:
		return &deny.Reason{
			Layer: deny.LayerMessages, Code: deny.MessageQuota, Why: closed[0], RetryAfter: retryQuota,
			Mend: "wait until " + to[0].name + " has acknowledged some; an operator can drop its dead letters, or raise agents." + from + ".messages.maxBytes",
		}
	default:
		if used := t.held(m.sender).charged(limit); used+m.weight()*int64(open) > limit {
			return &deny.Reason{
				Layer: deny.LayerMessages, Code: deny.MessageQuota,
				Why:  fmt.Sprintf("%d bytes of %s are in queues and dead letters already, the most is %d", used, from, limit),
				Mend: "wait until messages are acknowledged; an operator can drop dead letters, or raise agents." + from + ".messages.maxBytes", RetryAfter: retryQuota,
			}
		}
	}
	for i, q := range to {
		if closed[i] != "" {
			continue
		}
		var ok bool
		if victims[i], ok = q.room(m); ok {
			continue
		}
		// One full member of a channel holds up nobody, except that nothing critical is given up.
		if direct || m.critical {
			return &deny.Reason{
				Layer: deny.LayerMessages, Code: deny.MessageQueueFull,
				Why:  fmt.Sprintf("the queue of %s holds %d messages, and none of them may be given up for this one", q.name, len(q.entries)),
				Mend: "wait until it has acknowledged some", RetryAfter: retryFull,
			}
		}
		closed[i] = fmt.Sprintf("the queue of %s was full (%d), and none in it may be given up for another", q.name, QueueSize)
	}
	t.lastID.message++
	ch := t.channel(channel)
	m.id, m.channel, m.seq, m.time = t.lastID.message, ch, ch.last+1, max(t.wall.UnixNano(), ch.time)
	ch.last, ch.time = m.seq, m.time
	if ch.last-ch.written >= channelStride {
		t.touched[ch] = true
	}
	if piece := m.id >> placeBits; piece != ch.piece {
		ch.piece = piece
		t.places = append(t.places, m)
	}
	t.messages = append(t.messages, m)
	t.keys[senderKey{m.sender, m.key}] = m
	t.seen.add(m.id, senderKey{m.sender, m.key})
	if len(to) > 0 {
		t.cached += m.size
	}
	m.refs = len(to)
	for i, q := range to {
		if victims[i] != nil {
			t.give(victims[i], true, fmt.Sprintf("evicted: the queue of %s was full (%d), and %s had the most messages in it", q.name, QueueSize, t.names[victims[i].sender]))
			t.counts.Evicted++
		}
		e := &entry{record: m, queue: q, heap: -1, fresh: true}
		t.charge(m.sender, m.weight())
		q.add(e)
		if closed[i] != "" {
			t.give(e, true, closed[i])
			t.counts.Evicted++
			continue
		}
		t.touch(e)
	}
	return nil
}

// room says what has to go so that m finds a place: nothing, or one entry.
// It is not ok when there is none for this sender now.
//
// The largest sender pays, counting m as its sender's: a flood evicts itself.
// An ordinary message never evicts one of a sender that has fewer there.
func (q *queue) room(m *record) (victim *entry, ok bool) {
	if len(q.entries) < QueueSize {
		return nil, true
	}
	size := func(sender int64) (n int) {
		if s := q.senders[sender]; s != nil {
			n = s.count
		}
		if sender == m.sender {
			n++
		}
		return n
	}
	var payer int64
	most := 0
	for sender, s := range q.senders {
		if n := size(sender); s.evictable > 0 && (n > most || n == most && s.bytes > q.senders[payer].bytes) {
			payer, most = sender, n
		}
	}
	if most == 0 || !m.critical && most < size(m.sender) {
		return nil, false
	}
	// The oldest that nobody works on; else the oldest.
	for _, e := range q.entries {
		if e.sender != payer || e.critical {
			continue
		}
		if victim == nil || (e.state == leased) != (victim.state == leased) && victim.state == leased ||
			(e.state == leased) == (victim.state == leased) && e.id < victim.id {
			victim = e
		}
	}
	return victim, true
}
