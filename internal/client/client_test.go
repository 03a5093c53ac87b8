package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"bulkhead/internal/wire"
)

// counterpart answers one connection per handler over a real socket, as the
// warden's side of the protocol does.
func counterpart(t *testing.T, hello wire.Hello, handle func(c *wire.Conn, m wire.Message)) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "warden.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	var owner sync.WaitGroup
	owner.Go(func() {
		for {
			u, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			c := wire.New(u)
			if _, _, err := c.Recv(); err == nil && c.Send(0, "hello", hello) == nil {
				if m, _, err := c.Recv(); err == nil {
					handle(c, m)
				}
			}
			_ = c.Close()
		}
	})
	t.Cleanup(func() { _ = ln.Close(); owner.Wait() })
	return &Client{Socket: path, Build: "test"}
}

var goodHello = wire.Hello{Protocol: wire.WardenProtocol, Version: wire.WardenVersion, Build: "b1"}

func TestCallPassesProgressAndDecodesTheResult(t *testing.T) {
	c := counterpart(t, goodHello, func(c *wire.Conn, m wire.Message) {
		_ = c.Send(m.ID, wire.VerbProgress, wire.Progress{Agent: "writer", Step: "starting"})
		var req wire.TeamRequest
		_ = json.Unmarshal(m.Body, &req)
		_ = c.Send(m.ID, wire.VerbResult, wire.StatusResult{SchemaVersion: 1, Teams: []wire.TeamStatus{{Team: req.Team}}})
	})
	var res wire.StatusResult
	var steps []string
	err := c.Call(t.Context(), wire.VerbStatus, wire.TeamRequest{Team: "pair"}, &res, func(p wire.Progress) { steps = append(steps, p.Agent+" "+p.Step) })
	if err != nil || len(res.Teams) != 1 || res.Teams[0].Team != "pair" || len(steps) != 1 || steps[0] != "writer starting" {
		t.Errorf("got %+v, %v, %v", res, steps, err)
	}
}

func TestEveryWayToFailNamesItsExitCodeAndMend(t *testing.T) {
	closed := filepath.Join(t.TempDir(), "closed.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: closed})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	_ = ln.Close()
	for _, c := range []struct {
		name   string
		client *Client
		exit   int
		what   string
	}{
		{"no socket", &Client{Socket: filepath.Join(t.TempDir(), "none.sock")}, wire.ExitNoWarden, "not running"},
		{"nobody listens", &Client{Socket: closed}, wire.ExitNoWarden, "not running"},
		{"another version", counterpart(t, wire.Hello{Protocol: "warden", Version: 99, Build: "b9"}, nil), wire.ExitNoWarden, "version 99 (build b9)"},
		{"another protocol", counterpart(t, wire.Hello{Protocol: "shim", Version: 1}, nil), wire.ExitNoWarden, "speaks shim"},
		{"refused", counterpart(t, goodHello, func(c *wire.Conn, m wire.Message) {
			_ = c.Send(m.ID, wire.VerbError, wire.Failure{Message: "only root may do this", Mend: "sudo", Exit: wire.ExitRefused})
		}), wire.ExitRefused, "only root"},
		{"failed without a code", counterpart(t, goodHello, func(c *wire.Conn, m wire.Message) {
			_ = c.Send(m.ID, wire.VerbError, wire.Failure{Message: "no space", Mend: "make room"})
		}), wire.ExitFailed, "no space"},
		{"hung up", counterpart(t, goodHello, func(*wire.Conn, wire.Message) {}), wire.ExitNoWarden, "ended the connection during status"},
		{"an answer that is no answer", counterpart(t, goodHello, func(c *wire.Conn, m wire.Message) {
			_ = c.Send(m.ID, "pinned", 1)
		}), wire.ExitNoWarden, "unexpected answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.client.Call(t.Context(), wire.VerbStatus, wire.TeamRequest{}, nil, nil)
			var e *Error
			if !errors.As(err, &e) || e.Exit != c.exit || !strings.Contains(e.What, c.what) || e.Mend == "" {
				t.Errorf("got %#v, want exit %d and %q", err, c.exit, c.what)
			}
			if NotRunning(err) != (c.what == "not running") {
				t.Errorf("NotRunning is %t", NotRunning(err))
			}
		})
	}
}

// A warden that is just ending resets what it has not taken yet.
func TestAWardenThatHangsUpBeforeItGreetsIsNotRunning(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	defer func() { _ = ln.Close() }()
	err = (&Client{Socket: path}).Call(t.Context(), wire.VerbStatus, wire.TeamRequest{}, nil, nil)
	if !NotRunning(err) {
		t.Errorf("NotRunning is false for %v", err)
	}
}

func TestAnInterruptedCallSaysThatTheWorkMayGoOn(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := counterpart(t, goodHello, func(c *wire.Conn, _ wire.Message) {
		cancel()
		_, _, _ = c.Recv()
	})
	err := c.Call(ctx, wire.VerbApply, wire.ApplyRequest{}, nil, nil)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("got %v", err)
	}
}

// running starts a real process and passes its pipes, as a shim does.
func running(argv ...string) func(c *wire.Conn, m wire.Message) {
	return func(c *wire.Conn, m wire.Message) {
		cmd := exec.Command(argv[0], argv[1:]...) // #nosec G204 -- the test's own words
		inR, inW, _ := os.Pipe()
		outR, outW, _ := os.Pipe()
		errR, errW, _ := os.Pipe()
		cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, errW
		if err := cmd.Start(); err != nil {
			_ = c.Send(m.ID, wire.VerbError, wire.Failure{Message: err.Error(), Exit: wire.ExitFailed})
			return
		}
		_ = inR.Close()
		_ = outW.Close()
		_ = errW.Close()
		_ = c.Send(m.ID, wire.VerbStarted, wire.ExecStarted{PID: cmd.Process.Pid}, inW, outR, errR)
		closeAll([]*os.File{inW, outR, errR})
		_ = cmd.Wait()
		_ = c.Send(m.ID, wire.VerbExited, wire.ExecExited{Code: cmd.ProcessState.ExitCode()})
	}
}

func TestASessionCarriesInputOutputAndExitCode(t *testing.T) {
	c := counterpart(t, goodHello, running("sh", "-c", "cat; echo no >&2; exit 7"))
	in, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(w, "hello\n")
	_ = w.Close()
	s, err := c.Start(t.Context(), wire.VerbExec, wire.AgentExec{}, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out, errout bytes.Buffer
	exited, err := s.Run(t.Context(), in, &out, &errout)
	if err != nil || exited.Code != 7 || out.String() != "hello\n" || errout.String() != "no\n" {
		t.Errorf("got %+v, %q, %q, %v", exited, out.String(), errout.String(), err)
	}
}

func TestASessionEndsThoughNobodyTypesAndAChildKeepsThePipe(t *testing.T) {
	// The child outlives the process for longer than output is waited for, and
	// ends by itself.
	c := counterpart(t, goodHello, running("sh", "-c", "sleep 3 & echo done"))
	in, w, err := os.Pipe() // stays open and silent
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	s, err := c.Start(t.Context(), wire.VerbExec, wire.AgentExec{}, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if exited, err := s.Run(t.Context(), in, &out, io.Discard); err != nil || exited.Code != 0 || out.String() != "done\n" {
		t.Errorf("got %+v, %q, %v", exited, out.String(), err)
	}
}

func TestALargeOutputIsComplete(t *testing.T) {
	c := counterpart(t, goodHello, running("sh", "-c", "head -c 3000000 /dev/zero"))
	s, err := c.Start(t.Context(), wire.VerbRun, wire.RunRequest{}, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := s.Run(t.Context(), nil, &out, io.Discard); err != nil || out.Len() != 3000000 {
		t.Errorf("got %d bytes, %v", out.Len(), err)
	}
}

func TestLogsComeAsDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := counterpart(t, goodHello, func(c *wire.Conn, m wire.Message) {
		f, err := os.Open(path)
		if err != nil {
			return
		}
		_ = c.Send(m.ID, wire.VerbResult, struct{}{}, f)
		_ = f.Close()
	})
	files, err := c.Logs(t.Context(), wire.LogsRequest{})
	if err != nil || len(files) != 1 {
		t.Fatalf("got %d files, %v", len(files), err)
	}
	defer closeAll(files)
	got, _ := io.ReadAll(io.NewSectionReader(files[0], 0, 100))
	if string(got) != "line\n" {
		t.Errorf("got %q", got)
	}
}
