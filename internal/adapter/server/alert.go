package server

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/draftkey"
	"bulkhead/internal/deny"
)

// SecurityAlert is the type of what the orchestrator is told when somebody was
// refused at a socket of the adapter.
const SecurityAlert adapter.Type = "security_alert"

// alerts tells the orchestrator. Operators see the record.
type alerts struct {
	orchestrator atomic.Pointer[string] // empty: operators only
	store        Store
	queue        chan adapter.Draft
}

// maxAlerts is how many may wait for the store; the record tells of all.
const maxAlerts = 64

func newAlerts(orchestrator string, store Store) *alerts {
	a := &alerts{store: store, queue: make(chan adapter.Draft, maxAlerts)}
	a.tell(orchestrator)
	return a
}

// tell changes who is told.
func (a *alerts) tell(orchestrator string) { a.orchestrator.Store(&orchestrator) }

// add does not block: it is called while somebody is being refused. The log
// folds what repeats, so at most one of a kind comes in a minute.
func (a *alerts) add(agent string, r *deny.Reason) {
	to := *a.orchestrator.Load()
	if to == "" {
		return
	}
	body, err := json.Marshal(map[string]any{"agent": agent, "reason": r})
	if err != nil {
		return // a Reason is plain text
	}
	d := adapter.Draft{IdempotencyKey: draftkey.New(), To: to, Type: SecurityAlert, Priority: adapter.High, Body: body}
	select {
	case a.queue <- d:
	default:
		slog.Error("the orchestrator was not alerted: too many alerts wait", "to", to, "waiting", maxAlerts, "about", agent, "code", string(r.Code))
	}
}

func (a *alerts) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case d := <-a.queue:
			a.send(ctx, &d)
		}
	}
}

// send alerts whoever is the orchestrator now, again and again as long as the store
// refuses it only for now. The others wait, as they are for the same queue. What fails is
// in the log; the record stands.
func (a *alerts) send(ctx context.Context, d *adapter.Draft) {
	for try := 1; ; try++ {
		if d.To = *a.orchestrator.Load(); d.To == "" {
			return
		}
		err := a.store.Alert(ctx, *d).Err
		if err == nil || ctx.Err() != nil {
			return
		}
		var r *deny.Reason
		again := errors.As(err, &r) && r.RetryAfter > 0
		if try == 1 || !again {
			slog.Error("the orchestrator was not alerted", "to", d.To, "error", err, "again", again, "alert", string(d.Body))
		}
		if !again {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(r.RetryAfter) * time.Second):
		}
	}
}
