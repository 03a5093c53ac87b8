package store

import (
	"encoding/json"
	"errors"
	"time"

	"bulkhead/internal/deny"
)

// Failure is one delivery that was given up, as notices tell it.
type Failure struct {
	DeadLetter     int64  `json:"dead_letter"` // 0: refused after an outbox had accepted it, so it never was a message
	From           string `json:"from"`
	Recipient      string `json:"recipient"`
	Channel        string `json:"channel"`
	Sequence       uint64 `json:"channel_sequence_id"`
	IdempotencyKey string `json:"idempotency_key"`
	Type           Type   `json:"type"`
	Attempts       int    `json:"attempts"`
	Reason         string `json:"reason"`
}

// Notice is the body of delivery_failed and dead_lettered.
type Notice struct {
	Failures []Failure `json:"failures"`
	Waiting  int       `json:"waiting,omitempty"` // further failures that the next notice tells
}

// A sender's first failure is told at once, the next together: a flood that
// fills the dead letters must not fill the queues of those that it is told to.
const (
	noticeEvery = time.Second
	noticeMost  = 100
)

// untold is what a sender does not know yet.
type untold struct {
	failures []Failure
	next     time.Duration // not before, on the monotonic clock
}

func (t *txn) tell(e *entry, d *death) {
	u := t.untold[e.sender]
	if u == nil {
		u = &untold{}
		t.untold[e.sender] = u
	}
	u.failures = append(u.failures, Failure{
		DeadLetter: d.id, From: t.names[e.sender], Recipient: e.queue.name, Channel: e.channel.name, Sequence: e.seq,
		IdempotencyKey: e.key.String(), Type: e.typ, Attempts: e.attempts, Reason: d.reason,
	})
}

// refusedLate has the sender told of a draft that was refused for good after its
// outbox had accepted it. The sender finds it in its outbox as well.
func (t *txn) refusedLate(from string, d *Draft, err error) {
	var r *deny.Reason
	if !errors.As(err, &r) || r.RetryAfter > 0 {
		return
	}
	sender, channel := t.agent(from), d.Channel
	if d.To != "" {
		channel = Direct(from, d.To)
	}
	u := t.untold[sender]
	if u == nil {
		u = &untold{}
		t.untold[sender] = u
	}
	u.failures = append(u.failures, Failure{From: from, Recipient: d.To, Channel: channel, IdempotencyKey: d.IdempotencyKey, Type: d.Type, Reason: r.Error()})
}

// notify sends the notices that are due: to the sender, and to the orchestrator.
func (t *txn) notify() {
	var due []int64
	for sender, u := range t.untold {
		switch {
		case u.next > t.mono:
		case len(u.failures) == 0:
			delete(t.untold, sender)
		default:
			due = append(due, sender)
		}
	}
	for _, sender := range due {
		u := t.untold[sender]
		n := min(len(u.failures), noticeMost)
		told := u.failures[:n]
		u.failures = u.failures[n:]
		u.next = t.mono + noticeEvery
		body, err := json.Marshal(Notice{Failures: told, Waiting: len(u.failures)})
		if err != nil {
			t.fail(err)
			return
		}
		t.log.Warn("messages were given up", "sender", t.names[sender], "count", n, "waiting", len(u.failures),
			"first", told[0].DeadLetter, "recipient", told[0].Recipient, "reason", told[0].Reason)
		t.notice(t.names[sender], DeliveryFailed, body)
		t.notice(t.policy.Orchestrator, DeadLettered, body)
		t.flush() // the dead letters have to be there to be marked
		for _, f := range told {
			t.exec("UPDATE dead SET told = 1 WHERE id = ?", f.DeadLetter)
		}
	}
}

// notice sends one, when there is such an agent. One that finds no place is a
// dead letter itself, for the operator.
func (t *txn) notice(to string, typ Type, body []byte) {
	if _, ok := t.policy.Agents[to]; !ok {
		return
	}
	m := &record{sender: t.agent(System), key: newKey(), typ: typ, rank: 1, size: int64(len(body)), body: body}
	if r := t.post(m, Direct(System, to), System, []*queue{t.queue(to)}, false); r != nil {
		t.log.Error("notice was not queued", "to", to, "type", string(typ), "reason", r.Error())
	}
}

// nextNotice is when notify has something to do; false: not before something happens.
func (c *core) nextNotice() (at time.Duration, ok bool) {
	for _, u := range c.untold {
		if len(u.failures) > 0 && (!ok || u.next < at) {
			at, ok = u.next, true
		}
	}
	return at, ok
}
