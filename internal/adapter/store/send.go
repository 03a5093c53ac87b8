package store

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"bulkhead/internal/adapter/allowed"
	"bulkhead/internal/deny"
	"bulkhead/internal/jsonscan"
)

// Send implements [Service].
func (a *Adapter) Send(ctx context.Context, from string, drafts []Draft) []SendResult {
	return a.send(ctx, newSending(from, drafts, false))
}

// Submit is Send for a caller that does not wait: done is called once, with
// what Send returns. It is called by who has the turn to write, and nobody else
// writes meanwhile, so it must not block. What was submitted is done after the
// next Commit at the latest.
//
// The bodies were read as JSON, as protocol.ReadSend does; they are not looked at again.
// late drafts were accepted by an outbox before: the sender went on, so of what
// is refused for good it gets a notice.
func (a *Adapter) Submit(from string, drafts []Draft, late bool, done func([]SendResult)) {
	s := newSending(from, drafts, true)
	if s.late = late; len(s.good) == 0 && !late {
		done(s.results)
		return
	}
	o := s.op()
	o.done = func(err error) { done(s.answer(err)) }
	if err := a.intake.leave(o); err != nil {
		done(s.answer(err))
	}
}

// OperatorSend implements [Operator].
func (a *Adapter) OperatorSend(ctx context.Context, d Draft) SendResult {
	return a.above(ctx, OperatorName, d)
}

// Alert sends as the adapter itself, to any agent.
func (a *Adapter) Alert(ctx context.Context, d Draft) SendResult { return a.above(ctx, AlertName, d) }

// above sends for somebody whom no policy names.
func (a *Adapter) above(ctx context.Context, from string, d Draft) SendResult {
	s := newSending(from, []Draft{d}, false)
	s.operator = true
	return a.send(ctx, s)[0]
}

func (a *Adapter) send(ctx context.Context, s *sending) []SendResult {
	if len(s.good) == 0 {
		return s.results
	}
	return s.answer(a.do(ctx, s.op()))
}

// sending is a call of Send.
type sending struct {
	from     string
	operator bool // no policy binds it
	late     bool // see Submit
	drafts   []Draft
	results  []SendResult
	good     []checked // the drafts whose form is right
	place    []int     // of each in results
	taken    []SendResult
	size     int
}

func newSending(from string, drafts []Draft, read bool) *sending {
	s := &sending{from: from, drafts: drafts, results: make([]SendResult, len(drafts))}
	if len(drafts) > MaxBatch {
		return s.fail(invalid("a batch from "+from, []deny.Field{{Name: "messages", Why: fmt.Sprintf("%d drafts, the most is %d", len(drafts), MaxBatch)}}))
	}
	s.good, s.place = make([]checked, 0, len(drafts)), make([]int, 0, len(drafts))
	for i := range drafts {
		c, r := check(from, &drafts[i], read)
		if r != nil {
			s.results[i].Err = r
			continue
		}
		s.good, s.place = append(s.good, c), append(s.place, i)
		s.size += len(c.Body)
	}
	s.taken = make([]SendResult, len(s.good))
	return s
}

func (s *sending) op() *op {
	lane := s.from
	if s.operator {
		lane = ""
	}
	cost := len(s.good)
	if s.late {
		cost = len(s.drafts) // each is told of
	}
	return &op{agent: lane, cost: cost, bytes: s.size, run: func(t *txn) {
		for i := range s.good {
			s.taken[i] = t.send(s.from, &s.good[i], s.operator)
			if s.late {
				t.refusedLate(s.from, &s.good[i].Draft, s.taken[i].Err)
			}
		}
		for i := range s.drafts {
			if s.late {
				t.refusedLate(s.from, &s.drafts[i], s.results[i].Err) // those whose form is wrong
			}
		}
	}}
}

// answer gives the results. With an error taken is still the writer's.
func (s *sending) answer(err error) []SendResult {
	if err != nil {
		return s.fail(err).results
	}
	for i, at := range s.place {
		s.results[at] = s.taken[i]
	}
	return s.results
}

// fail gives every draft the same answer.
func (s *sending) fail(err error) *sending {
	for i := range s.results {
		s.results[i] = SendResult{Err: err}
	}
	return s
}

// send takes one draft.
func (t *txn) send(from string, d *checked, operator bool) SendResult {
	w, refusal := t.way(from, d, operator)
	if refusal != nil {
		// What was taken is answered as it was: the answer may have been lost, and the
		// policy changed since.
		if sender, known := t.agents[from]; known {
			if r, found := t.duplicate(sender, channelOf(from, d), d); found && r.Err == nil {
				t.counts.Duplicates++
				return r
			}
		}
		if !operator {
			t.counts.Refused++
		}
		return SendResult{Err: refusal}
	}
	name, sender := w.channel, w.sender
	if r, found := t.duplicate(sender, name, d); found {
		if r.Err != nil {
			t.counts.Refused++
		} else {
			t.counts.Duplicates++
		}
		return r
	}
	ch := t.channels[name]
	if d.ReplyTo > 0 && (ch == nil || d.ReplyTo > ch.last) {
		return SendResult{Err: invalid(allowed.What(from, &d.Draft), []deny.Field{{Name: "reply_to_sequence_id", Why: fmt.Sprintf("%s has no message %d", name, d.ReplyTo)}})}
	}
	m := &record{
		sender: sender, key: d.key, typ: d.Type, rank: d.rank, reply: d.ReplyTo,
		size: int64(len(d.Body)), body: d.Body, critical: allowed.Critical(d.Type),
	}
	if d.ReplyTo > 0 {
		m.root = t.root(ch, d.ReplyTo)
	}
	if r := t.post(m, name, from, w.to, d.To != ""); r != nil {
		t.counts.Refused++
		r.What = allowed.What(from, &d.Draft)
		return SendResult{Err: r}
	}
	t.counts.Sent++
	return SendResult{Channel: name, Sequence: m.seq, Time: time.Unix(0, m.time).UTC()}
}

// ends are who writes, and to whom or to which channel.
type ends struct{ from, to, channel string }

// way is what a message needs to know of its way, found once.
type way struct {
	channel string // its name
	sender  int64
	to      []*queue
}

// way gives the way of a draft, or says why it has none. What is kept is for types
// that take no permission of their own.
func (t *txn) way(from string, d *checked, operator bool) (*way, *deny.Reason) {
	e := ends{from, d.To, d.Channel}
	if w := t.ways[e]; w != nil && !operator && !allowed.Critical(d.Type) {
		return w, nil
	}
	if operator {
		if r := allowed.Exists(&t.policy, from, &d.Draft); r != nil {
			return nil, r
		}
	} else if r := allowed.Refusal(&t.policy, from, &d.Draft); r != nil {
		return nil, t.changes[place{d.Channel, from}].explain(r)
	}
	w := &way{channel: channelOf(from, d), sender: t.agent(from), to: t.recipients(from, d)}
	if !operator && !allowed.Critical(d.Type) {
		t.ways[e] = w
	}
	return w, nil
}

// channelOf is the channel that a draft goes to.
func channelOf(from string, d *checked) string {
	if d.To != "" {
		return Direct(from, d.To)
	}
	return d.Channel
}

// recipients are the members of the channel at this moment.
func (t *txn) recipients(from string, d *checked) []*queue {
	if d.To != "" {
		return []*queue{t.queue(d.To)}
	}
	var out []*queue
	for _, member := range t.policy.Channels[d.Channel] {
		if member != from {
			out = append(out, t.queue(member))
		}
	}
	return out
}

// duplicate finds a message that was taken under the same key before, in this
// transaction or earlier.
func (t *txn) duplicate(sender int64, channel string, d *checked) (SendResult, bool) {
	m := t.keys[senderKey{sender, d.key}]
	if m == nil {
		t.fail(t.seen.find(t.db, senderKey{sender, d.key}, func(row []driver.Value) error {
			m = &record{
				channel: t.channels[text(row[0])], seq: sequence(row[1]), time: integer(row[2]),
				typ: Type(text(row[3])), rank: integer(row[4]), reply: sequence(row[5]), body: blob(row[6]),
			}
			return nil
		}))
		if m == nil || m.channel == nil {
			return SendResult{}, false
		}
	}
	if m.channel.name != channel || m.typ != d.Type || m.rank != d.rank || m.reply != d.ReplyTo || !jsonscan.Same(m.body, d.Body) {
		return SendResult{Err: &deny.Reason{
			Layer: deny.LayerMessages, Code: deny.MessageDuplicateKey, What: fmt.Sprintf("idempotency_key %s to %s", d.key, channel),
			Why:  fmt.Sprintf("this key was taken for message %d of %s, which has another content", m.seq, m.channel.name),
			Mend: "make a new UUID for every new message",
		}}, true
	}
	return SendResult{Channel: m.channel.name, Sequence: m.seq, Time: time.Unix(0, m.time).UTC(), Duplicate: true}, true
}

// root is the sequence that the thread of a message began with.
func (t *txn) root(ch *channel, seq uint64) uint64 {
	for _, m := range t.messages {
		if m.channel == ch && m.seq == seq {
			if m.root > 0 {
				return m.root
			}
			return seq
		}
	}
	root, err := t.db.integer("SELECT root FROM message WHERE "+atPlace, ch.id, number(seq))
	t.fail(err)
	if root > 0 {
		return bits(root)
	}
	return seq
}

func (t *txn) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}
