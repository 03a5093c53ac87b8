package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/execution"
	"bulkhead/internal/govern"
	"bulkhead/internal/primitive/event"
	"bulkhead/internal/record"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
	"bulkhead/internal/tool/toolname"
)

// systemDB is the agent's store, in Config.Data.
const systemDB = "system.db"

// toolbox has the agent's tools. They are opened with the gateway when the
// manifest gives it tools, and with the first call when it has those of
// messages alone: many agents never use them.
type toolbox struct {
	means means
	seen  *record.Audience // of calls

	mu     sync.Mutex
	closed bool
	set    *toolset // nil: not open
}

// toolset is the tools, opened.
type toolset struct {
	store  *store.Store
	calls  *tool.Dispatcher
	mcp    *mcpDoor
	events *event.Events // nil: the agent has no such tools

	// nil: no call is kept for later.
	executions   *execution.Executions
	book         *govern.Book
	destinations *govern.Destinations // nil: none is asked for
	ends         []func() error
}

// has says whether there can be any tool.
func (b *toolbox) has() bool {
	return b.means.cfg.Data != "" && (b.means.cfg.Tools != nil || b.means.messages != nil)
}

// allowed are the groups and names that this agent may call.
func (b *toolbox) allowed() []string {
	out := b.means.cfg.Tools.Allowed()
	if b.means.messages != nil {
		out = append(out, string(tool.Talk))
	}
	if b.means.cfg.Ask != nil && !slices.Contains(out, string(tool.Executions)) {
		out = append(out, string(tool.Executions)) // what waits has to be seen
	}
	return out
}

// get opens the tools when they are not open yet. What fails is tried again by
// the next call: a gateway before this one may not have ended yet.
func (b *toolbox) get(ctx context.Context) (*toolset, *deny.Reason) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.set != nil:
		return b.set, nil
	case b.closed:
		return nil, away("the gateway is stopping", "")
	case !b.has():
		return nil, tool.Refuse(deny.ToolNotAllowed, "tools", "the manifest gives this agent no tools", "add tools: {allow: [mem]} to agents."+b.means.cfg.Agent+" in bulkhead.yaml")
	}
	set, err := b.open(context.WithoutCancel(ctx))
	if err != nil {
		reason := away("the tools' store cannot be opened: "+err.Error(), "")
		if errors.Is(err, store.ErrDamaged) {
			reason = away("the tools' store is damaged", "the operator moves "+systemDB+" of this agent's gateway away (`bulkhead stop`, then its data folder); what can be read of it stays readable with sqlite3 .recover")
		}
		b.means.log.Add(b.means.cfg.Agent, record.Tool, systemDB, record.Failed, reason)
		return nil, reason
	}
	b.set = set
	return set, nil
}

// refused writes down what was refused before it was a call of a tool. While the tools
// are not open the log alone has it: nothing is opened for a stranger.
func (b *toolbox) refused(ctx context.Context, who tool.Caller, kind record.Kind, target string, r *deny.Reason) {
	b.means.log.Add(who.Agent, kind, target, record.Denied, r)
	b.mu.Lock()
	set := b.set
	b.mu.Unlock()
	if set == nil {
		return
	}
	// What cannot be written is refused all the same, and the store logs that it cannot.
	_ = set.store.Write(context.WithoutCancel(ctx), record.Record{
		SchemaVersion: record.SchemaVersion, Time: time.Now().UTC(), Team: who.Team, Agent: who.Agent, Kind: kind, Verdict: record.Denied,
		Target: target, Token: who.Token, Reason: r.ForRecord(),
	})
}

// recent gives the outcomes of calls that are still kept; none when no tool was
// ever called.
func (b *toolbox) recent(ctx context.Context, since time.Time, max int) (out []record.Record, more bool, err error) {
	if !b.has() {
		return nil, false, nil
	}
	if _, err := os.Stat(filepath.Join(b.means.cfg.Data, systemDB)); errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	set, reason := b.get(ctx)
	if reason != nil {
		return nil, false, reason
	}
	return set.store.Spool().Recent(ctx, since, max)
}

func away(why, mend string) *deny.Reason {
	if mend == "" {
		mend = "try again; when it stays, ask the operator to look at `bulkhead logs AGENT --container gateway`"
	}
	r := tool.Refuse(deny.ToolUnavailable, "tools", why, mend)
	r.RetryAfter = 1
	return r
}

func (b *toolbox) open(ctx context.Context) (_ *toolset, err error) {
	cfg := b.means.cfg
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	sc := store.Config{Path: filepath.Join(cfg.Data, systemDB), Log: log, Audited: cfg.Audit != nil, Spool: cfg.SpoolBytes}
	rate := toolname.DefaultRate
	if cfg.Tools != nil {
		t := cfg.Tools.WithDefaults()
		sc.Quota, rate = t.MemoryBytes, int(t.RatePerMinute)
	}
	st, err := store.Open(ctx, sc)
	if err != nil {
		return nil, err
	}
	set := &toolset{store: st, ends: []func() error{st.Close}}
	defer func() {
		if err != nil {
			err = errors.Join(err, set.close())
		}
	}()
	if cfg.Audit != nil {
		set.ends = append(set.ends, b.audit(st))
	}
	m := b.means
	m.store, m.undo = st, map[string]execution.Undoer{}
	ready := make(chan struct{})
	defer close(ready)
	m.call = func(ctx context.Context, who tool.Caller, name string, input []byte) (json.RawMessage, *deny.Reason) {
		<-ready // it began before the last group was open
		if set.calls == nil {
			return nil, away("the tools could not be opened", "")
		}
		return set.calls.Call(ctx, who, name, input)
	}
	m.calls = func() *tool.Dispatcher { return set.calls }
	allowed := b.allowed()
	var all []tool.Tool
	for _, g := range groups {
		if !slices.ContainsFunc(allowed, func(s string) bool { return s == string(g.name) || toolname.GroupOf(s) == g.name }) {
			continue
		}
		opened, err := g.open(ctx, &m)
		if err != nil {
			return nil, fmt.Errorf("tools of %s: %w", g.name, err)
		}
		all = append(all, opened.tools...)
		if opened.stream != nil {
			set.events = opened.stream
		}
		maps.Copy(m.undo, opened.undo)
		if opened.executions != nil {
			set.executions, set.book, set.destinations = opened.executions, opened.book, opened.destinations
		}
		if opened.close != nil {
			set.ends = append(set.ends, opened.close)
		}
	}
	table, err := tool.NewTable(all...)
	if err != nil {
		return nil, err
	}
	tc := tool.Config{Table: table, Journal: journal{st, b.means.log, cfg.Agent}, Allowed: allowed, Rate: rate, Log: log, Seen: b.seen}
	if cfg.Ask != nil {
		tc.Gate = set.executions
	}
	set.calls = tool.New(tc)
	set.mcp = newDoor(set.calls)
	if set.executions != nil {
		set.executions.Run()
	}
	return set, nil
}

// close ends groups before the store that they use.
func (s *toolset) close() error {
	var errs []error
	for _, end := range slices.Backward(s.ends) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

func (b *toolbox) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.set == nil {
		return nil
	}
	set := b.set
	b.set = nil
	return set.close()
}

// journal keeps records in the agent's store, and shows denials and failures to
// the operator as the other layers do: folded, in the gateway's log.
type journal struct {
	*store.Store
	log   *record.Log
	agent string
}

// Write implements tool.Journal.
func (j journal) Write(ctx context.Context, r record.Record) error {
	if r.Verdict == record.Denied || r.Verdict == record.Failed {
		j.log.Add(j.agent, record.Tool, r.Target, r.Verdict, r.Reason)
	}
	return j.Store.Write(ctx, r)
}
