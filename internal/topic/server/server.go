// Package server serves the public topics of a host's teams (internal/topic):
// who may do what is said by root alone, and decided here anew for each request.
//
// # Whose turn it is
//
// A request is of the agent whose socket it came in on; nothing in it says who.
// Each agent may have maxOpen requests with maxBytes open at a time, over all of
// its connections, and has a pace. One whose share is used up is not read until
// there is room again, and nobody else waits for it: the writer of a team's
// shelf takes everything that waits into one transaction, so a publish waits
// for at most two of them, each with no more than its own share of every other
// agent of the team.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"bulkhead/internal/deny"
	"bulkhead/internal/hub"
	"bulkhead/internal/record"
	"bulkhead/internal/topic"
	"bulkhead/internal/topic/protocol"
	"bulkhead/internal/topic/shelf"
	"bulkhead/internal/wire"
)

// What one agent may do, over all its connections.
const (
	maxOpen   = 32                // requests
	maxReads  = 2                 // of them that give messages, which are held until they are taken
	maxBytes  = 2 * wire.MaxFrame // of open requests
	pace      = 2000              // requests a second for long, which is what tools.ratePerMinute can be at most
	bytesPace = 4 << 20           // bytes of requests a second for long: the host's disk must not be full within minutes
)

// Server is the topics of all teams.
type Server struct {
	data string
	log  *record.Log

	change sync.Mutex // held while teams come and go

	mu       sync.Mutex // guards what follows
	teams    map[string]*team
	shares   map[string]*share                // by hub.Member.Key
	sessions map[string]map[*session]struct{} // by team
}

// team is one team's topics.
type team struct {
	shelf  *shelf.Shelf // nil: it could not be opened, and why says why
	why    error
	use    sync.WaitGroup // requests that use the shelf
	policy topic.Policy
}

// share is what one agent may have open.
type share struct {
	open, bytes, reads *semaphore.Weighted
	requests, written  *rate.Limiter
}

func newShare() *share {
	return &share{
		open: semaphore.NewWeighted(maxOpen), bytes: semaphore.NewWeighted(maxBytes), reads: semaphore.NewWeighted(maxReads),
		requests: rate.NewLimiter(pace, 2*pace), written: rate.NewLimiter(bytesPace, maxBytes),
	}
}

// take waits for room for a request of n bytes, which are at most a frame's.
func (s *share) take(ctx context.Context, n int) (give func(), err error) {
	if err := s.requests.Wait(ctx); err != nil {
		return nil, err
	}
	if err := s.written.WaitN(ctx, n); err != nil {
		return nil, err
	}
	if err := s.bytes.Acquire(ctx, int64(n)); err != nil {
		return nil, err
	}
	if err := s.open.Acquire(ctx, 1); err != nil {
		s.bytes.Release(int64(n))
		return nil, err
	}
	return func() {
		s.open.Release(1)
		s.bytes.Release(int64(n))
	}, nil
}

// New makes a server that lets nobody do anything yet. Records go to out.
func New(cfg protocol.Config, out io.Writer) *Server {
	return &Server{data: cfg.Data, log: record.NewLog("", out), teams: map[string]*team{}, shares: map[string]*share{}, sessions: map[string]map[*session]struct{}{}}
}

// Serve serves gateways and root until ctx ends.
func (s *Server) Serve(ctx context.Context, operator *net.UnixListener, out io.Writer) error {
	logging, stop := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { s.log.Run(logging) })
	err := hub.New(hub.Config{
		Protocol: protocol.Name, Version: protocol.Version, Out: out,
		Member: s.Member,
		Operator: map[string]hub.Answer{
			protocol.VerbPolicy: answer(s.SetPolicies),
			protocol.VerbForget: answer(s.forget),
		},
	}).Run(ctx, operator)
	stop()
	work.Wait()
	s.log.Flush()
	return errors.Join(err, s.Close())
}

func answer[Q any](do func(context.Context, Q) error) hub.Answer {
	return func(ctx context.Context, body json.RawMessage) (any, error) {
		var q Q
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, fmt.Errorf("topics: the request does not decode: %w", err)
		}
		return struct{}{}, do(ctx, q)
	}
}

// SetPolicies takes who may do what from here on. A team whose shelf cannot be
// opened is refused everything, and keeps nobody else from theirs.
func (s *Server) SetPolicies(ctx context.Context, q protocol.Policies) error {
	for name, p := range q.Teams {
		if !topic.Named(name) {
			return fmt.Errorf("topics: %.64q is no team", name)
		}
		if err := p.Check(); err != nil {
			return err
		}
	}
	s.change.Lock()
	defer s.change.Unlock()
	s.mu.Lock()
	var ended []*team
	for name, t := range s.teams {
		if q.Teams[name] == nil {
			delete(s.teams, name)
			ended = append(ended, t)
		}
	}
	s.mu.Unlock()
	var errs []error
	for _, t := range ended {
		errs = append(errs, t.end())
	}
	for name, p := range q.Teams {
		if p != nil {
			s.setPolicy(ctx, name, p)
		}
	}
	return errors.Join(errs...)
}

// setPolicy is that of one team. The caller holds s.change.
func (s *Server) setPolicy(ctx context.Context, name string, p topic.Policy) {
	s.mu.Lock()
	t := s.teams[name]
	s.mu.Unlock()
	if t == nil || t.shelf == nil {
		log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("team", name)
		opened, err := shelf.Open(context.WithoutCancel(ctx), s.data, name, log, nil)
		if err != nil {
			log.Error("a team's public topics cannot be opened; they are refused", "error", err)
		}
		if t == nil {
			t = &team{}
		}
		s.mu.Lock()
		t.shelf, t.why = opened, err
		s.mu.Unlock()
	}
	s.mu.Lock()
	t.policy = p
	s.teams[name] = t
	s.mu.Unlock()
}

// end waits for those who use the shelf, and closes it. Nobody finds the team
// any more.
func (t *team) end() error {
	t.use.Wait()
	if t.shelf == nil {
		return nil
	}
	return t.shelf.Close()
}

// forget removes what a team had, which is down: root says so before or after it
// says that the team has no topics any more.
func (s *Server) forget(_ context.Context, q protocol.Forget) error {
	if !topic.Named(q.Team) {
		return fmt.Errorf("topics: %.64q is no team", q.Team)
	}
	s.change.Lock()
	defer s.change.Unlock()
	s.mu.Lock()
	t := s.teams[q.Team]
	delete(s.teams, q.Team)
	maps.DeleteFunc(s.shares, func(key string, _ *share) bool { return strings.HasPrefix(key, q.Team+"/") })
	s.mu.Unlock()
	if t != nil {
		if err := t.end(); err != nil {
			return err
		}
	}
	return shelf.Remove(s.data, q.Team)
}

// Close closes the shelves. Nobody is served any more.
func (s *Server) Close() error {
	s.change.Lock()
	defer s.change.Unlock()
	var errs []error
	for _, t := range s.teams {
		errs = append(errs, t.end())
	}
	return errors.Join(errs...)
}

// using gives a team as it is now, for one request; done ends that.
func (s *Server) using(name string) (open *shelf.Shelf, p topic.Policy, done func(), refused error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.teams[name]
	switch {
	case t == nil:
		return nil, nil, nil, away("the manifest gives this team no public topics")
	case t.shelf == nil:
		return nil, nil, nil, away("the team's public topics cannot be opened: " + t.why.Error())
	}
	t.use.Add(1)
	return t.shelf, t.policy, t.use.Done, nil
}

func away(why string) *deny.Reason {
	return &deny.Reason{
		Layer: deny.LayerTools, Code: deny.ToolUnavailable, What: topic.Prefix + "*", Why: why, RetryAfter: 1,
		Mend: "try again; when it stays, the operator finds why with `bulkhead status`",
	}
}

// shareOf is what an agent may have open. It outlives its connections, so that
// a new one is no new share.
func (s *Server) shareOf(m hub.Member) *share {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shares[m.Key()] == nil {
		s.shares[m.Key()] = newShare()
	}
	return s.shares[m.Key()]
}

// published tells those who may read a topic now: who may since the request began
// has perhaps looked already, before the message was there.
func (s *Server) published(team, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.teams[team]
	if t == nil {
		return
	}
	for x := range s.sessions[team] {
		if t.policy.May(x.member.Agent, topic.Read, name) {
			x.hear(name)
		}
	}
}

// seat lets a session hear of what is published, until leave is called. A gateway
// has one: a new one ends those before, and what waits in them to be read.
func (s *Server) seat(x *session) (leave func()) {
	s.mu.Lock()
	team := x.member.Team
	if s.sessions[team] == nil {
		s.sessions[team] = map[*session]struct{}{}
	}
	var before []*session
	for o := range s.sessions[team] {
		if o.member.Agent == x.member.Agent {
			before = append(before, o)
		}
	}
	s.sessions[team][x] = struct{}{}
	s.mu.Unlock()
	for _, o := range before {
		_ = o.c.Close()
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if delete(s.sessions[team], x); len(s.sessions[team]) == 0 {
			delete(s.sessions, team)
		}
	}
}

// topicsOf lists what an agent has to do with.
func topicsOf(ctx context.Context, open *shelf.Shelf, p topic.Policy, agent string) (protocol.Topics, error) {
	out := protocol.Topics{Topics: []protocol.Topic{}}
	readable := p.Of(agent, topic.Read)
	seen, err := open.List(ctx, agent, readable)
	if err != nil {
		return out, err
	}
	names := append(p.Of(agent, topic.Publish), readable...)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		one := seen[name]
		one.Name, one.Publish, one.Read = name, p.May(agent, topic.Publish, name), p.May(agent, topic.Read, name)
		out.Topics = append(out.Topics, one)
	}
	return out, nil
}
