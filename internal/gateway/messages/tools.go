package messages

import (
	"context"
	"encoding/json"
	"regexp"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/draftkey"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/deny"
	"bulkhead/internal/tool"
)

// maxReceiveWait is how long msg_receive waits at most, in seconds.
const maxReceiveWait = 60

// Tools are messages as tools (docs/contracts/tools.md). Their rules are those
// of the REST endpoints, which they share.
func (m *Messages) Tools() []tool.Tool {
	channel := tool.Field{Name: "channel", Type: tool.String, Min: 1, Max: 128, Shown: true, Doc: "A channel, as msg_channels lists them"}
	from := channel
	from.Doc = "Only from this channel"
	needed := channel
	needed.Required = true
	limit := tool.Field{Name: "limit", Type: tool.Integer, Min: 1, Max: 1000, Default: int64(100), Doc: "How many at most"}
	all := []tool.Tool{
		{
			Name: "msg_send", Effect: true, Run: m.toolSend, MaxInput: maxSingle,
			Summary: "Send a message to an agent or to a channel. It is on disk when this answers.",
			Fields: []tool.Field{
				{Name: "to", Type: tool.String, Min: 1, Max: 128, Shown: true, Doc: "An agent's name; either this or channel"},
				{Name: "channel", Type: tool.String, Min: 1, Max: 128, Shown: true, Doc: "A channel; either this or to"},
				{
					Name: "type", Type: tool.String, Required: true, Max: 64, Shown: true, Doc: "What kind of message it is, like task_assignment",
					Pattern: regexp.MustCompile(`[a-z][a-z0-9_]*`), PatternDoc: "a type is a small letter and then small letters, digits and underscores",
				},
				{Name: "body", Type: tool.Any, Required: true, Max: adapter.MaxBody, Doc: "Any JSON value"},
				{Name: "priority", Type: tool.String, Enum: []string{string(adapter.Low), string(adapter.Normal), string(adapter.High)}, Default: string(adapter.Normal), Shown: true},
				{Name: "reply_to_sequence_id", Aliases: []string{"reply_to"}, Type: tool.Integer, Min: 1, Max: 1 << 53, Doc: "The message of the same channel that it answers"},
				{
					Name: "idempotency_key", Type: tool.String, Min: 36, Max: 36, Shown: true, Doc: "A UUID: the same one again sends nothing twice. One is made when it is left out",
					Pattern: regexp.MustCompile(`[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`), PatternDoc: "it is not a UUID like 6ba7b810-9dad-41d1-80b4-00c04fd430c8",
				},
			},
		},
		{
			Name: "msg_receive", Effect: true, Run: m.toolReceive,
			Summary: "Take messages that wait for this agent. Each comes with a lease, and comes again unless msg_ack is called before the lease ends.",
			Fields: []tool.Field{
				{Name: "max", Aliases: []string{"limit"}, Type: tool.Integer, Min: 1, Max: 100, Default: int64(10), Doc: "How many at most"},
				{Name: "wait", Type: tool.Integer, Min: 0, Max: maxReceiveWait, Default: int64(0), Doc: "Seconds to wait for the first"},
				{Name: "lease", Type: tool.Integer, Min: 1, Max: 3600, Default: int64(30), Doc: "Seconds that the lease lasts"},
				from,
			},
		},
		{
			Name: "msg_ack", Effect: true, Run: m.toolAck, Summary: "Say that messages were dealt with, by their leases.",
			Fields: []tool.Field{{
				Name: "leases", Type: tool.Array, Required: true, Min: 1, Max: maxLeases, Items: &tool.Field{Type: tool.String, Min: 1, Max: 256}, Doc: "Leases of msg_receive",
			}},
		},
		{
			Name: "msg_thread", Run: m.toolThread, Summary: "Read a message of a channel and everything that answers it, in order.",
			Fields: []tool.Field{
				needed,
				{Name: "channel_sequence_id", Aliases: []string{"sequence"}, Type: tool.Integer, Required: true, Min: 1, Max: 1 << 53, Doc: "The message"},
				{Name: "after", Type: tool.Integer, Min: 0, Max: 1 << 53, Doc: "The last message of the page before"},
				limit,
			},
		},
		{
			Name: "msg_replay", Run: m.toolReplay, Summary: "Read a channel again from a message on. Nothing is acknowledged by it.",
			Fields: []tool.Field{needed, {Name: "from_sequence_id", Aliases: []string{"from"}, Type: tool.Integer, Min: 1, Max: 1 << 53, Default: int64(1), Doc: "The first message"}, limit},
		},
		{Name: "msg_channels", Run: m.toolChannels, Summary: "List the channels that this agent may read or write."},
		{
			Name: "msg_channel_request", Effect: true, Run: m.toolRequest,
			Summary: "Ask that an agent joins or leaves a channel. Only the orchestrator may ask; a person decides, and the answer comes as a message of type channel_decided.",
			Fields: []tool.Field{
				{Name: "channel", Type: tool.String, Required: true, Min: 1, Max: 64, Shown: true, Doc: "A channel of the manifest"},
				{Name: "agent", Type: tool.String, Required: true, Min: 1, Max: 64, Shown: true, Doc: "Who joins or leaves"},
				{Name: "change", Type: tool.String, Required: true, Enum: []string{string(adapter.Join), string(adapter.Leave)}, Shown: true},
				{Name: "reason", Type: tool.String, Required: true, Min: 1, Max: adapter.MaxReason, Doc: "Why, for the person who decides"},
			},
		},
	}
	for i := range all {
		all[i].Group = tool.Talk
	}
	return all
}

func count(n int64) uint64 { return uint64(max(n, 0)) } // #nosec G115 -- not negative

func (m *Messages) toolSend(ctx context.Context, c *tool.Call) (any, error) {
	d := adapter.Draft{
		IdempotencyKey: c.In.String("idempotency_key"), To: c.In.String("to"), Channel: c.In.String("channel"), Type: adapter.Type(c.In.String("type")),
		Priority: adapter.Priority(c.In.String("priority")), ReplyTo: count(c.In.Int("reply_to_sequence_id")), Body: c.In.Raw("body"),
	}
	if d.IdempotencyKey == "" {
		d.IdempotencyKey = draftkey.New()
	}
	if fields := check(&d); len(fields) > 0 {
		r := tool.Refuse(deny.ToolInvalid, c.What(), "the message does not fit", "send the fields that tools/list shows for it")
		r.Fields = fields
		return nil, r
	}
	if err := c.Begin(ctx); err != nil {
		return nil, err
	}
	o := m.send(ctx, d)
	switch {
	case o.Err != nil:
		return nil, reasonFor(c.What(), o.Err)
	case o.queued:
		return Queued{IdempotencyKey: d.IdempotencyKey, Outbox: true}, nil
	}
	return json.RawMessage(protocol.AppendResult(nil, &o.SendResult)), nil
}

// adapterFor is the adapter, or the refusal when it is away.
func (m *Messages) adapterFor(what string) (adapter.Service, error) {
	conn, _ := m.link.get()
	if conn == nil {
		return nil, unavailable(what, errAway.Error()+"; what was queued is kept")
	}
	return conn, nil
}

func (m *Messages) toolReceive(ctx context.Context, c *tool.Call) (any, error) {
	all, missing, err := m.await(ctx, c.What(), adapter.ReceiveRequest{
		Max: int(c.In.Int("max")), Wait: time.Duration(c.In.Int("wait")) * time.Second, Lease: time.Duration(c.In.Int("lease")) * time.Second, Channel: c.In.String("channel"),
	})
	if err != nil {
		return nil, reasonFor(c.What(), err)
	}
	return json.RawMessage(appendReceived(nil, all, missing)), nil
}

func (m *Messages) toolAck(ctx context.Context, c *tool.Call) (any, error) {
	s, err := m.adapterFor(c.What())
	if err != nil {
		return nil, err
	}
	if err := c.Begin(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
	defer cancel()
	leases := c.In.Strings("leases")
	errs := m.ack(ctx, s, leases)
	out := Items{make([]Item, len(errs))}
	for i, err := range errs {
		if err != nil {
			out.Results[i] = refusedItem(reasonFor(c.What(), err))
			continue
		}
		out.Results[i].Status = 200
		m.watch.settled(leases[i])
	}
	return out, nil
}

func (m *Messages) toolThread(ctx context.Context, c *tool.Call) (any, error) {
	return m.toolPage(c, func(s adapter.Service) (adapter.Page, error) {
		return s.Thread(ctx, m.cfg.Agent, adapter.ThreadRequest{
			Channel: c.In.String("channel"), Sequence: count(c.In.Int("channel_sequence_id")), Limit: int(c.In.Int("limit")), After: count(c.In.Int("after")),
		})
	})
}

func (m *Messages) toolReplay(ctx context.Context, c *tool.Call) (any, error) {
	return m.toolPage(c, func(s adapter.Service) (adapter.Page, error) {
		return s.Replay(ctx, m.cfg.Agent, adapter.ReplayRequest{Channel: c.In.String("channel"), From: count(c.In.Int("from_sequence_id")), Limit: int(c.In.Int("limit"))})
	})
}

func (m *Messages) toolPage(c *tool.Call, read func(adapter.Service) (adapter.Page, error)) (any, error) {
	s, err := m.adapterFor(c.What())
	if err != nil {
		return nil, err
	}
	p, err := read(s)
	if err != nil {
		return nil, reasonFor(c.What(), err)
	}
	return json.RawMessage(protocol.AppendPage(nil, &p)), nil
}

func (m *Messages) toolChannels(ctx context.Context, c *tool.Call) (any, error) {
	s, err := m.adapterFor(c.What())
	if err != nil {
		return nil, err
	}
	l, err := s.Channels(ctx, m.cfg.Agent)
	if err != nil {
		return nil, reasonFor(c.What(), err)
	}
	if l == nil {
		l = []adapter.ChannelState{}
	}
	return Channels{l}, nil
}
