package server

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"sync/atomic"

	"bulkhead/internal/adapter"
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
	d := adapter.Draft{IdempotencyKey: newKey(), To: to, Type: SecurityAlert, Priority: adapter.High, Body: body}
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
			_ = a.store.OperatorSend(ctx, d) // a full queue of the orchestrator's is no reason to stop; the record stands
		}
	}
}

// newKey is a random UUID (RFC 9562, version 4).
func newKey() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails: crypto/rand
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
