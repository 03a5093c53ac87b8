package main

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/wire"
)

// inside is a connection to a server that answers each line, as the file that
// a shim would pass.
func inside(t *testing.T) *os.File {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		for s := bufio.NewScanner(c); s.Scan(); {
			_, _ = c.Write([]byte("inside got " + s.Text() + "\n"))
		}
	})
	t.Cleanup(func() { _ = ln.Close(); work.Wait() })
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestForwardCarriesBytesWhileItRuns(t *testing.T) {
	file := inside(t)
	socket := answers(t, map[string]any{wire.VerbForward: file})
	dir := t.TempDir()
	out, err := os.Create(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	a := &app{out: out, err: os.Stderr, socket: socket, json: true, team: "pair"}
	done := make(chan error, 1)
	go func() { done <- a.forwardPorts(ctx, "writer", []string{"48080"}, "") }()
	var f forwarding
	for f.Forwards == nil {
		raw, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		_ = json.Unmarshal(raw, &f)
		select {
		case err := <-done:
			t.Fatal(err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	raw, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	golden(t, filepath.Join("..", "..", "docs", "contracts", "json", "forward.json"), string(raw))
	c, err := net.Dial("tcp", f.Forwards[0].Listen)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write([]byte("hello\n"))
	_ = c.(*net.TCPConn).CloseWrite()
	got, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || got != "inside got hello\n" {
		t.Errorf("%q, %v", got, err)
	}
	_ = c.Close()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", f.Forwards[0].Listen); err == nil {
		t.Error("it still listens")
	}
}

func TestForwardTakesSocketsOnly(t *testing.T) {
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	a := &app{socket: answers(t, map[string]any{wire.VerbForward: f})}
	if c, err := a.client().Forward(t.Context(), wire.ForwardRequest{}); err == nil {
		_ = c.Close()
		t.Error("a file that is no socket was taken")
	}
}

func TestWhereForwardListens(t *testing.T) {
	seen := map[string]string{}
	for _, team := range []string{"pair", "other"} {
		for _, agent := range []string{"orchestrator", "pm", "engineering", "qa_validation", "research_design", "growth_gtm"} {
			at := loopbackOf(team, agent)
			if !at.IsLoopback() || at.As4()[1] < 64 || at.As4()[3] == 0 || at.As4()[3] == 255 || seen[at.String()] != "" || at != loopbackOf(team, agent) {
				t.Errorf("%s/%s is at %s, as is %q", team, agent, at, seen[at.String()])
			}
			seen[at.String()] = team + "/" + agent
		}
	}
	for _, args := range [][]string{
		{"writer", "0"}, {"writer", "x"}, {"writer", "99999"}, {"writer", "8080", "--listen", "0.0.0.0:80"},
		{"writer", "8080", "--listen", "nonsense"}, {"writer", "1", "2", "--listen", "127.0.0.1:9"},
	} {
		_, errout, code := said(t, append([]string{"forward", "--team", "pair", "--socket", "/nonexistent"}, args...)...)
		if code != wire.ExitBadInput || !strings.Contains(errout, "to mend") {
			t.Errorf("%v: %d, %s", args, code, errout)
		}
	}
}
