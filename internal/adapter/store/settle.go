package store

import (
	"cmp"
	"context"
	"database/sql/driver"
	"fmt"
	"slices"
	"time"

	"bulkhead/internal/deny"
)

// maxReason bounds the words of a refusal.
const maxReason = 1024

// Ack implements [Service].
func (a *Adapter) Ack(ctx context.Context, agent string, leases []string) []error {
	return a.settle(ctx, agent, len(leases), func(t *txn, i int) error {
		e, err := t.leased(agent, leases[i])
		if err == nil {
			t.acknowledge(e)
		}
		return err
	})
}

// Refuse implements [Service].
func (a *Adapter) Refuse(ctx context.Context, agent string, q []Refusal) []error {
	return a.settle(ctx, agent, len(q), func(t *txn, i int) error {
		if q[i].Delay < 0 || q[i].Delay > maxLease {
			return invalid("a refusal by "+agent, []deny.Field{{Name: "delay", Why: fmt.Sprintf("must be 0 to %d ns (%s)", maxLease, maxLease)}})
		}
		e, err := t.leased(agent, q[i].Lease)
		switch {
		case err != nil:
		case q[i].Untaken:
			t.untaken(e)
		default:
			t.again(e, "refused", clip(q[i].Reason, maxReason), q[i].Delay)
		}
		return err
	})
}

// Extend implements [Service]. The lease then ends d from now.
func (a *Adapter) Extend(ctx context.Context, agent string, leases []string, d time.Duration) []error {
	return a.settle(ctx, agent, len(leases), func(t *txn, i int) error {
		if d < minLease || d > maxLease {
			return invalid("an extension by "+agent, []deny.Field{{Name: "duration", Why: fmt.Sprintf("must be %d to %d ns (%s to %s)", minLease, maxLease, minLease, maxLease)}})
		}
		e, err := t.leased(agent, leases[i])
		if err == nil {
			e.due = t.mono + d
			t.due.put(e)
			t.touch(e)
		}
		return err
	})
}

func (a *Adapter) settle(ctx context.Context, agent string, n int, f func(t *txn, i int) error) []error {
	all := func(err error) []error {
		out := make([]error, n)
		for i := range out {
			out[i] = err
		}
		return out
	}
	if n > MaxBatch {
		return all(invalid("a batch from "+agent, []deny.Field{{Name: "leases", Why: fmt.Sprintf("%d leases, the most is %d", n, MaxBatch)}}))
	}
	if n == 0 {
		return nil
	}
	out := make([]error, n)
	err := a.do(ctx, &op{agent: agent, cost: n, run: func(t *txn) {
		for i := range out {
			out[i] = f(t, i)
		}
	}})
	if err != nil {
		return all(err) // out is the writer's until it answers
	}
	return out
}

// leased finds the delivery that a lease of this agent stands for.
func (t *txn) leased(agent, lease string) (*entry, error) {
	id, nonce, ok := parseLease(lease)
	recipient, known := t.agents[agent]
	if !ok || !known {
		return nil, leaseOver("it is no lease that was given to " + agent)
	}
	if e := t.queueOf(recipient).entries[id]; e != nil {
		if e.state == leased && e.nonce == nonce {
			return e, nil
		}
		return nil, leaseOver("it expired, or an earlier message of the channel was given back; the message comes again")
	}
	var r error = leaseOver("it is no lease that was given to " + agent)
	t.fail(t.db.query("SELECT state, nonce FROM delivery WHERE message = ? AND recipient = ?", func(row []driver.Value) error {
		switch {
		case integer(row[0]) == 1 && integer(row[1]) == nonce:
			r = leaseOver("the message was acknowledged with it already")
		case integer(row[0]) == 1:
			r = leaseOver("the message was acknowledged under another lease")
		case integer(row[0]) == 2:
			r = leaseOver("the message became a dead letter")
		}
		return nil
	}, id, recipient))
	return nil, r
}

func (t *txn) acknowledge(e *entry) {
	t.end(e)
	e.state, e.ended = done, t.ms()
	t.touch(e)
	t.charge(e.sender, -e.weight())
	t.counts.Acknowledged++
}

// end takes a delivery out of its queue.
func (t *txn) end(e *entry) {
	t.due.drop(e)
	e.queue.remove(e)
	if e.refs--; e.refs == 0 && e.body != nil {
		t.cached -= e.size
	}
}

// untaken gives back what nobody was there to take. No try is used up.
func (t *txn) untaken(e *entry) {
	e.attempts--
	t.giveBack(e, ready, 0)
}

// again counts a failed try: the delivery waits for its retry, or is dead.
func (t *txn) again(e *entry, how, why string, delay time.Duration) {
	e.reason = why
	if e.attempts > MaxTries {
		reason := fmt.Sprintf("%s %d times", how, e.attempts)
		if why != "" {
			reason += "; the last reason: " + why
		}
		// Those leased after it are void as with every other failure.
		t.giveBack(e, waiting, 0)
		t.give(e, false, reason)
		return
	}
	if delay == 0 {
		delay = backoff(e.attempts)
	}
	t.counts.Retried++
	t.giveBack(e, waiting, delay)
}

// giveBack ends the lease of e. Later ones of its channel come after it again:
// their leases are void, and no try of theirs is used up.
func (t *txn) giveBack(e *entry, s state, delay time.Duration) {
	for _, o := range e.queue.back(e, s) {
		o.attempts--
		o.nonce = 0
		t.due.drop(o)
		t.touch(o)
	}
	e.nonce = 0
	t.due.drop(e)
	if s == waiting {
		e.due = t.mono + delay
		t.due.put(e)
	}
	t.touch(e)
}

// expire lets time pass: leases end, and what waited may be leased again.
func (t *txn) expire() {
	var over []*entry
	for len(t.due) > 0 && t.due[0].due <= t.mono {
		e := t.due[0]
		t.due.drop(e)
		if e.state == waiting {
			e.queue.set(e, ready)
		} else {
			over = append(over, e)
		}
	}
	// The last of a channel first, so that each of a batch that nobody
	// acknowledged counts as failed, and not only its first.
	slices.SortFunc(over, func(a, b *entry) int { return cmp.Compare(b.id, a.id) })
	for _, e := range over {
		if e.state == leased {
			t.counts.Expired++
			t.again(e, "not acknowledged in time", "", 0)
		}
	}
}
