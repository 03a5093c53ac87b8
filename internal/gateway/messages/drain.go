package messages

import (
	"context"
	"errors"
	"sync"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/client"
	"bulkhead/internal/deny"
	"bulkhead/internal/gateway/outbox"
	"bulkhead/internal/record"
)

// drainPause is between tries of an adapter that is there but cannot store.
const drainPause = 200 * time.Millisecond

// drainer knows which destinations are held back.
type drainer struct {
	mu   sync.Mutex
	held map[string]hold
	idle <-chan struct{} // of outbox.Box.Waiting, when everything that it gave is held back
}

// hold is a destination whose first draft was refused for now.
type hold struct {
	reason *deny.Reason
	until  time.Time
}

func (d *drainer) init() { d.held = map[string]hold{} }

// destination is what order is kept within.
func destination(d *adapter.Draft) string {
	if d.To != "" {
		return "to " + d.To
	}
	return "channel " + d.Channel
}

// state says why a destination is held back, and whether all that waits is, in
// the outbox as it was when it gave changed.
func (d *drainer) state(dest string, changed <-chan struct{}) (*deny.Reason, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h, ok := d.held[dest]; ok {
		return h.reason, false
	}
	return nil, d.idle == changed
}

// pick chooses what may be sent now: the first draft of each destination that
// is not held back. Only one, because when the adapter refuses it for now, what
// follows to there must not have overtaken it. next is when a hold ends.
func (d *drainer) pick(list []outbox.Waiting, changed <-chan struct{}, now time.Time) (out []outbox.Waiting, next time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := map[string]bool{}
	size := 0
	for i := range list {
		dest := destination(&list[i].Draft)
		if seen[dest] {
			continue
		}
		seen[dest] = true
		if h, ok := d.held[dest]; ok && now.Before(h.until) {
			if next.IsZero() || h.until.Before(next) {
				next = h.until
			}
			continue
		}
		if size += len(list[i].Draft.Body); len(out) > 0 && (size > batchBytes || len(out) == adapter.MaxBatch) {
			break
		}
		out = append(out, list[i])
	}
	for dest := range d.held {
		if !seen[dest] {
			delete(d.held, dest) // nothing to there waits any more
		}
	}
	if d.idle = nil; len(out) == 0 {
		d.idle = changed
	}
	return out, next
}

func (d *drainer) hold(dest string, r *deny.Reason) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held[dest] = hold{r, time.Now().Add(time.Duration(max(r.RetryAfter, 1)) * time.Second)}
}

func (d *drainer) release(dest string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.held, dest)
}

// runDrain brings what waits in the outbox to the adapter, whenever it is
// there.
func (m *Messages) runDrain(ctx context.Context) {
	for ctx.Err() == nil {
		list, changed := m.box.Waiting(outbox.MaxMessages)
		conn, linked := m.link.get()
		out, next := m.drain.pick(list, changed, time.Now())
		if conn != nil && len(out) > 0 {
			if m.drainSome(ctx, out) {
				continue
			}
			next = time.Now().Add(drainPause)
		}
		var due <-chan time.Time
		timer := time.NewTimer(time.Until(next))
		if !next.IsZero() {
			due = timer.C
		}
		if conn != nil && len(out) > 0 {
			changed, linked = nil, nil // a pause is one
		}
		select {
		case <-changed:
		case <-linked:
		case <-due:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// drainSome sends and settles. false: the adapter could not say.
func (m *Messages) drainSome(ctx context.Context, out []outbox.Waiting) bool {
	drafts := make([]adapter.Draft, len(out))
	for i := range out {
		drafts[i] = out[i].Draft
	}
	said := true
	for i, r := range m.ask(ctx, drafts, true) {
		dest := destination(&drafts[i])
		var reason *deny.Reason
		switch {
		case r.Err == nil:
			m.drain.release(dest)
			m.box.Done(out[i].Number)
		case client.Away(r.Err):
			said = false
		case errors.As(r.Err, &reason) && reason.RetryAfter > 0:
			m.drain.hold(dest, reason)
		default:
			m.drain.release(dest)
			m.cfg.Log.Write(record.Record{
				Agent: m.cfg.Agent, Kind: record.Message, Verdict: record.Denied, Target: dest, Count: 1, Reason: reason,
				Detail: "from the outbox, idempotency_key " + drafts[i].IdempotencyKey,
			})
			if err := m.box.Refuse(out[i].Number, reason); err != nil {
				said = false // it waits still; the disk has a fault
			}
		}
	}
	return said
}
