package main

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"bulkhead/internal/engine"
	"bulkhead/internal/prove"
	"bulkhead/test/mutations"
)

// sockets gives a server's process a socket of the host's network that it should
// not have, and has front listen elsewhere than it should.
func (j *judge) sockets(ctx context.Context) ([]mutations.Noticed, error) {
	var out []mutations.Noticed
	for _, c := range []struct {
		what        string
		server      prove.Agent
		right, with []string // where it listens, as meant and without the measure
	}{
		{"a server without a network is given no socket of the host's", quiet, nil, []string{"127.0.0.1:8485"}},
		{"front is given sockets at its loopback addresses alone", front, []string{"127.0.0.1:8484"}, []string{"127.0.0.1:8484", "0.0.0.0:8485"}},
	} {
		n := mutations.Noticed{ID: "socket: " + c.what, Verify: []string{}, Prove: []string{}}
		broken, err := j.holding(ctx, c.server, c.right)
		if err != nil {
			return nil, err
		}
		if broken {
			n.Start = "it does not hold to begin with"
		}
		if broken, err = j.holding(ctx, c.server, c.with); err != nil {
			return nil, err
		}
		if broken {
			n.Prove = append(n.Prove, "network")
		}
		out = append(out, n)
	}
	return out, nil
}

// holding says whether the statement of network is broken of a process that holds
// listening sockets.
func (j *judge) holding(ctx context.Context, server prove.Agent, listen []string) (broken bool, err error) {
	c := exec.CommandContext(ctx, filepath.Join(j.plan.Programs, "bulkhead-probe"), "child") // #nosec G204 -- of the plan
	for _, at := range listen {
		l, err := net.Listen("tcp", at)
		if err != nil {
			return false, err
		}
		f, err := l.(*net.TCPListener).File()
		_ = l.Close()
		if err != nil {
			return false, err
		}
		defer func() { _ = f.Close() }()
		c.ExtraFiles = append(c.ExtraFiles, f)
	}
	in, err := c.StdinPipe()
	if err != nil {
		return false, err
	}
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		return false, err
	}
	defer func() { _ = in.Close(); _ = c.Wait() }()
	server.Processes = []prove.Process{{PID: c.Process.Pid, Role: engine.RoleService}}
	r, err := prove.Team(ctx, prove.Request{Team: "mutant", Table: "bulkhead", Agents: []prove.Agent{server}})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(r.Statements, func(s prove.Statement) bool { return s.ID == "network" && !s.Holds }), nil
}
