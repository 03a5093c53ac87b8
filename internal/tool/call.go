package tool

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
)

// Journal is where records go. Its methods may be called concurrently.
type Journal interface {
	// Write returns when r is on disk.
	Write(ctx context.Context, r record.Record) error
	// Note has r on disk within [NoteDelay].
	Note(r record.Record)
}

// Call is one call that passed name, rate, manifest and validation.
type Call struct {
	Caller Caller
	Tool   *Tool
	In     Input

	journal Journal
	start   time.Time
	shown   json.RawMessage

	mu    sync.Mutex
	taken bool
	begun bool
	ours  bool // it took its record itself, in a transaction

	by string // whose approval it is done with
}

// Take gives the record of this call as allowed, for a tool that writes it in
// the same transaction as its effect. Nobody else writes it then.
func (c *Call) Take() record.Record {
	c.mu.Lock()
	c.taken, c.ours = true, true
	c.mu.Unlock()
	return c.record(record.Allowed, nil)
}

// Begin writes down durably that the call has started, for a tool whose effect
// lies outside of the gateway's store. Its outcome is written by the table.
func (c *Call) Begin(ctx context.Context) error {
	c.mu.Lock()
	c.begun = true
	c.mu.Unlock()
	return c.journal.Write(ctx, c.record(record.Started, nil))
}

// touched says whether the call, which ended with err, may have had an effect. What a
// transaction refused was not done.
func (c *Call) touched(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	var reason *deny.Reason
	return c.begun || c.ours && !errors.As(err, &reason)
}

// Denied gives the record of this call as denied, for a [Gate] that writes it in the
// same transaction as what it keeps of the call, and then says so by Written.
func (c *Call) Denied(r *deny.Reason) record.Record { return c.record(record.Denied, r) }

// Written says that the record of [Call.Denied] is on disk.
func (c *Call) Written() {
	c.mu.Lock()
	c.taken = true
	c.mu.Unlock()
}

// What is how reasons name the call.
func (c *Call) What() string { return c.Tool.Name }

func (c *Call) record(v record.Verdict, r *deny.Reason) record.Record {
	return record.Record{
		SchemaVersion: record.SchemaVersion, Time: time.Now().UTC(), Team: c.Caller.Team, Agent: c.Caller.Agent,
		Kind: record.Tool, Verdict: v, Target: c.Tool.Name, Token: c.Caller.Token, Input: c.shown,
		Micros: time.Since(c.start).Microseconds(), Reason: r.ForRecord(), Detail: c.by,
	}
}

// outcome writes the record of a call that has ended, unless the tool took it. What was
// allowed and did not work is failed, and what was refused denied. A denial and an effect
// are on disk when it returns.
func (c *Call) outcome(ctx context.Context, err error) error {
	v := record.Allowed
	var reason *deny.Reason
	if err != nil {
		v = record.Failed
		if errors.As(err, &reason) && !reason.Code.Failure() {
			v = record.Denied
		}
	}
	c.mu.Lock()
	taken := c.taken && err == nil
	begun := c.begun // a tool that mostly reads had an effect this time
	c.mu.Unlock()
	switch {
	case taken:
		return nil
	case err == nil && !c.Tool.Effect && !begun:
		c.journal.Note(c.record(v, nil))
		return nil
	}
	// Who hangs up does not keep what was done from being written down.
	return c.journal.Write(context.WithoutCancel(ctx), c.record(v, reason))
}
