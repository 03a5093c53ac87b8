package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// TestTheProxyAsksBeforeADestination goes the runtime's way: through the proxy.
func TestTheProxyAsksBeforeADestination(t *testing.T) {
	d, err := team.ParseDestination("asked.example:80")
	if err != nil {
		t.Fatal(err)
	}
	free, err := team.ParseDestination("free.example:80")
	if err != nil {
		t.Fatal(err)
	}
	s, err := newServer(Config{
		Team: "t", Agent: "a", Token: runtimeToken, DialerSocket: "none", Data: t.TempDir(), Tools: &team.Tools{},
		Egress: []team.Destination{d, free}, Ask: &team.Ask{Egress: []team.Destination{d}},
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.proxy.Close(); _ = s.tools.close(); _ = s.dialer.Close() })
	ln, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test's own
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() { _ = s.proxy.ServeProxy(ln) }()
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: ln.Addr().String()})}}
	code := func(host string) string {
		res, err := client.Get("http://" + host + "/") //nolint:noctx // a test's own
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		return res.Header.Get("Bulkhead-Denied")
	}
	connect := func(host string) string {
		c, err := net.Dial("tcp", ln.Addr().String()) //nolint:noctx // a test's own
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		_, _ = fmt.Fprintf(c, "CONNECT %s:80 HTTP/1.1\r\nHost: %s:80\r\n\r\n", host, host)
		b := make([]byte, 4096)
		n, _ := c.Read(b)
		for _, one := range deny.Codes() {
			if want := "Bulkhead-Denied: " + string(one); bytes.Contains(b[:n], []byte(want+"\r\n")) {
				return string(one)
			}
		}
		return string(b[:n])
	}
	past := code("free.example") // the dialer is away: what is not asked for gets this far
	if past == string(deny.EgressApproval) || past == "" {
		t.Fatal(past)
	}
	for _, got := range []string{code("asked.example"), connect("asked.example"), code("ASKED.example.")} {
		if got != string(deny.EgressApproval) {
			t.Errorf("%q", got)
		}
	}
	body, _ := json.Marshal(wire.ApprovalsRequest{})
	got, err := s.tools.govern(t.Context(), wire.VerbApprovals, body)
	if err != nil {
		t.Fatal(err)
	}
	list := got.(wire.AgentApprovals).Approvals
	if len(list) != 1 || list[0].Scope != "asked.example:80" || s.tools.asking().Waiting != 1 {
		t.Fatalf("%+v", list)
	}
	body, _ = json.Marshal(wire.DecideRequest{ID: list[0].ID, Approve: true, Kind: wire.PermitSession})
	if _, err := s.tools.govern(t.Context(), wire.VerbDecide, body); err != nil {
		t.Fatal(err)
	}
	if got := code("asked.example"); got != past {
		t.Errorf("after the approval: %q, want %q", got, past)
	}
	s.tools.endSession()
	if got := code("asked.example"); got != string(deny.EgressApproval) {
		t.Errorf("after the session: %q", got)
	}
}
