package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/wire"
)

// A followed log goes on over a rotation, and loses no line on the way.
func TestLogsAreFollowedOverARotation(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "runtime.log")
	appendTo := func(text string) {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("2026-01-02T03:04:05Z stdout F " + text + "\n"); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(dir, "warden.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex // rotations are seen whole
	var said bytes.Buffer
	var owner sync.WaitGroup
	owner.Go(func() {
		for {
			u, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			c := wire.New(u)
			_, _, _ = c.Recv()
			_ = c.Send(0, wire.VerbHello, wire.Hello{Protocol: wire.WardenProtocol, Version: wire.WardenVersion})
			m, _, _ := c.Recv()
			var files []*os.File
			mu.Lock()
			for _, name := range []string{path + ".1", path} {
				if f, err := os.Open(name); err == nil {
					files = append(files, f)
				}
			}
			mu.Unlock()
			_ = c.Send(m.ID, wire.VerbResult, struct{}{}, files...)
			closeAll(files)
			_ = c.Close()
		}
	})
	defer func() { _ = ln.Close(); owner.Wait() }()

	appendTo("one")
	out, err := os.Create(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	a := &app{out: out, err: &said, socket: socket}
	done := make(chan error, 1)
	go func() { done <- a.follow(ctx, wire.LogsRequest{}, -1, true, a.showLine) }()
	shows := func(want string) {
		t.Helper()
		for {
			got, err := os.ReadFile(out.Name())
			if err != nil {
				t.Fatal(err)
			}
			if string(got) == want {
				return
			}
			select {
			case err := <-done:
				t.Fatalf("ended with %v; shows %q", err, got)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	shows("one\n")
	appendTo("two")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	appendTo("three")
	shows("one\ntwo\nthree\n")
	appendTo("four")
	shows("one\ntwo\nthree\nfour\n")
	// Two rotations at once: the middle file is shown, and what is lost is said.
	rotate := func() {
		t.Helper()
		if err := os.Rename(path, path+".1"); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	rotate()
	appendTo("lost")
	rotate()
	appendTo("five")
	rotate()
	appendTo("six")
	mu.Unlock()
	shows("one\ntwo\nthree\nfour\nfive\nsix\n")
	cancel()
	if err := <-done; err != nil {
		t.Errorf("ended with %v", err)
	}
	if strings.Count(said.String(), "lines may be missing here") != 1 {
		t.Errorf("of what was lost, and of nothing else, it says %q", said.String())
	}
}
