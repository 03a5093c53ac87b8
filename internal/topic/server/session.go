package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	frames "bulkhead/internal/adapter/protocol"
	"bulkhead/internal/deny"
	"bulkhead/internal/hub"
	"bulkhead/internal/record"
	"bulkhead/internal/topic"
	"bulkhead/internal/topic/protocol"
	"bulkhead/internal/wire"
)

// newsPause is the least time between two pieces of news on a connection: what
// is published meanwhile is one.
const newsPause = 5 * time.Millisecond

// session is one connection of a gateway that proved itself.
type session struct {
	*Server
	member hub.Member
	c      *frames.Conn

	fresh chan struct{} // has a token when news waits
	mu    sync.Mutex    // guards heard
	heard map[string]bool
}

// Member serves one connection until it ends.
func (s *Server) Member(ctx context.Context, m hub.Member, w *wire.Conn) {
	conn, err := frames.NewConn(w)
	if err != nil {
		return // the hub closes it
	}
	x := &session{Server: s, member: m, c: conn, fresh: make(chan struct{}, 1), heard: map[string]bool{}}
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	stop := context.AfterFunc(ctx, func() { _ = x.c.Close() })
	defer stop()
	defer work.Wait()
	defer func() { _ = x.c.Close() }()
	defer cancel()
	defer s.seat(x)()
	work.Go(func() { x.tell(ctx) })
	part := s.shareOf(m)
	for {
		q, err := x.c.Read()
		if err != nil {
			return
		}
		give, err := part.take(ctx, len(q.Body))
		if err != nil {
			return
		}
		work.Go(func() {
			defer give()
			if q.Verb == protocol.VerbRead {
				if part.reads.Acquire(ctx, 1) != nil {
					return // the connection has ended
				}
				defer part.reads.Release(1)
			}
			x.answer(ctx, q)
		})
	}
}

// answer does one request. Whatever comes of it, it is answered.
func (x *session) answer(ctx context.Context, m wire.Message) {
	verb, out, err := x.do(ctx, m)
	if err == nil {
		err = x.c.Write(m.ID, verb, frames.Body(out))
		if !errors.Is(err, wire.ErrFrame) {
			return // nil, or the connection's, whose end shows in the next read
		}
	}
	var r *deny.Reason
	if errors.As(err, &r) {
		if r.Code == deny.ToolNotAllowed {
			x.log.AddOf(x.member.Team, x.member.Agent, record.Tool, x.member.Team+": "+m.Verb+" "+r.What, record.Denied, r)
		}
		_ = x.c.Write(m.ID, protocol.VerbDenied, frames.Body(r))
		return
	}
	_ = x.c.Write(m.ID, wire.VerbError, frames.Body(wire.Failure{Message: err.Error(), Exit: wire.ExitFailed}))
}

// do decides and does one request.
func (x *session) do(ctx context.Context, m wire.Message) (verb string, out any, err error) {
	open, policy, done, err := x.using(x.member.Team)
	if err != nil {
		return "", nil, err
	}
	defer done()
	agent := x.member.Agent
	switch m.Verb {
	case protocol.VerbPublish:
		var q protocol.Publish
		if err := decode(m, &q); err != nil {
			return "", nil, err
		}
		if err := may(policy, agent, topic.Publish, q.Topic); err != nil {
			return "", nil, err
		}
		out, err := open.Publish(ctx, agent, policy[q.Topic].Storage, q)
		if err == nil {
			x.published(x.member.Team, q.Topic)
		}
		return protocol.VerbPublished, out, err
	case protocol.VerbRead:
		return reading(ctx, policy, agent, m, protocol.VerbMessages, func(q protocol.Read) string { return q.Topic }, open.Read)
	case protocol.VerbSubscribe:
		return reading(ctx, policy, agent, m, protocol.VerbSubscribed, func(q protocol.Subscribe) string { return q.Topic },
			func(ctx context.Context, agent string, q protocol.Subscribe) (protocol.Subscribed, error) {
				return open.Subscribe(ctx, agent, func(name string) bool { return policy.May(agent, topic.Read, name) }, q)
			})
	case protocol.VerbUnsubscribe:
		return reading(ctx, policy, agent, m, protocol.VerbUnsubscribed, func(q protocol.Subscription) string { return q.Topic }, open.Unsubscribe)
	case protocol.VerbList:
		out, err := topicsOf(ctx, open, policy, agent)
		return protocol.VerbTopics, out, err
	}
	return "", nil, invalid(m.Verb, "there is no such request")
}

// reading does what is for who may read a topic.
func reading[Q, R any](ctx context.Context, p topic.Policy, agent string, m wire.Message, verb string, of func(Q) string, do func(context.Context, string, Q) (R, error)) (string, any, error) {
	var q Q
	if err := decode(m, &q); err != nil {
		return "", nil, err
	}
	if err := may(p, agent, topic.Read, of(q)); err != nil {
		return "", nil, err
	}
	out, err := do(ctx, agent, q)
	return verb, out, err
}

// may is [topic.Policy.Refusal] as an error, which a nil one must not become.
func may(p topic.Policy, agent string, right topic.Right, name string) error {
	if r := p.Refusal(agent, right, name); r != nil {
		return r
	}
	return nil
}

func decode(m wire.Message, into any) error {
	if err := json.Unmarshal(m.Body, into); err != nil {
		return invalid(m.Verb, "it does not decode: "+err.Error())
	}
	return nil
}

func invalid(verb, why string) *deny.Reason {
	return &deny.Reason{Layer: deny.LayerTools, Code: deny.ToolInvalid, What: fmt.Sprintf("%.40q", verb), Why: why, Mend: "send what docs/contracts/protocols.md says"}
}

// hear takes note that something was published. It never waits: who publishes
// calls it.
func (x *session) hear(name string) {
	x.mu.Lock()
	x.heard[name] = true
	x.mu.Unlock()
	select {
	case x.fresh <- struct{}{}:
	default:
	}
}

// tell sends the news until ctx ends.
func (x *session) tell(ctx context.Context) {
	for {
		select {
		case <-x.fresh:
		case <-ctx.Done():
			return
		}
		x.mu.Lock()
		news := protocol.News{Topics: slices.Sorted(maps.Keys(x.heard))}
		clear(x.heard)
		x.mu.Unlock()
		if x.c.Write(0, protocol.VerbNews, frames.Body(news)) != nil {
			return
		}
		timer := time.NewTimer(newsPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}
