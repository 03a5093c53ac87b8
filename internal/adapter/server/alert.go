package server

import (
	"context"
	"encoding/json"
	"sync/atomic"

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
	}
}

func (a *alerts) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case d := <-a.queue:
			_ = a.store.Alert(ctx, d) // a full queue of the orchestrator's is no reason to stop; the record stands
		}
	}
}
