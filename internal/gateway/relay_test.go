package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/wire"
)

const relayToken = "a-token-of-more-than-22-characters"

// records is what a gateway wrote.
type records struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *records) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(b)
}

func (r *records) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// serving is a gateway that takes everybody for its runtime.
func serving(t *testing.T) (dial func() *wire.Conn, log func() string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gateway.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	var out records
	cfg := Config{Team: "t", Agent: "a", Token: relayToken, DialerSocket: filepath.Join(t.TempDir(), "no"), MaxConnections: 2}
	if err := cfg.Check(); err != nil {
		t.Fatal(err)
	}
	s, err := newServer(cfg, &out)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			work.Go(func() { s.frames(ctx, wire.New(c), func() {}) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = ln.Close()
		_ = s.proxy.Close()
		work.Wait()
	})
	return func() *wire.Conn {
		t.Helper()
		u, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		c := wire.New(u)
		t.Cleanup(func() { _ = c.Close() })
		if _, err := c.Greet(wire.GatewayProtocol, wire.GatewayVersion); err != nil {
			t.Fatal(err)
		}
		return c
	}, out.String
}

func relayAnswer(t *testing.T, c *wire.Conn, verb string, body any) string {
	t.Helper()
	if err := c.Send(1, verb, body); err != nil {
		t.Fatal(err)
	}
	m, _, err := c.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var f wire.Failure
	if m.Verb == wire.VerbError {
		if err := json.Unmarshal(m.Body, &f); err != nil {
			t.Fatal(err)
		}
		return f.Message
	}
	return m.Verb
}

func TestARelayedConnectionIsServedLikeAnAcceptedOne(t *testing.T) {
	dial, log := serving(t)
	c := dial()
	if got := relayAnswer(t, c, wire.VerbRelay, wire.RelayRequest{Token: relayToken}); got != wire.VerbOK {
		t.Fatal(got)
	}
	if _, err := io.WriteString(c.Unix(), "CONNECT unlisted.example:443 HTTP/1.1\r\nHost: unlisted.example:443\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(c.Unix()), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode != http.StatusForbidden {
		t.Errorf("%s", r.Status)
	}
	if got := log(); !strings.Contains(got, "unlisted.example:443") || !strings.Contains(got, string(deny.NotListed)) {
		t.Errorf("the denial is not recorded: %s", got)
	}
}

func TestARelayIsRefused(t *testing.T) {
	dial, log := serving(t)
	for name, x := range map[string]struct {
		body any
		want string
	}{
		"with a wrong token":      {wire.RelayRequest{Token: relayToken + "x"}, "token is not this runtime's"},
		"without a token":         {wire.RelayRequest{}, "token is not this runtime's"},
		"to what is not listed":   {wire.RelayRequest{Token: relayToken, Target: "unlisted.example:443"}, "unlisted.example"},
		"to no port":              {wire.RelayRequest{Token: relayToken, Target: "x:0x50"}, "not a number"},
		"with something unproper": {7, "cannot unmarshal"},
	} {
		c := dial()
		if got := relayAnswer(t, c, wire.VerbRelay, x.body); !strings.Contains(got, x.want) {
			t.Errorf("%s: %q, want %q", name, got, x.want)
		}
		if _, _, err := c.Recv(); err == nil {
			t.Errorf("%s: the connection goes on", name)
		}
	}
	if !strings.Contains(log(), string(deny.BadToken)) {
		t.Errorf("a wrong token is not recorded: %s", log())
	}
}

func TestListenersThatAreKeptAreAnnounced(t *testing.T) {
	dial, _ := serving(t)
	for name, x := range map[string]struct {
		body wire.ListenRequest
		want string
	}{
		"its proxy":          {wire.ListenRequest{Token: relayToken, Relayed: true, Listeners: []wire.Listener{{Address: "127.0.0.1:3128"}}}, wire.VerbOK},
		"a wrong token":      {wire.ListenRequest{Token: "x", Relayed: true, Listeners: []wire.Listener{{Address: "127.0.0.1:3128"}}}, "token"},
		"what is not listed": {wire.ListenRequest{Token: relayToken, Relayed: true, Listeners: []wire.Listener{{Address: "x", Target: "a.example:1"}}}, "a.example"},
		"nothing":            {wire.ListenRequest{Token: relayToken, Relayed: true}, "0 listeners"},
		"neither kept nor passed": {
			wire.ListenRequest{Token: relayToken, Listeners: []wire.Listener{{Address: "127.0.0.1:3128"}}}, "1 listeners with 0 descriptors",
		},
	} {
		if got := relayAnswer(t, dial(), wire.VerbListen, x.body); !strings.Contains(got, x.want) {
			t.Errorf("%s: %q, want %q", name, got, x.want)
		}
	}
}

func FuzzRelayRequest(f *testing.F) {
	f.Add([]byte(`{"token":"` + relayToken + `","target":"a.example:443"}`))
	f.Add([]byte(`{"token":"` + relayToken + `"}`))
	f.Add([]byte(`{`))
	cfg := Config{Team: "t", Agent: "a", Token: relayToken, DialerSocket: "/no"}
	if err := cfg.Check(); err != nil {
		f.Fatal(err)
	}
	s, err := newServer(cfg, io.Discard)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.proxy.Close() })
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := s.relayTarget(wire.Message{ID: 1, Verb: wire.VerbRelay, Body: raw})
		if err != nil {
			return
		}
		var q wire.RelayRequest
		if json.Unmarshal(raw, &q) != nil || q.Token != relayToken || got.host != "" {
			t.Errorf("%q was taken as %+v: this gateway lists nothing", raw, got)
		}
	})
}
