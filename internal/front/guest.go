package front

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"bulkhead/internal/front/protocol"
	"bulkhead/internal/hub"
	"bulkhead/internal/identity/token"

	"bulkhead/internal/deny"
)

// wakeTimeout bounds waiting for a guest's gateway: it may have to wait for a
// place first.
const wakeTimeout = 60 * time.Second

// take gives the gateway that a token is for, which is woken when it is a
// guest's that sleeps. It is in use until [Server.give].
func (s *Server) take(ctx context.Context, c *token.Claims, l protocol.Listener) (*gateway, *deny.Reason) {
	key := hub.Member{Team: c.Team, Agent: c.Agent}.Key()
	ctx, cancel := context.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	for {
		if g := s.use(key); g != nil {
			return g, nil
		}
		gone := away("", "the gateway of "+c.Agent+" is not there")
		if !slices.ContainsFunc(l.Guests, func(g protocol.Guests) bool { return g.Team == c.Team }) {
			return nil, gone
		}
		w, err := s.desk.wake(key, protocol.Agent{Team: c.Team, Name: c.Agent})
		if err != nil {
			return nil, away("", fmt.Sprintf("%d requests wait for agents to wake", maxWakers))
		}
		// It may have come between the look and the wish.
		if g := s.use(key); g != nil {
			s.desk.left(key, w, false)
			return g, nil
		}
		select {
		case <-w.done:
			s.desk.left(key, w, false)
			if w.reason != nil {
				copied := *w.reason // many share it
				return nil, &copied
			}
		case <-ctx.Done():
			s.desk.left(key, w, true)
			return nil, away("", "the gateway of "+c.Agent+" did not wake in time")
		}
	}
}

func (s *Server) use(key string) *gateway {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gateways[key]
	if g != nil {
		g.active++
	}
	return g
}

// give says that a request to a gateway is over.
func (s *Server) give(g *gateway) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.active--
	g.last = time.Now()
}

func (s *Server) woken(_ context.Context, body json.RawMessage) (any, error) {
	var q protocol.Woken
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, fmt.Errorf("front: %w", err)
	}
	key := hub.Member{Team: q.Team, Agent: q.Name}.Key()
	if q.Reason != nil {
		s.desk.woken(key, q.Reason)
		return struct{}{}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.resting[key]; g != nil && s.gateways[key] == nil {
		delete(s.resting, key)
		s.gateways[key] = g
		s.desk.woken(key, nil)
	}
	return struct{}{}, nil
}

// rest gives up the gateways that are idle. From here on their agents are
// woken by who calls them.
func (s *Server) rest(_ context.Context, body json.RawMessage) (any, error) {
	var q protocol.Rest
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, fmt.Errorf("front: %w", err)
	}
	type candidate struct {
		protocol.Agent
		key  string
		last time.Time
	}
	out := protocol.Rested{Agents: []protocol.Agent{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []candidate
	now := time.Now()
	for _, a := range q.Agents {
		key := hub.Member{Team: a.Team, Agent: a.Name}.Key()
		g := s.gateways[key]
		switch {
		case s.desk.awaited(key):
		case g == nil: // it never came, or is lost already
			found = append(found, candidate{Agent: a, key: key})
		case g.active == 0 && now.Sub(g.last) >= q.Idle:
			found = append(found, candidate{a, key, g.last})
		}
	}
	slices.SortStableFunc(found, func(x, y candidate) int { return cmp.Or(x.last.Compare(y.last), cmp.Compare(x.key, y.key)) })
	for _, c := range found[:min(max(q.Most, 0), len(found))] {
		if g := s.gateways[c.key]; g != nil {
			s.resting[c.key] = g
			delete(s.gateways, c.key)
		}
		out.Agents = append(out.Agents, c.Agent)
	}
	return out, nil
}
