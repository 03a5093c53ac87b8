package tool

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"slices"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
)

// DefaultRate is the calls of one agent per minute, over all tools.
const DefaultRate = 100

// Config is what an agent's tools are served with.
type Config struct {
	Table   *Table
	Journal Journal
	// Allowed are the groups and names that the manifest lets the agent use.
	Allowed []string
	Rate    int // calls per minute; 0: DefaultRate
	Log     *slog.Logger
	Now     func() time.Time // for tests; nil: time.Now
}

// Dispatcher carries calls out.
type Dispatcher struct {
	cfg    Config
	window *window
	shower *shower
}

// New makes a dispatcher.
func New(cfg Config) *Dispatcher {
	if cfg.Rate == 0 {
		cfg.Rate = DefaultRate
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Dispatcher{cfg: cfg, window: newWindow(cfg.Rate, cfg.Now), shower: newShower()}
}

// Tools gives the tools that the agent may use, by name.
func (d *Dispatcher) Tools() []*Tool {
	return slices.DeleteFunc(d.cfg.Table.All(), func(t *Tool) bool { return !d.allowed(t) })
}

func (d *Dispatcher) allowed(t *Tool) bool {
	return slices.Contains(d.cfg.Allowed, t.Name) || slices.Contains(d.cfg.Allowed, string(t.Group))
}

// Call does one call. The answer is JSON. The reason, when there is one, is
// durable already.
func (d *Dispatcher) Call(ctx context.Context, who Caller, name string, input []byte) (json.RawMessage, *deny.Reason) {
	c := &Call{Caller: who, journal: d.cfg.Journal, start: d.cfg.Now()}
	t := d.cfg.Table.Find(name)
	if t == nil {
		c.Tool = &Tool{Name: "(unknown)"}
		return nil, d.refuse(ctx, c, Refuse(deny.ToolUnknown, clip(name), "there is no such tool", "GET /v1/tools or tools/list shows which there are"))
	}
	c.Tool = t
	if wait, ok := d.window.take(who.Rate); !ok {
		r := Refuse(deny.ToolRate, t.Name, "this agent made as many calls in the last minute as it may", "wait; or raise tools.ratePerMinute of the agent in bulkhead.yaml")
		r.RetryAfter = max(1, int(math.Ceil(wait.Seconds())))
		return nil, d.refuse(ctx, c, r)
	}
	if !d.allowed(t) {
		return nil, d.refuse(ctx, c, Refuse(deny.ToolNotAllowed, t.Name, "the manifest does not give this tool to the agent",
			`add "`+string(t.Group)+`" to agents.`+who.Agent+".tools.allow in bulkhead.yaml"))
	}
	in, reason := t.Parse(input)
	if reason != nil {
		return nil, d.refuse(ctx, c, reason)
	}
	c.In, c.shown = in, d.shower.show(t.Fields, in)
	out, err := t.Run(ctx, c)
	var answer json.RawMessage
	if err == nil {
		answer, err = json.Marshal(out)
	}
	if werr := c.outcome(ctx, err); werr != nil {
		d.cfg.Log.ErrorContext(ctx, "a call could not be written down", "tool", t.Name, "error", werr)
		return nil, unwritten(t.Name)
	}
	if err == nil {
		return answer, nil
	}
	if errors.As(err, &reason) {
		return nil, reason
	}
	d.cfg.Log.ErrorContext(ctx, "a tool failed", "tool", t.Name, "error", err)
	return nil, Refuse(deny.ToolFailed, t.Name, "the tool failed; the operator's log says why", "try again; if it fails again, tell the operator")
}

// refuse writes a denial down before it is answered.
func (d *Dispatcher) refuse(ctx context.Context, c *Call, r *deny.Reason) *deny.Reason {
	if err := d.cfg.Journal.Write(context.WithoutCancel(ctx), c.record(record.Denied, r)); err != nil {
		d.cfg.Log.ErrorContext(ctx, "a denial could not be written down", "tool", c.Tool.Name, "error", err)
		return unwritten(c.Tool.Name)
	}
	return r
}

// unwritten closes: nothing is answered that is not on record.
func unwritten(what string) *deny.Reason {
	r := Refuse(deny.ToolUnavailable, what, "the record of this call could not be made durable", "try again; the gateway's disk may be full")
	r.RetryAfter = 1
	return r
}
