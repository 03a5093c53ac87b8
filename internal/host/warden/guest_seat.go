package warden

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	control "bulkhead/internal/control/protocol"
	"bulkhead/internal/hub"
	"bulkhead/internal/layout"
)

// trustFor asks control what this gateway is to trust.
func (w *Warden) trustFor(ctx context.Context, g *guest) (json.RawMessage, error) {
	s := w.service(layout.ControlName)
	if s == nil {
		return nil, errors.New("control is not there")
	}
	ctx, cancel := context.WithTimeout(ctx, serviceAsk)
	defer cancel()
	var out control.Trusts
	err := s.ask(ctx, control.VerbTrust, control.TrustRequest{Gateways: []control.Gateway{{Team: g.Place.Team, Agent: g.Place.Name}}}, &out)
	if err == nil && len(out.Gateways) != 1 {
		err = errors.New("control did not say what to trust")
	}
	if err != nil {
		return nil, err
	}
	return out.Gateways[0], nil
}

// seatGuest has one of the host's servers know the gateway, by a socket of its
// own and a token, when the team has that server.
func (w *Warden) seatGuest(ctx context.Context, g *guest, name string) error {
	s := w.service(name)
	if s == nil || !slices.Contains(g.Services, name) {
		return nil
	}
	s.procs.Lock()
	defer s.procs.Unlock()
	m, err := s.promise(g)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	s.mu.Lock()
	members := maps.Clone(s.wants.members)
	members[m.Key()] = m
	s.wants.members = members
	s.mu.Unlock()
	w.mu.Lock()
	g.seats = append(slices.DeleteFunc(slices.Clone(g.seats), func(x string) bool { return x == name }), name)
	w.mu.Unlock()
	if problem, err := socketProblem(g.Place.ServiceSocket(name), m.GatewayID); problem == "" && err == nil {
		return nil // an adopted gateway's: it is as it should be
	}
	ctx, cancel := context.WithTimeout(ctx, serviceAsk)
	defer cancel()
	if err := s.admit(ctx, m); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// promiseSeat makes the token that the gateway will show.
func (w *Warden) promiseSeat(g *guest, name string) error {
	s := w.service(name)
	if s == nil || !slices.Contains(g.Services, name) {
		return nil
	}
	s.procs.Lock()
	defer s.procs.Unlock()
	_, err := s.promise(g)
	return err
}

func (w *Warden) unseatGuest(ctx context.Context, g *guest) {
	w.mu.Lock()
	g.seats = nil
	w.mu.Unlock()
	for _, name := range g.Services {
		if s := w.service(name); s != nil {
			if err := s.unseat(ctx, hub.Member{Team: g.Place.Team, Agent: g.Place.Name}); err != nil && ctx.Err() == nil {
				w.log.Warn("a server still knows a guest that sleeps", "server", name, "agent", g.Place.Name, "error", err)
			}
		}
	}
}

// promise gives the guest as a member, with the token that it has or a new one.
// The caller holds s.procs.
func (s *service) promise(g *guest) (hub.Member, error) {
	m := hub.Member{Team: g.Place.Team, Agent: g.Place.Name, GatewayID: g.IDs.Gateway()}
	s.mu.Lock()
	token, tokens := s.tokens[m.Key()], maps.Clone(s.tokens)
	s.mu.Unlock()
	if token == "" {
		var raw [32]byte
		_, _ = rand.Read(raw[:]) // never fails (crypto/rand)
		token = hex.EncodeToString(raw[:])
		tokens[m.Key()] = token
		if err := writeJSON(s.place.Tokens(), serviceTokens{Version: stateVersion, Tokens: tokens}); err != nil {
			return m, err
		}
		s.mu.Lock()
		s.tokens = tokens
		s.mu.Unlock()
	}
	m.TokenHash = hub.HashToken(token)
	return m, nil
}

func (s *service) unseat(ctx context.Context, m hub.Member) error {
	s.procs.Lock()
	defer s.procs.Unlock()
	s.mu.Lock()
	tokens, members := maps.Clone(s.tokens), maps.Clone(s.wants.members)
	delete(tokens, m.Key())
	delete(members, m.Key())
	s.tokens, s.wants.members = tokens, members
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, serviceAsk)
	defer cancel()
	return s.ask(ctx, hub.VerbExpel, m, nil)
}
