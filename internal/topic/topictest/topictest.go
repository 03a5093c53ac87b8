// Package topictest serves public topics to tests, without a warden: its
// members are let in by their sockets alone.
package topictest

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"bulkhead/internal/hub"
	"bulkhead/internal/topic"
	"bulkhead/internal/topic/client"
	"bulkhead/internal/topic/protocol"
	"bulkhead/internal/topic/server"
	"bulkhead/internal/wire"
)

// Serve serves one team's topics from data, over a socket for each agent in
// sockets, until ctx ends.
func Serve(ctx context.Context, data, sockets, team string, p topic.Policy, agents ...string) (*server.Server, func() error, error) {
	s := server.New(protocol.Config{Data: data}, os.Stderr)
	if err := s.SetPolicies(ctx, protocol.Policies{Teams: map[string]topic.Policy{team: p}}); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	end := func() error {
		cancel()
		work.Wait()
		return s.Close()
	}
	for _, agent := range agents {
		path := Socket(sockets, agent)
		_ = os.Remove(path) // of a server that was killed
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return nil, nil, errors.Join(err, end())
		}
		work.Go(func() {
			_ = wire.Serve(ctx, ln, func(ctx context.Context, c *wire.Conn) {
				defer func() { _ = c.Close() }()
				if admit(c) == nil {
					s.Member(ctx, hub.Member{Team: team, Agent: agent}, c)
				}
			})
		})
	}
	return s, end, nil
}

// admit is what the hub says to who proved itself.
func admit(c *wire.Conn) error {
	if _, err := c.Greet(protocol.Name, protocol.Version); err != nil {
		return err
	}
	m, _, err := c.Recv()
	if err != nil {
		return err
	}
	return c.Send(m.ID, wire.VerbOK, struct{}{})
}

// Socket is an agent's.
func Socket(dir, agent string) string { return filepath.Join(dir, agent+".sock") }

// Team serves a team's topics for one test, and gives the agents' ways to them.
func Team(t testing.TB, p topic.Policy, agents ...string) (*server.Server, map[string]*client.Client) {
	t.Helper()
	sockets := Sockets(t)
	s, end, err := Serve(context.Background(), t.TempDir(), sockets, "pair", p, agents...)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*client.Client{}
	for _, agent := range agents {
		out[agent] = client.New(client.Config{Socket: Socket(sockets, agent)})
	}
	t.Cleanup(func() {
		for _, c := range out {
			_ = c.Close()
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	return s, out
}

// Sockets is a folder whose path is short enough for sockets.
func Sockets(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "topic") //nolint:usetesting // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
