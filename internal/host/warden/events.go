package warden

import (
	"encoding/json"
	"sync"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

// eventQueue is how many events a watcher may be behind. One that does not
// read loses events, and is told how many: nobody waits for it.
const eventQueue = 256

// events tells watchers what happens. Nothing is kept.
type events struct {
	mu       sync.Mutex
	watchers map[*watcher]bool
}

type watcher struct {
	team, agent string // empty: all
	queue       chan record.Record
	lost        uint64 // guarded by events.mu
}

func newEvents() *events { return &events{watchers: map[*watcher]bool{}} }

func (e *events) watch(team, agent string) *watcher {
	w := &watcher{team: team, agent: agent, queue: make(chan record.Record, eventQueue)}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.watchers[w] = true
	return w
}

func (e *events) leave(w *watcher) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.watchers, w)
}

// emit never blocks. A record without a team is everybody's.
func (e *events) emit(r record.Record) {
	r.SchemaVersion, r.Time = record.SchemaVersion, time.Now().UTC()
	e.mu.Lock()
	defer e.mu.Unlock()
	for w := range e.watchers {
		if r.Team != "" && (w.team != "" && w.team != r.Team || w.agent != "" && w.agent != r.Agent) {
			continue
		}
		if w.lost > 0 && len(w.queue) < eventQueue-1 {
			w.queue <- record.Lost(w.lost)
			w.lost = 0
		}
		select {
		case w.queue <- r:
		default:
			w.lost++
		}
	}
}

// event is emit for one agent.
func (a *agentRun) event(kind record.Kind, v record.Verdict, target, detail string, reason *deny.Reason) {
	a.w.events.emit(record.Record{
		Team: a.Place.Team, Agent: a.Place.Name, Kind: kind, Verdict: v, Target: target, Detail: detail, Reason: reason,
	})
}

// watch sends events until the operator leaves.
func (c *call) watch() error {
	var req wire.WatchRequest
	if err := json.Unmarshal(c.body, &req); err != nil {
		return badInput("the request does not decode: "+err.Error(), "use the bulkhead program of the same build")
	}
	if req.Agent != "" {
		a, err := c.w.anyAgent(req.Team, req.Agent)
		if err != nil {
			return err
		}
		req.Team = a.Place.Team
	} else if req.Team != "" {
		if _, err := c.w.team(req.Team); err != nil {
			return err
		}
	}
	w := c.w.events.watch(req.Team, req.Agent)
	defer c.w.events.leave(w)
	// Only now: whoever has this line misses nothing that comes after it.
	if err := c.conn.Send(c.id, wire.VerbStarted, struct{}{}); err != nil {
		return nil // the operator has left
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, files, _ := c.conn.Recv() // nothing is expected: it ends with the connection
		closeFiles(files)
	}()
	defer func() { _ = c.conn.Close(); <-gone }()
	for {
		select {
		case r := <-w.queue:
			_ = c.conn.Unix().SetWriteDeadline(time.Now().Add(10 * time.Second))
			if err := c.conn.Send(0, wire.VerbEvent, r); err != nil {
				return nil // the operator has left
			}
		case <-gone:
			return nil
		case <-c.ctx.Done():
			return nil
		}
	}
}
