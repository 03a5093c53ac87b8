package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/execution"
	"bulkhead/internal/gateway/messages"
	"bulkhead/internal/govern"
	"bulkhead/internal/primitive/event"
	"bulkhead/internal/primitive/mem"
	primitivenet "bulkhead/internal/primitive/net"
	"bulkhead/internal/primitive/notify"
	"bulkhead/internal/primitive/proc"
	"bulkhead/internal/primitive/storage"
	"bulkhead/internal/primitive/vec"
	"bulkhead/internal/record"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
	"bulkhead/internal/topic/client"
)

// means is what a group of tools is made with.
type means struct {
	cfg      *Config
	store    *store.Store
	storage  *storage.Budget // see [means.budget]
	log      *record.Log
	messages *messages.Messages // nil: the agent has none
	// dial reaches what the manifest lists, and nothing else; resolve gives the
	// addresses that it would connect to.
	dial    func(ctx context.Context, host string, port uint16) (net.Conn, error)
	resolve func(ctx context.Context, host string, port uint16) ([]netip.Addr, error)
	policy  func() *dial.Policy
	// decided hears of each decision about egress.
	decided func(target string, v record.Verdict, r *deny.Reason)
	// call calls a tool as somebody, once all groups are open.
	call proc.Caller
	// still says whether who called before may still.
	still func(who tool.Caller) error
	// calls is the table, once all groups are open.
	calls func() *tool.Dispatcher
	// undo is what the groups before have of it.
	undo map[string]execution.Undoer
	// asking hears that other calls wait for a person than before.
	asking func()
}

// group is the tools of one group, and how they end; close may be nil.
type group struct {
	tools  []tool.Tool
	close  func() error
	stream *event.Events // of events alone

	// undo takes back what tools did, by their names.
	undo map[string]execution.Undoer

	// Of executions alone.
	executions   *execution.Executions
	book         *govern.Book
	destinations *govern.Destinations // nil: none is asked for
}

// groups makes the tools: one row for each group that a gateway serves. A row
// is used when the manifest allows any of its tools.
var groups = []struct {
	name tool.Group
	open func(context.Context, *means) (group, error)
}{
	{tool.Memory, func(ctx context.Context, m *means) (group, error) {
		g, err := mem.Open(ctx, m.store)
		if err != nil {
			return group{}, err
		}
		u, words := execution.Undoer{InStore: g.Undo}, execution.Undoer{InStore: g.UndoMemory}
		return group{tools: g.Tools(), undo: map[string]execution.Undoer{
			"mem_set": u, "mem_delete": u, "mem_incr": u, "mem_expire": u, "mem_remember": words, "mem_forget": words,
		}}, nil
	}},
	{tool.Vectors, func(ctx context.Context, m *means) (group, error) {
		g, err := vec.Open(ctx, m.store)
		if err != nil {
			return group{}, err
		}
		u := execution.Undoer{InStore: g.Undo}
		return group{tools: g.Tools(), undo: map[string]execution.Undoer{"vec_upsert": u, "vec_delete": u}}, nil
	}},
	{tool.Files, openFiles},
	{tool.SQL, openSQL},
	{tool.Events, func(ctx context.Context, m *means) (group, error) {
		public, end := m.topics()
		g, err := event.Open(ctx, m.store, public)
		if err != nil {
			return group{}, errors.Join(err, end())
		}
		return group{tools: g.Tools(), stream: g, close: end}, nil
	}},
	{tool.Network, func(_ context.Context, m *means) (group, error) {
		n := primitivenet.New(primitivenet.Config{Policy: m.policy, Dial: m.dial, Resolve: m.resolve, Record: m.decided})
		return group{tools: n.List(), close: func() error { n.Close(); return nil }}, nil
	}},
	{tool.Code, openCode},
	{tool.Notices, func(_ context.Context, m *means) (group, error) {
		n := notify.New(notify.Config{Team: m.cfg.Team, Agent: m.cfg.Agent, Webhooks: m.cfg.Tools.Webhooks, Log: m.log, Dial: m.dial})
		return group{tools: n.Tools()}, nil
	}},
	{tool.Talk, func(_ context.Context, m *means) (group, error) { return group{tools: m.messages.Tools()}, nil }},
	{tool.Executions, openExecutions}, // the last: what it calls ends after it
}

// topics is the way to the team's public topics, and how it ends; nil when the
// team has none.
func (m *means) topics() (public *client.Client, end func() error) {
	if m.cfg.Topics == nil {
		return nil, func() error { return nil }
	}
	public = client.New(client.Config{Socket: m.cfg.Topics.Socket, Token: m.cfg.Topics.Token, Trouble: func(err error) {
		r := tool.Refuse(deny.ToolUnavailable, "topics.sock", err.Error(), "`bulkhead status` shows whether the server of public topics runs")
		m.log.Add(m.cfg.Agent, record.Tool, "topics.sock", record.Failed, r)
	}})
	return public, public.Close
}

// formerTasks held what proc_schedule keeps before system.db did, in Config.Data.
const formerTasks = "tasks.json"

// openCode opens the tools that run code, and begins to call what is scheduled.
func openCode(ctx context.Context, m *means) (group, error) {
	tasks, err := proc.OpenTasks(ctx, m.store, filepath.Join(m.cfg.Data, formerTasks))
	if err != nil {
		return group{}, err
	}
	_, _, output := m.cfg.Tools.CodeLimits()
	p := proc.New(proc.Config{
		Output: int(output),
		Socket: m.cfg.CodeSocket, Tasks: tasks, Call: m.call, Good: m.still,
		Check: func(name string, input []byte, who tool.Caller) *deny.Reason {
			if calls := m.calls(); calls != nil {
				return calls.Check(name, input, who)
			}
			return nil // seen when its time comes
		},
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }() // close waits for it
	return group{tools: p.List(), close: func() error {
		cancel()
		err := <-ended
		p.Close()
		return err
	}}, nil
}
