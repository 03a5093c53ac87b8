package warden

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

// The warden hears from each gateway what a person should: notices that an agent
// sends its operator, and messages that nobody could keep. It comes over a
// connection on which nothing is sent otherwise. A gateway may be captured, so
// what it says is a claim of that agent's, bounded here whatever the gateway does,
// and changes nothing but what operators are shown.
const (
	hearEvery  = 100 * time.Millisecond // an event at most
	hearAgain  = time.Second            // until a connection is made again
	hearBroken = 30 * time.Second       // the same, when the gateway does not speak as it should
	maxHeard   = 128 << 10              // bytes of an event; a notice has 10,000 characters at most
	maxNotice  = 2000                   // bytes of a notice in the warden's log
	maxNotices = 30                     // notices of an agent in the log within a minute
)

// hearing is what an agent's gateway told.
type hearing struct {
	mu      sync.Mutex
	notices wire.Heard
	gaps    wire.Heard
	gapsOf  uint64 // that the gateway has counted
	lost    wire.Heard
	outbox  wire.Outbox
	asking  wire.Asking

	minute time.Time // begins
	inLog  int       // notices of this minute
	left   uint64    // out of the log since one was last written

	cancel context.CancelFunc // of a guest; else the owner's
	done   chan struct{}
}

// hear listens to the gateway until ctx ends.
func (a *agentRun) hear(ctx context.Context) {
	for ctx.Err() == nil {
		pause(ctx, a.hearOnce(ctx))
	}
}

// hearOnce listens on one connection and says how long to wait before the next.
func (a *agentRun) hearOnce(ctx context.Context) time.Duration {
	c, err := dialWire(ctx, a.Place.GrantsSocket(), wire.GrantsProtocol, wire.GrantsVersion)
	if err != nil {
		return hearAgain // it starts, or is frozen
	}
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	defer func() { // nothing is known of it any more
		a.heard.mu.Lock()
		a.heard.outbox, a.heard.asking = wire.Outbox{}, wire.Asking{}
		a.heard.mu.Unlock()
	}()
	if err := c.Send(1, wire.VerbWatch, wire.GatewayWatch{}); err != nil {
		return hearAgain
	}
	for {
		m, files, err := c.Recv()
		closeFiles(files)
		if err != nil {
			return hearAgain
		}
		var e wire.GatewayEvent
		switch {
		case m.Verb == wire.VerbStarted:
			continue
		case m.Verb != wire.VerbEvent || len(m.Body) > maxHeard || json.Unmarshal(m.Body, &e) != nil:
			return hearBroken // one of an older build does not know what was asked
		}
		a.take(e, time.Now().UTC())
		pause(ctx, hearEvery)
	}
}

// take notes one event.
func (a *agentRun) take(e wire.GatewayEvent, now time.Time) {
	h := &a.heard
	if e.Outbox != nil {
		h.mu.Lock()
		h.outbox = *e.Outbox
		// A gateway that began anew counts anew.
		if n := e.Outbox.Gaps; n > 0 && n != h.gapsOf {
			if n < h.gapsOf {
				h.gapsOf = 0
			}
			h.gaps.Count += min(n-h.gapsOf, 1<<32)
			h.gaps.Last = now
		}
		h.gapsOf, h.outbox.Gaps = e.Outbox.Gaps, 0
		h.mu.Unlock()
	}
	if e.Asking != nil {
		h.mu.Lock()
		h.asking = *e.Asking
		h.mu.Unlock()
	}
	var r record.Record
	if len(e.Record) == 0 || json.Unmarshal(e.Record, &r) != nil {
		return
	}
	log := a.w.log.With("team", a.Place.Team, "agent", a.Place.Name)
	switch {
	case r.Kind == record.Life && r.Target == record.Notice:
		show, left := h.notice(now)
		if !show {
			return
		}
		text := r.Detail
		if len(text) > maxNotice {
			text = text[:maxNotice] + "…"
		}
		log.Warn("an agent tells its operator", "notice", text, "left_out", left)
	case r.Kind == record.Message && r.Target == record.Gap:
		what, why := "", r.Detail
		if r.Reason != nil {
			what, why = r.Reason.What, r.Reason.Why
		}
		log.Error("messages to an agent are missing and cannot be had any more", "what", what[:min(len(what), maxNotice/8)], "why", why[:min(len(why), maxNotice)])
	case r.Kind == record.Approval && r.Verdict == record.Started:
		show, left := h.line(now)
		if !show {
			return
		}
		log.Warn("a call of an agent waits for a person", "tool", short(r.Target), "what", short(r.Detail), "left_out", left)
	case r.Kind == record.Message && r.Target == record.Outbox:
		n := min(max(r.Count, 1), 1<<32)
		h.mu.Lock()
		h.lost.Count += n
		h.lost.Last = now
		h.mu.Unlock()
		why := r.Detail
		if r.Reason != nil {
			why = r.Reason.Why
		}
		if len(why) > maxNotice {
			why = why[:maxNotice]
		}
		log.Error("messages of an agent are lost: neither the adapter nor its outbox takes them; it was told", "count", n, "why", why)
	}
}

// short bounds what a gateway says of a call.
func short(s string) string { return s[:min(len(s), maxHow)] }

// notice counts one and says whether it goes to the log.
func (h *hearing) notice(now time.Time) (show bool, left uint64) {
	h.mu.Lock()
	h.notices.Count++
	h.notices.Last = now
	h.mu.Unlock()
	return h.line(now)
}

// line says whether what an agent tells goes to the log, and how much did not since the
// last that did.
func (h *hearing) line(now time.Time) (show bool, left uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Sub(h.minute) >= time.Minute {
		h.minute, h.inLog = now, 0
	}
	if h.inLog >= maxNotices {
		h.left++
		return false, 0
	}
	h.inLog++
	left, h.left = h.left, 0
	return true, left
}

// told is what operators are shown of it; nil where there is nothing.
func (h *hearing) told() (notices *wire.Heard, outbox *wire.OutboxStatus, gaps *wire.Heard, asking *wire.Asking) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.notices.Count > 0 {
		n := h.notices
		notices = &n
	}
	if h.outbox != (wire.Outbox{}) || h.lost.Count > 0 {
		outbox = &wire.OutboxStatus{Outbox: h.outbox}
		if h.lost.Count > 0 {
			n := h.lost
			outbox.Lost = &n
		}
	}
	if h.gaps.Count > 0 {
		n := h.gaps
		gaps = &n
	}

	if h.asking.Waiting > 0 {
		n := h.asking
		asking = &n
	}
	return notices, outbox, gaps, asking
}

// startHearing listens to a guest, which has no owner, until stopHearing.
func (g *guest) startHearing() {
	g.stopHearing()
	ctx, cancel := context.WithCancel(g.w.ctx)
	done := make(chan struct{})
	g.heard.cancel, g.heard.done = cancel, done
	g.w.owners.Go(func() {
		defer close(done)
		g.hear(ctx)
	})
}

func (g *guest) stopHearing() {
	if g.heard.cancel != nil {
		g.heard.cancel()
		<-g.heard.done
		g.heard.cancel = nil
	}
}

// calls passes a connection to an agent's gateway on, of which that tells its
// tool calls: what a gateway says does not go through the warden.
func (c *call) calls() error {
	var req wire.CallsRequest
	if err := json.Unmarshal(c.body, &req); err != nil {
		return badInput("the request does not decode: "+err.Error(), "use the bulkhead program of the same build")
	}
	a, err := c.w.anyAgent(req.Team, req.Agent)
	if err != nil {
		return err
	}
	down := func(err error) error { return notRunning(gatewayName, a.Place.Name, err) }
	gw, err := dialWire(c.ctx, a.Place.GrantsSocket(), wire.GrantsProtocol, wire.GrantsVersion)
	if err != nil {
		return down(err)
	}
	defer func() { _ = gw.Close() }()
	if err := gw.Send(1, wire.VerbWatch, wire.GatewayWatch{Calls: true, Since: req.Since}); err != nil {
		return down(err)
	}
	f, err := gw.Unix().File()
	if err != nil {
		return fmt.Errorf("warden: %w", err)
	}
	defer closeFiles([]*os.File{f})
	return c.conn.Send(c.id, wire.VerbResult, struct {
		SchemaVersion int `json:"schemaVersion"`
	}{1}, f)
}
