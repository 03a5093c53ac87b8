package net_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	stdnet "net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/primitive/net"
	"bulkhead/internal/record"
	"bulkhead/internal/team"
	"bulkhead/internal/tool"
)

// journal keeps what a gateway would have on disk.
type journal struct {
	mu  sync.Mutex
	all []record.Record
}

func (j *journal) Write(_ context.Context, r record.Record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.all = append(j.all, r)
	return nil
}

func (j *journal) Note(r record.Record) { _ = j.Write(context.Background(), r) }

func (j *journal) take() []record.Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := j.all
	j.all = nil
	return out
}

func serve(t testing.TB, cfg net.Config) (*tool.Dispatcher, *journal) {
	t.Helper()
	tools := net.New(cfg)
	t.Cleanup(tools.Close)
	table, err := tool.NewTable(tools.List()...)
	if err != nil {
		t.Fatal(err)
	}
	j := &journal{}
	return tool.New(tool.Config{Table: table, Journal: j, Allowed: []string{"net"}, Rate: 100_000}), j
}

func object(t testing.TB, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func lines(t testing.TB, path string) []string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var out []string
	for s := bufio.NewScanner(f); s.Scan(); {
		if l := s.Text(); strings.TrimSpace(l) != "" && !strings.HasPrefix(l, "#") {
			out = append(out, l)
		}
	}
	if len(out) < 50 {
		t.Fatalf("%s holds %d cases", path, len(out))
	}
	return out
}

func urlAgent() *team.Agent {
	return &team.Agent{
		Name: "writer",
		Egress: []team.Destination{
			{Host: "api.example.com", Port: 443, SNI: team.SNIExact},
			{Host: "*.cdn.example.com", Port: 443, SNI: team.SNIExact},
			{Host: "deep.cdn.example.com", Port: 8443, SNI: team.SNIExact},
			{Host: "plain.example.com", Port: 80, SNI: team.SNIExact},
			{Host: "plain.example.com", Port: 443, SNI: team.SNIExact},
			{Host: "legacy.example.com", Port: 8080, SNI: team.SNIExact},
			{Host: "xn--bcher-kva.example", Port: 443, SNI: team.SNIExact},
			{Host: "host", Port: 8080, SNI: team.SNIExact},
			{Address: netip.MustParseAddr("192.0.2.7"), Port: 5432, SNI: team.SNIExact},
			{Address: netip.MustParseAddr("2001:db8::7"), Port: 443, SNI: team.SNIExact},
		},
	}
}

var errDialled = errors.New("the test connects to nobody")

// noWay is a way out that notes what it is asked for.
type noWay struct{ to []string }

func (w *noWay) config() net.Config {
	policy := dial.NewPolicy(urlAgent())
	return net.Config{
		Policy: func() *dial.Policy { return policy },
		Dial: func(_ context.Context, host string, port uint16) (stdnet.Conn, error) {
			h, err := dial.Normalise(host)
			if err != nil {
				return nil, err
			}
			w.to = append(w.to, dial.Target(h, port))
			return nil, errDialled
		},
		Resolve: func(context.Context, string, uint16) ([]netip.Addr, error) { return nil, errDialled },
	}
}

var escapes = strings.NewReplacer(`\t`, "\t", `\n`, "\n", `\r`, "\r", `\0`, "\x00", `\x7f`, "\x7f")

func TestAURLLeadsWhereTheManifestSaysOrNowhere(t *testing.T) {
	for _, l := range lines(t, "testdata/urls.txt") {
		at := strings.LastIndex(l, " | ")
		url, want := escapes.Replace(l[:at]), l[at+3:]
		w := &noWay{}
		d, _ := serve(t, w.config())
		_, reason := d.Call(t.Context(), tool.Caller{Team: "pair", Agent: "writer"}, "net_http_get", object(t, map[string]any{"url": url}))
		if reason == nil {
			t.Fatalf("%q was answered", url)
		}
		got := string(reason.Code)
		if len(w.to) > 0 {
			got = strings.Join(w.to, " ")
		}
		if got != want {
			t.Errorf("%q: %s, want %s (%s)", url, got, want, reason.Why)
		}
		if reason.Code == deny.ToolInvalid && (len(reason.Fields) != 1 || reason.Fields[0].Name != "url" || reason.Fields[0].Why == "") {
			t.Errorf("%q: the failing field is not named: %+v", url, reason.Fields)
		}
	}
}
