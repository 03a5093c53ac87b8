package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/deny"
	"bulkhead/internal/jsonscan"
)

// Agent is an adapter.Service for the one agent that the socket and the token
// belong to. The names in calls are not sent: the adapter knows the caller.
type Agent struct{ *conn }

var _ adapter.Service = (*Agent)(nil)

// Dial connects to an agent's socket. A wrong token is a *deny.Reason.
func Dial(ctx context.Context, socket, token string) (*Agent, error) {
	if token == "" {
		return nil, errors.New("adapter: no token")
	}
	c, err := dial(ctx, socket, token)
	if err != nil {
		return nil, err
	}
	return &Agent{c}, nil
}

// frameBudget is how much of a frame the drafts of one request may fill.
const frameBudget = 3 << 20

// Send sends drafts, in as many requests as their size needs, in order.
func (a *Agent) Send(ctx context.Context, _ string, drafts []adapter.Draft) []adapter.SendResult {
	return a.sendAll(ctx, drafts, false)
}

// SendLate is Send for what an outbox accepted before: the sender gets a notice
// of what is refused for good.
func (a *Agent) SendLate(ctx context.Context, drafts []adapter.Draft) []adapter.SendResult {
	return a.sendAll(ctx, drafts, true)
}

func (a *Agent) sendAll(ctx context.Context, drafts []adapter.Draft, late bool) []adapter.SendResult {
	out := make([]adapter.SendResult, 0, len(drafts))
	for len(drafts) > 0 {
		n, size := 0, 0
		for n < len(drafts) && n < adapter.MaxBatch && (n == 0 || size+len(drafts[n].Body) <= frameBudget) {
			size += len(drafts[n].Body) + 512
			n++
		}
		some := a.send(ctx, drafts[:n], late)
		out = append(out, some...)
		drafts = drafts[n:]
		if slices.ContainsFunc(some, func(r adapter.SendResult) bool { return Away(r.Err) }) {
			break // what follows must not overtake it
		}
	}
	for range drafts {
		out = append(out, adapter.SendResult{Err: errBefore})
	}
	return out
}

var errBefore = errors.New("adapter: it did not take a draft before this one")

// Away says whether an error means that the adapter could not say what becomes of a draft.
func Away(err error) bool {
	var r *deny.Reason
	return err != nil && (!errors.As(err, &r) || r.Code == deny.MessageUnavailable)
}

func (a *Agent) send(ctx context.Context, drafts []adapter.Draft, late bool) []adapter.SendResult {
	out := make([]adapter.SendResult, len(drafts))
	fail := func(err error) []adapter.SendResult {
		for i := range out {
			out[i] = adapter.SendResult{Err: err}
		}
		return out
	}
	for i := range drafts {
		if !jsonscan.Valid(drafts[i].Body) {
			return fail(fmt.Errorf("adapter: draft %d of %d: the body is not JSON", i+1, len(drafts)))
		}
	}
	var text json.RawMessage
	err := a.ask(ctx, protocol.VerbSend, func(b []byte) []byte { return protocol.AppendDrafts(b, drafts, late) }, protocol.VerbSent, &text)
	var sent protocol.Sent
	if err == nil {
		sent, err = protocol.ReadSent(text)
	}
	if err == nil && len(sent.Results) != len(drafts) {
		err = fmt.Errorf("adapter: %d results for %d drafts", len(sent.Results), len(drafts))
	}
	if err != nil {
		return fail(err)
	}
	for i, r := range sent.Results {
		out[i] = r.SendResult
		out[i].Err = r.Refused.Err()
	}
	return out
}

// Receive leases messages. When ctx ends while it waits, nothing is leased, or
// what just was is given back.
func (a *Agent) Receive(ctx context.Context, _ string, q adapter.ReceiveRequest) ([]adapter.Delivery, error) {
	r, err := a.start(protocol.VerbReceive, protocol.Body(q))
	if err != nil {
		return nil, err
	}
	m, err := r.next(ctx)
	if err != nil && ctx.Err() != nil {
		go a.abandon(r) // #nosec G118 -- the request is over; the connection's end ends it
		return nil, err
	}
	defer r.end()
	var all []adapter.Delivery
	for {
		if err != nil {
			return nil, err
		}
		var part protocol.Deliveries
		if err := protocol.Answer(m, protocol.VerbDeliveries, who, &part); err != nil {
			return nil, err
		}
		all = append(all, part.Deliveries...)
		if !part.More {
			return all, nil
		}
		m, err = r.next(context.WithoutCancel(ctx)) // they are leased: take them
	}
}

// abandon ends the wait of a receive that nobody waits for any more.
func (a *Agent) abandon(r *call) {
	defer r.end()
	_ = a.c.Write(0, protocol.VerbCancel, protocol.Body(protocol.Cancel{ID: r.id}))
	for {
		m, err := r.next(context.Background()) // the connection's end ends it
		if err != nil {
			return
		}
		var part protocol.Deliveries
		if protocol.Answer(m, protocol.VerbDeliveries, who, &part) != nil {
			return
		}
		back := make([]adapter.Refusal, 0, len(part.Deliveries))
		for _, d := range slices.Backward(part.Deliveries) { // the first would void the others' leases
			back = append(back, adapter.Refusal{Lease: d.Lease})
		}
		if len(back) > 0 {
			_ = a.settle(context.Background(), protocol.VerbRefuse, len(back), func(from, to int) any { return protocol.Refuse{Refusals: back[from:to], Untaken: true} })
		}
		if !part.More {
			return
		}
	}
}

// Ack ends deliveries.
func (a *Agent) Ack(ctx context.Context, _ string, leases []string) []error {
	return a.settle(ctx, protocol.VerbAck, len(leases), func(from, to int) any { return protocol.Leases{Leases: leases[from:to]} })
}

// Refuse gives deliveries back.
func (a *Agent) Refuse(ctx context.Context, _ string, q []adapter.Refusal) []error {
	return a.settle(ctx, protocol.VerbRefuse, len(q), func(from, to int) any { return protocol.Refuse{Refusals: q[from:to]} })
}

// Extend keeps deliveries for longer.
func (a *Agent) Extend(ctx context.Context, _ string, leases []string, d time.Duration) []error {
	return a.settle(ctx, protocol.VerbExtend, len(leases), func(from, to int) any { return protocol.Leases{Leases: leases[from:to], Duration: d} })
}

// settle asks about n leases, in as many requests as the adapter takes.
func (a *Agent) settle(ctx context.Context, verb string, n int, part func(from, to int) any) []error {
	out := make([]error, n)
	for from := 0; from < n; from += adapter.MaxBatch {
		to := min(from+adapter.MaxBatch, n)
		var s protocol.Settled
		err := a.ask(ctx, verb, protocol.Body(part(from, to)), protocol.VerbSettled, &s)
		if err == nil && len(s.Results) != to-from {
			err = fmt.Errorf("adapter: %d answers for %d leases", len(s.Results), to-from)
		}
		for i := from; i < to; i++ {
			if out[i] = err; err == nil {
				out[i] = s.Results[i-from].Err()
			}
		}
	}
	return out
}

// Thread reads a thread.
func (a *Agent) Thread(ctx context.Context, _ string, q adapter.ThreadRequest) (adapter.Page, error) {
	var p adapter.Page
	err := a.ask(ctx, protocol.VerbThread, protocol.Body(q), protocol.VerbPage, &p)
	return p, err
}

// Replay reads a channel.
func (a *Agent) Replay(ctx context.Context, _ string, q adapter.ReplayRequest) (adapter.Page, error) {
	var p adapter.Page
	err := a.ask(ctx, protocol.VerbReplay, protocol.Body(q), protocol.VerbPage, &p)
	return p, err
}

// Missed reads what of a channel the agent was never handed. When ctx ends, the
// adapter stops reading.
func (a *Agent) Missed(ctx context.Context, _ string, q adapter.MissedRequest) (adapter.Missed, error) {
	var out adapter.Missed
	r, err := a.start(protocol.VerbMissed, protocol.Body(q))
	if err != nil {
		return out, err
	}
	defer r.end()
	m, err := r.next(ctx)
	if err != nil {
		if ctx.Err() != nil {
			_ = a.c.Write(0, protocol.VerbCancel, protocol.Body(protocol.Cancel{ID: r.id}))
		}
		return out, err
	}
	err = protocol.Answer(m, protocol.VerbMissing, who, &out)
	return out, err
}

// RequestMembership asks an operator for another membership.
func (a *Agent) RequestMembership(ctx context.Context, _ string, q adapter.ChannelRequest) (adapter.MembershipRequest, error) {
	var r adapter.MembershipRequest
	err := a.ask(ctx, protocol.VerbRequest, protocol.Body(q), protocol.VerbRequested, &r)
	return r, err
}

// Channels lists channels.
func (a *Agent) Channels(ctx context.Context, _ string) ([]adapter.ChannelState, error) {
	var l protocol.Channels
	err := a.ask(ctx, protocol.VerbChannels, protocol.Body(struct{}{}), protocol.VerbChannelList, &l)
	return l.Channels, err
}
