package gateway

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"bulkhead/internal/gateway/messages"
	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

// Bounds of watching.
const (
	maxWatches    = 16 // at a time: the warden's one, and operators'
	callsBehind   = 256
	linesBehind   = 64
	maxRecent     = 1000
	outboxAtMost  = 500 * time.Millisecond // between two states of the outbox
	firstPatience = 10 * time.Second       // that who asked may take for the first answer
)

// news tells the warden, and operators by it, what happens here. While nobody
// asks, calls costs those who make it one load each, and nothing is kept.
type news struct {
	agent  string
	calls  record.Audience // hears of tool calls that were allowed
	lines  record.Audience // hears of each line of the log
	recent func(ctx context.Context, since time.Time, max int) ([]record.Record, bool, error)
	// messages is nil when the agent has none.
	messages *messages.Messages
	// asking is how much waits for a person.
	asking func() wire.Asking

	mu       sync.Mutex
	watching int
}

// serve answers VerbWatch on a goroutine of its own and says whether it keeps
// the connection.
func (n *news) serve(ctx context.Context, c *wire.Conn, m wire.Message, watches *sync.WaitGroup) (kept bool) {
	var q wire.GatewayWatch
	if err := json.Unmarshal(m.Body, &q); err != nil {
		_ = c.Send(m.ID, wire.VerbError, wire.Failure{Message: "gateway: the request does not decode: " + err.Error()})
		return false
	}
	n.mu.Lock()
	full := n.watching >= maxWatches
	if !full {
		n.watching++
	}
	n.mu.Unlock()
	if full {
		_ = c.Send(m.ID, wire.VerbError, wire.Failure{Message: "gateway: as many watch already as may", Mend: "end one of the `bulkhead watch` that run"})
		return false
	}
	watches.Go(func() {
		defer func() {
			n.mu.Lock()
			n.watching--
			n.mu.Unlock()
		}()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		_ = c.Unix().SetDeadline(time.Time{})
		stop := context.AfterFunc(ctx, func() { _ = c.Close() })
		defer stop()
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			defer cancel()
			_, files, _ := c.Recv() // nothing more is asked: it ends with the connection
			for _, f := range files {
				_ = f.Close()
			}
		}()
		defer func() { _ = c.Close(); <-gone }()
		_ = c.Unix().SetWriteDeadline(time.Now().Add(firstPatience))
		if c.Send(m.ID, wire.VerbStarted, struct{}{}) != nil {
			return
		}
		// Whoever reads slowly loses events, and is told; nobody waits here for it.
		_ = c.Unix().SetWriteDeadline(time.Time{})
		if q.Calls {
			n.tellCalls(ctx, c, q.Since)
			return
		}
		n.tellPeople(ctx, c)
	})
	return true
}

func tell(c *wire.Conn, e wire.GatewayEvent, r *record.Record) error {
	if r != nil {
		raw, err := json.Marshal(r)
		if err != nil {
			return err
		}
		e.Record = raw
	}
	return c.Send(0, wire.VerbEvent, e)
}

// tellCalls tells of tool calls until the connection ends. A call that ends while
// it begins may come twice, or, when it only read, not at all.
func (n *news) tellCalls(ctx context.Context, c *wire.Conn, since time.Time) {
	seat := n.calls.Join(callsBehind)
	defer seat.Leave()
	joined := time.Now()
	if !since.IsZero() {
		all, more, err := n.recent(ctx, since, maxRecent)
		note := record.Record{SchemaVersion: record.SchemaVersion, Time: joined.UTC(), Agent: n.agent, Kind: record.Life}
		switch {
		case err != nil:
			note.Verdict, note.Detail = record.Failed, "earlier calls cannot be read: "+err.Error()
		case more:
			note.Verdict, note.Detail = record.Allowed, "there were earlier calls in that time; these are the last ones"
		}
		if note.Verdict != "" && tell(c, wire.GatewayEvent{}, &note) != nil {
			return
		}
		for i := range all {
			if all[i].Time.After(joined) {
				break
			}
			if tell(c, wire.GatewayEvent{}, &all[i]) != nil {
				return
			}
		}
	}
	for {
		r, ok := seat.Next(ctx, nil)
		if !ok || tell(c, wire.GatewayEvent{}, &r) != nil {
			return
		}
	}
}

// tellPeople tells of notices, of an outbox that takes no more, and of what waits
// in it, until the connection ends.
func (n *news) tellPeople(ctx context.Context, c *wire.Conn) {
	seat := n.lines.Join(linesBehind)
	defer seat.Leave()
	var last wire.Outbox
	var asked wire.Asking
	for {
		var changed <-chan struct{}
		if n.messages != nil {
			var now wire.Outbox
			now.Waiting, now.Refused, now.Gaps, changed = n.messages.Outbox()
			if now != last && tell(c, wire.GatewayEvent{Outbox: &now}, nil) != nil {
				return
			}
			last = now
		}
		if n.asking != nil {
			if now := n.asking(); now != asked {
				if tell(c, wire.GatewayEvent{Asking: &now}, nil) != nil {
					return
				}
				asked = now
			}
		}
		r, ok := seat.Next(ctx, changed)
		switch {
		case ctx.Err() != nil:
			return
		case !ok: // it changes with each message while the adapter is away
			select {
			case <-time.After(outboxAtMost):
			case <-ctx.Done():
				return
			}
		case forPeople(r):
			if tell(c, wire.GatewayEvent{}, &r) != nil {
				return
			}
		}
	}
}

// forPeople says whether a line is one that somebody should hear of who does not
// read the log.
func forPeople(r record.Record) bool {
	return r.Kind == record.Life && r.Target == record.Notice || r.Kind == record.Approval ||
		r.Kind == record.Message && r.Verdict == record.Failed && (r.Target == record.Outbox || r.Target == record.Gap)
}
