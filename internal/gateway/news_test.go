package gateway

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/record"
	"bulkhead/internal/team"
	"bulkhead/internal/tooltoken"
	"bulkhead/internal/wire"
)

// asking asks a gateway to hear of what happens, as the warden does.
func asking(t *testing.T, path string, q wire.GatewayWatch) *wire.Conn {
	t.Helper()
	u, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	c := wire.New(u)
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Greet(wire.GrantsProtocol, wire.GrantsVersion); err != nil {
		t.Fatal(err)
	}
	if err := c.Send(1, wire.VerbWatch, q); err != nil {
		t.Fatal(err)
	}
	_ = u.SetReadDeadline(time.Now().Add(time.Minute))
	return c
}

// heardOf reads the next record.
func heardOf(t *testing.T, c *wire.Conn) (r record.Record) {
	t.Helper()
	m, _, err := c.Recv()
	var e wire.GatewayEvent
	if err == nil {
		err = json.Unmarshal(m.Body, &e)
	}
	if err == nil {
		err = json.Unmarshal(e.Record, &r)
	}
	if err != nil || m.Verb != wire.VerbEvent {
		t.Fatalf("%v: %+v", err, m)
	}
	return r
}

func began(t *testing.T, c *wire.Conn) {
	t.Helper()
	if m, _, err := c.Recv(); err != nil || m.Verb != wire.VerbStarted {
		t.Fatalf("%v: %+v", err, m)
	}
}

func TestCallsAreToldToWhoAsksAndToNobodyElse(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root is listened to")
	}
	path := filepath.Join(t.TempDir(), "grants.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	socket, records := serveGateway(t, func(dir string, cfg *Config) {
		cfg.Agent, cfg.Data, cfg.Token, cfg.GrantsListener = "writer", dir, runtimeToken+"writer", ln
		cfg.Tools = &team.Tools{Allow: []string{"mem", "notify"}}
	})
	me := asClient(t, socket, tooltoken.Of(runtimeToken+"writer"))
	me.call("mem_set", `{"key":"first","value":"SECRET"}`)
	me.call("mem_set", `{"key":7}`)

	people := asking(t, path, wire.GatewayWatch{})
	began(t, people)
	live := asking(t, path, wire.GatewayWatch{Calls: true})
	began(t, live)
	past := asking(t, path, wire.GatewayWatch{Calls: true, Since: time.Now().Add(-time.Hour)})
	began(t, past)
	for _, want := range []record.Verdict{record.Allowed, record.Denied} {
		if r := heardOf(t, past); r.Target != "mem_set" || r.Verdict != want {
			t.Errorf("%+v, want %s", r, want)
		}
	}
	time.Sleep(100 * time.Millisecond) // until both have their seats, after their first answer
	me.call("mem_set", `{"key":"second","value":"SECRET"}`)
	for _, c := range []*wire.Conn{live, past} {
		r := heardOf(t, c)
		if r.Target != "mem_set" || r.Verdict != record.Allowed || r.Micros <= 0 || !strings.Contains(string(r.Input), `"second"`) || strings.Contains(string(r.Input), "SECRET") {
			t.Errorf("%+v %s", r, r.Input)
		}
	}
	me.call("notify_send", `{"message":"help"}`)
	if r := heardOf(t, people); r.Target != record.Notice || r.Detail != "help" {
		t.Errorf("%+v", r)
	}
	if strings.Contains(records.String(), `"second"`) {
		t.Error("allowed calls are in the log")
	}
	var more []*wire.Conn
	for range maxWatches {
		more = append(more, asking(t, path, wire.GatewayWatch{Calls: true}))
	}
	if m, _, err := more[maxWatches-1].Recv(); err != nil || m.Verb != wire.VerbError {
		t.Errorf("%v %+v: more watch than may", err, m)
	}
}
