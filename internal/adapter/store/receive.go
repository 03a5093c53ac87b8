package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"bulkhead/internal/adapter/allowed"
	"bulkhead/internal/deny"
)

// Bounds and defaults of a ReceiveRequest.
const (
	maxReceive   = 100
	usualReceive = 10
	maxWait      = time.Minute
	minLease     = time.Second
	usualLease   = 30 * time.Second
	maxLease     = time.Hour
	// maxReceiveBytes bounds one answer; the first message always fits.
	maxReceiveBytes = 8 << 20
)

// waiter is a Receive that waits for the first message.
type waiter struct {
	ReceiveRequest
	id    int64    // never 0
	got   []*entry // what it gets, set by the transaction that serves it
	out   []Delivery
	err   error
	ready chan struct{} // closed when out is on disk as leased
}

func checkReceive(q *ReceiveRequest, agent string) *deny.Reason {
	var bad []deny.Field
	if q.Max == 0 {
		q.Max = usualReceive
	}
	if q.Lease == 0 {
		q.Lease = usualLease
	}
	if q.Max < 1 || q.Max > maxReceive {
		bad = append(bad, deny.Field{Name: "max", Why: fmt.Sprintf("must be 1 to %d", maxReceive)})
	}
	if q.Wait < 0 || q.Wait > maxWait {
		bad = append(bad, deny.Field{Name: "wait", Why: fmt.Sprintf("must be 0 to %d ns (%s)", maxWait, maxWait)})
	}
	if q.Lease < minLease || q.Lease > maxLease {
		bad = append(bad, deny.Field{Name: "lease", Why: fmt.Sprintf("must be %d to %d ns (%s to %s)", minLease, maxLease, minLease, maxLease)})
	}
	if len(q.Channel) > 2*64+2 {
		bad = append(bad, deny.Field{Name: "channel", Why: "no such channel"})
	}
	if bad != nil {
		return invalid("receive by "+agent, bad)
	}
	return nil
}

// Receive implements [Service].
func (a *Adapter) Receive(ctx context.Context, agent string, q ReceiveRequest) ([]Delivery, error) {
	if r := checkReceive(&q, agent); r != nil {
		return nil, r
	}
	w := &waiter{ReceiveRequest: q, ready: make(chan struct{})}
	err := a.do(ctx, &op{agent: agent, cost: 1, run: func(t *txn) {
		if _, ok := t.policy.Agents[agent]; !ok {
			w.err = allowed.Not("receive by "+agent, agent+" is no agent of this team that has messages",
				fmt.Sprintf("give agents.%s channels or messages in the manifest", agent))
			t.after = append(t.after, func() { close(w.ready) })
			return
		}
		if q.Channel != "" {
			if r := t.receivable(agent, q.Channel); r != nil {
				w.err = r
				t.after = append(t.after, func() { close(w.ready) })
				return
			}
		}
		t.lastID.waiter++
		w.id = t.lastID.waiter
		id := t.agent(agent)
		if w.take(t, t.queueOf(id)); len(w.got) == 0 {
			if q.Wait > 0 {
				t.waiters[id] = append(t.waiters[id], w)
			} else {
				t.after = append(t.after, func() { close(w.ready) })
			}
		}
	}})
	if err != nil {
		if ctx.Err() != nil {
			a.forsake(agent, w)
		}
		return nil, err
	}
	timer := time.NewTimer(q.Wait)
	defer timer.Stop()
	select {
	case <-w.ready:
	default:
		select {
		case <-w.ready:
		case <-timer.C:
			if err := a.leave(agent, w); err != nil {
				return nil, err
			}
		case <-ctx.Done():
			a.forsake(agent, w)
			return nil, ctx.Err()
		case <-a.closed:
			return nil, unavailable("the adapter is stopping")
		}
	}
	if w.err != nil {
		return nil, w.err
	}
	if err := a.bodies(ctx, w.out); err != nil {
		a.forsake(agent, w)
		return nil, err
	}
	return w.out, nil
}

// take leases what there is for w.
func (w *waiter) take(t *txn, q *queue) {
	size := int64(0)
	w.got, w.out = nil, nil
	for len(w.got) < w.Max {
		l := q.pick(w)
		if l == nil || size > 0 && size+l.head().size > maxReceiveBytes {
			break
		}
		e := q.lease(l, w)
		size += e.size
		e.attempts++
		e.nonce = newNonce()
		e.due, e.span = t.mono+w.Lease, w.Lease
		t.due.put(e)
		t.touch(e)
		w.got = append(w.got, e)
		w.out = append(w.out, Delivery{
			Message: t.message(e.record, q.name), Lease: leaseToken(e.id, e.nonce), Attempt: e.attempts, Expires: t.wall.Add(w.Lease).UTC(), Missed: l.missed,
		})
	}
	if len(w.got) > 0 {
		t.counts.Leased += int64(len(w.got))
		t.after = append(t.after, func() { close(w.ready) })
	}
}

// serve gives what became ready to those that wait, first come first served.
func (t *txn) serve() {
	for id, ws := range t.waiters {
		q := t.queues[id]
		if q == nil {
			continue
		}
		t.waiters[id] = slices.DeleteFunc(ws, func(w *waiter) bool {
			w.take(t, q)
			if len(w.got) > 0 {
				t.served = append(t.served, w)
			}
			return len(w.got) > 0
		})
		if len(t.waiters[id]) == 0 {
			delete(t.waiters, id)
		}
	}
}

// leave ends the waiting of w; what it got in the meantime it keeps.
func (a *Adapter) leave(agent string, w *waiter) error {
	return a.do(context.Background(), &op{agent: agent, run: func(t *txn) { t.leave(agent, w) }})
}

func (t *txn) leave(agent string, w *waiter) {
	if id, ok := t.agents[agent]; ok {
		t.waiters[id] = slices.DeleteFunc(t.waiters[id], func(o *waiter) bool { return o == w })
	}
}

// forsake gives back what w got, because nobody is there to take it. No try is used up.
func (a *Adapter) forsake(agent string, w *waiter) {
	_ = a.do(context.Background(), &op{agent: agent, cost: 1, run: func(t *txn) {
		t.leave(agent, w)
		for i := len(w.got) - 1; i >= 0; i-- {
			if e, err := t.leased(agent, w.out[i].Lease); err == nil {
				t.untaken(e)
			}
		}
	}})
}

// message is the public form of a record for one that reads it.
func (c *core) message(r *record, reader string) Message {
	m := Message{
		IdempotencyKey: r.key.String(), Sequence: r.seq, Time: time.Unix(0, r.time).UTC(), From: c.names[r.sender],
		Channel: r.channel.name, Type: r.typ, Priority: priority(r.rank), ReplyTo: r.reply, Body: r.body,
	}
	m.To = other(r.channel.name, m.From)
	return m
}
