// Package server serves the protocol `adapter` (internal/adapter/protocol)
// over one listening socket per agent and one for operators.
//
// # Who is heard
//
// An agent's socket answers a peer only when all three are right: the socket
// itself, which the warden made reachable for one gateway alone; the peer's id
// as the kernel tells it, which is that gateway's; and the token. The overflow
// id 65534, which stands for anybody, is refused whatever the configuration
// says. Who was refused is written down, operators see it, and the
// orchestrator gets an alert, at most one for each agent and reason in a
// minute. The operator's socket answers root.
//
// # Limits
//
// Connections, open requests, open waits and the bytes of open requests are
// bounded for each agent, so that no agent takes another's share. A connection
// whose share is used up is not read until there is room again.
package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/adapter/store"
	"bulkhead/internal/record"
)

// Limits for each listener.
const (
	maxConnections = 8
	authTimeout    = 10 * time.Second
)

// Store is what is served.
type Store interface {
	adapter.Service
	adapter.Operator
	Submit(from string, drafts []adapter.Draft, late bool, done func([]adapter.SendResult))
	Commit()
	CommitAside()
	Alert(ctx context.Context, d adapter.Draft) adapter.SendResult
	Metrics(ctx context.Context) (store.Metrics, error)
}

// Server is one running adapter.
type Server struct {
	cfg     protocol.Config
	store   Store
	log     *record.Log
	alerts  *alerts
	metrics *metrics
}

// New makes a server of an open store. Records go to out.
func New(cfg protocol.Config, store Store, out io.Writer) (*Server, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, store: store, log: record.NewLog(cfg.Team, out)}
	s.alerts = newAlerts(cfg.Policy.Orchestrator, store)
	s.metrics = newMetrics(store)
	return s, nil
}

// Serve serves listeners, in the order of Config.Listeners, until ctx ends,
// and waits for what it started. It closes them.
func (s *Server) Serve(ctx context.Context, listeners []*net.UnixListener) error {
	if len(listeners) != len(s.cfg.Listeners) {
		return fmt.Errorf("adapter: %d sockets for %d listeners", len(listeners), len(s.cfg.Listeners))
	}
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer s.log.Flush()
	defer work.Wait()
	defer cancel()
	work.Go(func() { s.log.Run(ctx) })
	work.Go(func() { s.alerts.run(ctx) })
	ended := make(chan error, len(listeners))
	for i, ln := range listeners {
		p, err := s.port(s.cfg.Listeners[i])
		if err != nil {
			return err
		}
		stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
		defer stop()
		work.Go(func() { ended <- p.accept(ctx, ln) })
	}
	for range listeners {
		if err := <-ended; err != nil {
			return err
		}
	}
	return nil
}

// port is one listener and whom it is for.
type port struct {
	*Server
	agent     string // empty: the operator
	id        uint32
	tokenHash [sha256.Size]byte
	slots     chan struct{}
	share     share
}

func (s *Server) port(name string) (*port, error) {
	p := &port{Server: s, slots: make(chan struct{}, maxConnections), share: newShare()}
	if name == protocol.OperatorListener {
		return p, nil
	}
	a := s.cfg.Agents[name]
	p.agent, p.id = name, a.GatewayID
	sum, err := hex.DecodeString(a.TokenHash)
	if err != nil {
		return nil, fmt.Errorf("adapter: agent %.64q: tokenHash: %w", name, err)
	}
	copy(p.tokenHash[:], sum)
	return p, nil
}

func (p *port) accept(ctx context.Context, ln *net.UnixListener) error {
	var work sync.WaitGroup
	defer work.Wait()
	for {
		c, err := ln.AcceptUnix()
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ECONNABORTED) {
			time.Sleep(20 * time.Millisecond) // until descriptors are free again
			continue
		}
		if err != nil {
			return fmt.Errorf("adapter: accept for %q: %w", p.name(), err)
		}
		select {
		case p.slots <- struct{}{}:
		default:
			_ = c.Close()
			continue
		}
		p.metrics.connections.With(p.name()).Add(1)
		work.Go(func() {
			defer func() { <-p.slots }()
			defer p.metrics.connections.With(p.name()).Add(-1)
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			defer stop()
			p.serve(ctx, c)
		})
	}
}

func (p *port) name() string {
	if p.agent == "" {
		return protocol.OperatorListener
	}
	return p.agent
}
