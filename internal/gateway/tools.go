package gateway

import (
	"context"
	"net"

	"bulkhead/internal/gateway/messages"
	"bulkhead/internal/primitive/event"
	"bulkhead/internal/primitive/mem"
	"bulkhead/internal/primitive/notify"
	"bulkhead/internal/primitive/storage"
	"bulkhead/internal/primitive/vec"
	"bulkhead/internal/record"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
)

// means is what a group of tools is made with.
type means struct {
	cfg      *Config
	store    *store.Store
	storage  *storage.Budget // see [means.budget]
	log      *record.Log
	messages *messages.Messages // nil: the agent has none
	// dial reaches what the manifest lists, and nothing else.
	dial func(ctx context.Context, host string, port uint16) (net.Conn, error)
}

// group is the tools of one group, and how they end; close may be nil.
type group struct {
	tools  []tool.Tool
	close  func() error
	stream *event.Events // of events alone
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
		return group{tools: g.Tools()}, nil
	}},
	{tool.Vectors, func(ctx context.Context, m *means) (group, error) {
		g, err := vec.Open(ctx, m.store)
		if err != nil {
			return group{}, err
		}
		return group{tools: g.Tools()}, nil
	}},
	{tool.Files, openFiles},
	{tool.SQL, openSQL},
	{tool.Events, func(ctx context.Context, m *means) (group, error) {
		g, err := event.Open(ctx, m.store)
		if err != nil {
			return group{}, err
		}
		return group{tools: g.Tools(), stream: g}, nil
	}},
	{tool.Notices, func(_ context.Context, m *means) (group, error) {
		n := notify.New(notify.Config{Team: m.cfg.Team, Agent: m.cfg.Agent, Webhooks: m.cfg.Tools.Webhooks, Log: m.log, Dial: m.dial})
		return group{tools: n.Tools()}, nil
	}},
	{tool.Talk, func(_ context.Context, m *means) (group, error) { return group{tools: m.messages.Tools()}, nil }},
}
