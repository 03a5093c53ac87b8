package store

import (
	"encoding/json"
	"errors"
	"strings"
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

	late int64 // its row, when it never was a message
}

// Notice is the body of delivery_failed and dead_lettered.
type Notice struct {
	Failures []Failure `json:"failures"`
	Waiting  int       `json:"waiting,omitempty"` // further failures that the next notice tells
	Omitted  int       `json:"omitted,omitempty"` // late refusals that no notice names: there were too many
}

// A sender's first failure is told at once, the next together: a flood that
// fills the dead letters must not fill the queues of those that it is told to.
const (
	noticeEvery = time.Second
	noticeMost  = 100
	// noticeBytes is where the failures of a notice end: far below MaxBody, and
	// what names a draft of the wrong form is its sender's own choice.
	noticeBytes = 256 << 10
	// lateMost is how many late refusals of a sender wait for a notice, as many as
	// its outbox keeps; no quota bounds them. More are counted only.
	lateMost = 1000
)

// untold is what a sender does not know yet.
type untold struct {
	failures []Failure
	late     int           // of failures, those that are no dead letters
	omitted  int           // late refusals beyond lateMost
	next     time.Duration // not before, on the monotonic clock
}

// owed is what a sender is to be told, a new one when there is nothing yet.
func (c *core) owed(sender int64) *untold {
	u := c.untold[sender]
	if u == nil {
		u = &untold{}
		c.untold[sender] = u
	}
	return u
}

func (t *txn) tell(e *entry, d *death) {
	u := t.owed(e.sender)
	u.failures = append(u.failures, Failure{
		DeadLetter: d.id, From: t.names[e.sender], Recipient: e.queue.name, Channel: e.channel.name, Sequence: e.seq,
		IdempotencyKey: e.key.String(), Type: e.typ, Attempts: e.attempts, Reason: d.reason,
	})
}

// refusedLate has the sender told of a draft that was refused for good after its
// outbox had accepted it. The sender finds it in its outbox as well. A draft whose
// form is wrong may hold anything, so what is told of it is cut.
func (t *txn) refusedLate(from string, d *Draft, err error) {
	var r *deny.Reason
	if !errors.As(err, &r) || r.RetryAfter > 0 {
		return
	}
	sender := t.agent(from)
	u := t.owed(sender)
	if u.late == lateMost {
		u.omitted++
		return
	}
	to := clip(d.To, maxName)
	channel := clip(d.Channel, maxName)
	if to != "" {
		channel = Direct(from, to)
	}
	t.lastID.late++
	f := Failure{
		From: from, Recipient: to, Channel: channel, IdempotencyKey: clip(d.IdempotencyKey, len(key{}.String())),
		Type: Type(clip(string(d.Type), maxName)), Reason: clip(r.Error(), maxReason), late: t.lastID.late,
	}
	u.late++
	u.failures = append(u.failures, f)
	t.exec("INSERT INTO late (id, sender, recipient, channel, key, type, reason) VALUES (?, ?, ?, ?, ?, ?, ?)",
		f.late, sender, f.Recipient, f.Channel, f.IdempotencyKey, string(f.Type), f.Reason)
}

// clip cuts text to n bytes of valid UTF-8, which it copies: what it was cut from is let go.
func clip(s string, n int) string { return strings.Clone(strings.ToValidUTF8(s[:min(len(s), n)], "")) }

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
		n, err := u.fit()
		told := u.failures[:n]
		notice := Notice{Failures: told, Waiting: len(u.failures) - n, Omitted: u.omitted}
		body, unable := json.Marshal(notice)
		if err = errors.Join(err, unable); err != nil {
			t.fail(err)
			return
		}
		u.failures, u.omitted = u.failures[n:], 0
		u.next = t.mono + noticeEvery
		t.log.Warn("messages were given up", "sender", t.names[sender], "count", n, "waiting", notice.Waiting, "omitted", notice.Omitted,
			"first", told[0].DeadLetter, "recipient", told[0].Recipient, "reason", told[0].Reason)
		t.notice(t.names[sender], DeliveryFailed, body)
		t.notice(t.policy.Orchestrator, DeadLettered, body)
		t.flush() // the dead letters have to be there to be marked
		for _, f := range told {
			if f.late != 0 {
				u.late--
				t.exec("DELETE FROM late WHERE id = ?", f.late)
				continue
			}
			t.exec("UPDATE dead SET told = 1 WHERE id = ?", f.DeadLetter)
		}
	}
}

// fit is how many failures the next notice tells, at least one.
func (u *untold) fit() (n int, err error) {
	for size := 0; n < min(len(u.failures), noticeMost); n++ {
		one, err := json.Marshal(&u.failures[n])
		if err != nil {
			return 0, err
		}
		if size += len(one) + 1; size > noticeBytes && n > 0 {
			break
		}
	}
	return n, nil
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
