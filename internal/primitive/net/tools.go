package net

import (
	"context"
	"crypto/x509"
	stdnet "net"
	"net/http"
	"net/netip"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/record"
	"bulkhead/internal/tool"
)

// Bounds of one exchange.
const (
	Timeout      = 30 * time.Second // of a call with all of its redirects
	MaxAnswer    = 10 << 20         // bytes of an answer's body, as sent and as decoded
	maxRequest   = 10 << 20         // bytes of a request's body
	maxInput     = 16 << 20         // bytes of the JSON that holds one, escaped or in base64
	maxURL       = 2048
	maxRedirects = 5
	maxName      = 253 // RFC 1035, 2.3.4
)

// Bounds of what one gateway does at a time.
const (
	maxCalls = 16
	// maxLarge is how many answers above smallAnswer are in memory at once.
	maxLarge    = 2
	smallAnswer = 1 << 20
)

// Config is what the tools work with: the gateway's own guard and way out.
type Config struct {
	// Policy gives the policy of this moment.
	Policy func() *dial.Policy
	// Dial gives a connected socket to an address that the guard checked; a
	// refusal is a *deny.Reason.
	Dial func(ctx context.Context, host string, port uint16) (stdnet.Conn, error)
	// Resolve gives the addresses that Dial would connect to; a refusal is a
	// *deny.Reason.
	Resolve func(ctx context.Context, host string, port uint16) ([]netip.Addr, error)
	// Roots are the certificate authorities that servers are verified by; nil:
	// the system's, which in a gateway are those that the warden gave it.
	Roots *x509.CertPool
	// Record hears of each decision about a hop, with "name:port" as target, as
	// the proxy's does. Optional.
	Record func(target string, v record.Verdict, r *deny.Reason)
	// Timeout is [Timeout] when zero; tests have less patience.
	Timeout time.Duration
}

// Tools are the rows of the net tools. Close ends what they keep open.
type Tools struct {
	cfg       Config
	transport *http.Transport
	calls     chan struct{}
	large     chan struct{}
}

// New makes the tools. Nothing is opened yet.
func New(cfg Config) *Tools {
	if cfg.Record == nil {
		cfg.Record = func(string, record.Verdict, *deny.Reason) {}
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = Timeout
	}
	t := &Tools{cfg: cfg, calls: make(chan struct{}, maxCalls), large: make(chan struct{}, maxLarge)}
	t.transport = newTransport(&t.cfg)
	return t
}

// Close ends idle connections.
func (t *Tools) Close() { t.transport.CloseIdleConnections() }

// List gives the rows of the table.
func (t *Tools) List() []tool.Tool {
	url := tool.Field{
		Name: "url", Type: tool.String, Required: true, Min: 1, Max: maxURL,
		Doc: "https://host/path; http:// where the manifest lists the destination with that port",
	}
	headers := tool.Field{Name: "headers", Type: tool.Object, Max: 64 << 10, Doc: "request header, names and values as strings"}
	body := tool.Field{
		Name: "body", Type: tool.Any, Max: 2 * maxRequest,
		Doc: "a string is sent as it is; any other JSON value is sent as JSON, with content-type application/json unless headers say otherwise",
	}
	binary := tool.Field{Name: "bodyBase64", Type: tool.Bytes, Max: maxRequest, Doc: "instead of body: bytes, in base64"}
	row := func(name, method, summary string, fields ...tool.Field) tool.Tool {
		input := int64(0)
		if method == http.MethodPost || method == http.MethodPut {
			input = maxInput
		}
		return tool.Tool{
			Name: name, Group: tool.Network, Summary: summary, Fields: fields, Effect: true, MaxInput: input, Scope: scope,
			Run: func(ctx context.Context, c *tool.Call) (any, error) { return t.exchange(ctx, c, method) },
		}
	}
	const answer = " Answers status, headers, body (base64 when encoding says so) and contentType. Only destinations of the agent's manifest are reached."
	return []tool.Tool{
		row("net_http_get", http.MethodGet, "Fetch a URL by HTTP GET."+answer, url, headers),
		row("net_http_post", http.MethodPost, "Send a body to a URL by HTTP POST."+answer, url, headers, body, binary),
		row("net_http_put", http.MethodPut, "Send a body to a URL by HTTP PUT."+answer, url, headers, body, binary),
		row("net_http_delete", http.MethodDelete, "Send an HTTP DELETE to a URL."+answer, url, headers),
		{
			Name: "net_dns_resolve", Group: tool.Network, Run: t.resolve, Scope: nameScope,
			Summary: "Give the addresses of a host name that the agent's manifest lists: those that a connection to it would use.",
			Fields:  []tool.Field{{Name: "hostname", Type: tool.String, Required: true, Min: 1, Max: maxName + 1, Shown: true, Doc: "a DNS name"}},
		},
	}
}
