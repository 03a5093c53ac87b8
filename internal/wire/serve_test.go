package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
)

func TestServeAnswersUntilItsContextEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- Serve(ctx, ln, func(_ context.Context, c *Conn) {
			for {
				m, _, err := c.Recv()
				if err != nil {
					return
				}
				_ = c.Send(m.ID, "echo", m.Body)
			}
		})
	}()
	nc, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c := New(nc.(*net.UnixConn))
	if err := c.Send(7, "say", "a"); err != nil {
		t.Fatal(err)
	}
	if m, _, err := c.Recv(); err != nil || m.ID != 7 || m.Verb != "echo" {
		t.Fatalf("%+v, %v", m, err)
	}
	cancel() // with a connection that says nothing
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, _, err := c.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the connection lives on: %v", err)
	}
}

func TestServeReportsAListenerThatFails(t *testing.T) {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
	if err := Serve(t.Context(), ln, func(context.Context, *Conn) {}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}
