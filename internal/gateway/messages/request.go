package messages

import (
	"context"
	"fmt"
	"net/http"

	"bulkhead/internal/adapter"
	"bulkhead/internal/record"
	"bulkhead/internal/tool"
)

// serveRequest takes a request for another membership of a channel to the
// adapter, which knows who may ask. 201: it waits for an operator. 200: it did already.
func (m *Messages) serveRequest(w http.ResponseWriter, r *http.Request) {
	var q adapter.ChannelRequest
	err := m.decode(w, r, &q)
	var out adapter.MembershipRequest
	if err == nil {
		var s adapter.Service
		if s, err = m.service(r); err == nil {
			out, err = m.request(r.Context(), s, q)
		}
	}
	if err != nil {
		m.fail(w, r, err)
		return
	}
	status := http.StatusCreated
	if out.Duplicate {
		status = http.StatusOK
	}
	answer(w, status, out)
}

func (m *Messages) toolRequest(ctx context.Context, c *tool.Call) (any, error) {
	s, err := m.adapterFor(c.What())
	if err != nil {
		return nil, err
	}
	if err := c.Begin(ctx); err != nil {
		return nil, err
	}
	out, err := m.request(ctx, s, adapter.ChannelRequest{
		Channel: c.In.String("channel"), Agent: c.In.String("agent"), Change: adapter.Change(c.In.String("change")), Reason: c.In.String("reason"),
	})
	if err != nil {
		return nil, reasonFor(c.What(), err)
	}
	return out, nil
}

// request asks, and has the operator told of what is new as of any notice: a
// request that nobody hears of would only expire. The agent's words are left to
// `bulkhead msg requests`.
func (m *Messages) request(ctx context.Context, s adapter.Service, q adapter.ChannelRequest) (adapter.MembershipRequest, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
	defer cancel()
	r, err := s.RequestMembership(ctx, m.cfg.Agent, q)
	if err == nil && !r.Duplicate {
		m.cfg.Log.Write(record.Record{
			Agent: m.cfg.Agent, Kind: record.Life, Verdict: record.Allowed, Target: record.Notice, Count: 1,
			Detail: fmt.Sprintf("asks that %s %ss the channel %s (request %d): see `bulkhead msg requests`", r.Agent, r.Change, r.Channel, r.ID),
		})
	}
	return r, err
}
