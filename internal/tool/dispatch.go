package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/tool/toolname"
)

// Config is what an agent's tools are served with.
type Config struct {
	Table   *Table
	Journal Journal
	// Allowed are the groups and names that the manifest lets the agent use.
	Allowed []string
	Rate    int // calls per minute; 0: toolname.DefaultRate
	Log     *slog.Logger
	Now     func() time.Time // for tests; nil: time.Now
	// Seen hears of each call that was allowed and done, once it is on record. It
	// may be nil, and costs a load when nobody is there.
	Seen *record.Audience
	// Gate is asked before a call is done; nil: none is asked about.
	Gate Gate
}

// Gate decides about calls that are allowed and have a valid input, after rate and
// before any work.
type Gate interface {
	// Pass says whether the call may be done now, and by whose approval when it
	// needed one. It may have written its reason down ([Call.Written]). whole is
	// false when the input is not all of what the call does: the rest is a stream.
	Pass(ctx context.Context, c *Call, input []byte, whole bool) (by string, reason *deny.Reason)
}

type streamedKey struct{}

// Streamed marks calls whose input is not all of what they do.
func Streamed(ctx context.Context) context.Context {
	return context.WithValue(ctx, streamedKey{}, true)
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
		cfg.Rate = toolname.DefaultRate
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Dispatcher{cfg: cfg, window: newWindow(cfg.Rate, cfg.Now), shower: newShower()}
}

// Find gives a tool of the table by its bare name; nil: there is none.
func (d *Dispatcher) Find(name string) *Tool { return d.cfg.Table.Find(name) }

// Allows says whether the agent may use a tool of the table.
func (d *Dispatcher) Allows(t *Tool) bool { return d.allowed(t) }

// Tools gives the tools that the agent may use, by name.
func (d *Dispatcher) Tools() []*Tool {
	return slices.DeleteFunc(d.cfg.Table.All(), func(t *Tool) bool { return !d.allowed(t) })
}

// Check says why a call could not be done that is to be done later: what the tool, the
// manifest and the input alone say. Nothing is counted or recorded.
func (d *Dispatcher) Check(name string, input []byte, who Caller) *deny.Reason {
	t := d.Find(name)
	switch group := toolname.GroupOf(name); {
	case t == nil && group == "":
		return Refuse(deny.ToolUnknown, clip(name), "there is no such tool", "GET /v1/tools, tools/list or `bulkhead tool list` shows which there are")
	case t == nil:
		return notAllowed(&Tool{Name: name, Group: group}, who.Agent)
	case t.Run == nil || !d.allowed(t):
		return notAllowed(t, who.Agent)
	}
	_, reason := t.Parse(input)
	return reason
}

func (d *Dispatcher) allowed(t *Tool) bool {
	return slices.Contains(d.cfg.Allowed, t.Name) || slices.Contains(d.cfg.Allowed, string(t.Group))
}

// Call does one call. The answer is JSON. The reason, when there is one, is
// durable already.
func (d *Dispatcher) Call(ctx context.Context, who Caller, name string, input []byte) (json.RawMessage, *deny.Reason) {
	a, reason := d.Admit(ctx, who, name)
	if reason != nil {
		return nil, reason
	}
	return a.Run(ctx, input)
}

// Admitted is a call that passed name, rate and manifest. Its input is not
// known yet. Exactly one of Run and Refuse is called.
type Admitted struct {
	d *Dispatcher
	c *Call
	// approved says that the gate has let this very call pass before.
	approved bool
	touched  bool
}

// Approved has the call done with the approval of by, without asking again.
func (a *Admitted) Approved(by string) { a.c.by, a.approved = by, true }

// Touched says, after Run, whether the call may have had an effect: whether it got as far
// as having one, however it ended then.
func (a *Admitted) Touched() bool { return a.touched }

// Admit decides what can be decided before an input is read.
func (d *Dispatcher) Admit(ctx context.Context, who Caller, name string) (*Admitted, *deny.Reason) {
	c := &Call{Caller: who, journal: d.cfg.Journal, start: d.cfg.Now()}
	bare := strings.TrimPrefix(name, Prefix)
	c.Tool = d.cfg.Table.Find(bare)
	if c.Tool == nil {
		group := toolname.GroupOf(bare)
		if group == "" {
			c.Tool = &Tool{Name: "(unknown)"}
			return nil, d.refuse(ctx, c, Refuse(deny.ToolUnknown, clip(name), "there is no such tool", "GET /v1/tools, tools/list or `bulkhead tool list` shows which there are"))
		}
		c.Tool = &Tool{Name: bare, Group: group}
	}
	if wait, ok := d.window.take(who.Rate); !ok {
		r := Refuse(deny.ToolRate, c.Tool.Name, "this agent made as many calls in the last minute as it may", "wait; or raise tools.ratePerMinute of the agent in bulkhead.yaml")
		r.RetryAfter = max(1, int(math.Ceil(wait.Seconds())))
		return nil, d.refuse(ctx, c, r)
	}
	if c.Tool.Run == nil || !d.allowed(c.Tool) {
		return nil, d.refuse(ctx, c, notAllowed(c.Tool, who.Agent))
	}
	return &Admitted{d: d, c: c}, nil
}

func notAllowed(t *Tool, agent string) *deny.Reason {
	return Refuse(deny.ToolNotAllowed, t.Name, "the manifest does not give this tool to the agent", toolname.Mend(t.Group, agent))
}

// MaxInput bounds the input, in bytes of JSON.
func (a *Admitted) MaxInput() int64 { return cmp.Or(a.c.Tool.MaxInput, DefaultInput) }

// Refuse ends the call for a reason of the transport's, which is written down.
func (a *Admitted) Refuse(ctx context.Context, r *deny.Reason) *deny.Reason {
	return a.d.refuse(ctx, a.c, r)
}

// Serve does the call by f instead of its tool, for a transport that gives the
// answer in a form of its own, as a stream. The call is on record before f runs.
func (a *Admitted) Serve(ctx context.Context, input []byte, f func(*Call) error) *deny.Reason {
	_, reason := a.run(Streamed(ctx), input, func(ctx context.Context, c *Call) (any, error) {
		if err := c.Begin(ctx); err != nil {
			return nil, err
		}
		return struct{}{}, f(c)
	})
	return reason
}

// Run does the call.
func (a *Admitted) Run(ctx context.Context, input []byte) (json.RawMessage, *deny.Reason) {
	return a.run(ctx, input, a.c.Tool.Run)
}

func (a *Admitted) run(ctx context.Context, input []byte, do func(context.Context, *Call) (any, error)) (json.RawMessage, *deny.Reason) {
	d, c, t := a.d, a.c, a.c.Tool
	if n := a.MaxInput(); int64(len(input)) > n {
		return nil, d.refuse(ctx, c, TooLarge(t.Name, n))
	}
	in, reason := t.Parse(input)
	if reason != nil {
		return nil, d.refuse(ctx, c, reason)
	}
	ctx = WithQuota(ctx, c.Caller.Quota) // also of what the gate keeps
	c.In, c.shown = in, d.shower.show(t.Fields, in)
	if d.cfg.Gate != nil && !a.approved {
		if reason := a.ask(ctx, input); reason != nil {
			return nil, reason
		}
	}
	out, err := safely(ctx, c, do)
	if errors.As(err, &reason) {
		bound(reason)
	}
	a.touched = c.touched(err)
	var answer json.RawMessage
	if written, ok := out.(Answer); ok {
		answer = json.RawMessage(written)
	} else if err == nil {
		answer, err = json.Marshal(out)
	}
	if werr := c.outcome(ctx, err); werr != nil {
		d.cfg.Log.ErrorContext(ctx, "a call could not be written down", "tool", t.Name, "error", werr)
		return nil, unwritten(t.Name)
	}
	if err == nil {
		if d.cfg.Seen.Present() {
			d.cfg.Seen.Tell(c.record(record.Allowed, nil))
		}
		return answer, nil
	}
	if errors.As(err, &reason) {
		return nil, reason
	}
	d.cfg.Log.ErrorContext(ctx, "a tool failed", "tool", t.Name, "error", err)
	return nil, Refuse(deny.ToolFailed, t.Name, "the tool failed; the operator's log says why", "try again; if it fails again, tell the operator")
}

// ask asks the gate, and writes its reason down unless it did.
func (a *Admitted) ask(ctx context.Context, input []byte) *deny.Reason {
	by, reason := a.d.cfg.Gate.Pass(ctx, a.c, input, ctx.Value(streamedKey{}) == nil)
	if reason == nil {
		a.c.by = by
		return nil
	}
	a.c.mu.Lock()
	written := a.c.taken
	a.c.mu.Unlock()
	if written {
		return reason
	}
	return a.d.refuse(ctx, a.c, reason)
}

// safely makes a panic of the tool an error: it ends one call and not the
// gateway.
func safely(ctx context.Context, c *Call, do func(context.Context, *Call) (any, error)) (out any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return do(ctx, c)
}

// TooLarge is the refusal of an input of more than n bytes.
func TooLarge(what string, n int64) *deny.Reason {
	return Refuse(deny.ToolTooLarge, what, fmt.Sprintf("the input has more than %d bytes", n), "send less at once; a file of up to 100 MiB goes by PUT /v1/files/PATH (docs/contracts/tools.md)")
}

// bound leaves as many failing fields as are worth reading: a reason is kept in
// records, and an input of some MiB may have a fault in each of its names.
func bound(r *deny.Reason) {
	r.Fields = r.Fields[:min(len(r.Fields), MaxFaults)]
	if r.Kept != nil {
		bound(r.Kept)
	}
}

// refuse writes a denial down before it is answered.
func (d *Dispatcher) refuse(ctx context.Context, c *Call, r *deny.Reason) *deny.Reason {
	bound(r)
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
