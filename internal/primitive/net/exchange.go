package net

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/team"
	"bulkhead/internal/tool"
)

// Answer is the answer of an exchange.
type Answer struct {
	Status      int               `json:"status"`
	Headers     map[string]string `json:"headers"` // names in lower case
	Body        string            `json:"body"`
	ContentType string            `json:"contentType"`
	Encoding    string            `json:"encoding"`  // of Body: "utf-8" or "base64"
	URL         string            `json:"url"`       // that answered
	Redirects   int               `json:"redirects"` // that were followed
}

// request is what the next hop is sent.
type request struct {
	method string
	header http.Header
	body   []byte // nil: none
	to     target
}

// exchange carries one call out.
func (t *Tools) exchange(ctx context.Context, c *tool.Call, method string) (any, error) {
	q, reason := parseRequest(c, method)
	if reason != nil {
		return nil, reason
	}
	if reason := t.check(c, q.to); reason != nil {
		return nil, reason
	}
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	select {
	case t.calls <- struct{}{}:
		defer func() { <-t.calls }()
	case <-ctx.Done():
		return nil, t.failed(ctx, c, q.to.destination(), ctx.Err())
	}
	if err := c.Begin(ctx); err != nil {
		return nil, err
	}
	for hop := 0; ; hop++ {
		res, err := t.send(ctx, q)
		if err != nil {
			return nil, t.failed(ctx, c, q.to.destination(), err)
		}
		t.cfg.Record(q.to.destination(), record.Allowed, nil)
		next, follow, reason := q.redirected(c, res)
		if reason == nil && !follow {
			return t.answer(ctx, c, q.to, res, hop)
		}
		// What stands in a redirect's body is not read: the connection ends.
		_ = res.Body.Close()
		if reason == nil && hop == maxRedirects {
			reason = tool.Refuse(deny.Unreachable, c.What(), fmt.Sprintf("it was redirected more than %d times", maxRedirects), "ask for the URL that it leads to")
		}
		if reason == nil {
			reason = t.check(c, next.to)
		}
		if reason != nil {
			return nil, reason
		}
		q = next
	}
}

// parseRequest reads the input, and names every fault.
func parseRequest(c *tool.Call, method string) (request, *deny.Reason) {
	q := request{method: method}
	var faults []deny.Field
	var err error
	if q.to, err = parseTarget(c.In.String("url")); err != nil {
		faults = append(faults, deny.Field{Name: "url", Why: err.Error()})
	}
	header, more := parseHeader(c.In.Raw("headers"))
	q.header, faults = header, append(faults, more...)
	switch raw := c.In.Raw("body"); {
	case raw != nil && c.In.Has("bodyBase64"):
		faults = append(faults, deny.Field{Name: "bodyBase64", Why: "body is given as well"})
	case c.In.Has("bodyBase64"):
		q.body = c.In.Bytes("bodyBase64")
	case raw != nil && raw[0] == '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			faults = append(faults, deny.Field{Name: "body", Why: err.Error()})
		}
		q.body = []byte(s)
	case raw != nil && string(raw) != "null":
		q.body = raw
		if q.header != nil && q.header.Get("Content-Type") == "" {
			q.header.Set("Content-Type", "application/json")
		}
	}
	if len(q.body) > maxRequest {
		faults = append(faults, deny.Field{Name: "body", Why: fmt.Sprintf("it has %d bytes; at most %d are taken", len(q.body), maxRequest)})
	}
	if len(faults) > 0 {
		return q, invalid(c, faults...)
	}
	if q.header.Get("User-Agent") == "" {
		q.header.Set("User-Agent", "bulkhead")
	}
	if q.header.Get("Accept-Encoding") == "" {
		q.header.Set("Accept-Encoding", "gzip")
	}
	return q, nil
}

// check asks the guard about one hop, and writes a refusal down.
func (t *Tools) check(c *tool.Call, to target) *deny.Reason {
	reason := narrow(c, to.host, to.destination())
	if reason == nil {
		var d team.Destination
		d, reason = t.cfg.Policy().Check(to.host.String(), to.port)
		if reason == nil && !to.secure() && to.port == defaultPort("https") && d.SNI != team.SNIAny {
			reason = &deny.Reason{
				Layer: deny.LayerEgress, Code: deny.NoServerName, What: to.destination(), Why: "port 443 is for TLS, and the URL says http",
				Mend: "write https",
			}
		}
	}
	if reason != nil {
		t.cfg.Record(to.destination(), record.Denied, reason)
	}
	return reason
}

// send makes one request. The body of what it gives is the caller's to close.
func (t *Tools) send(ctx context.Context, q request) (*http.Response, error) {
	var body io.Reader
	if q.body != nil {
		body = bytes.NewReader(q.body)
	}
	r, err := http.NewRequestWithContext(ctx, q.method, q.to.url.String(), body)
	if err != nil {
		return nil, err
	}
	r.Host, r.Header = q.to.authority(), q.header
	res, err := t.transport.RoundTrip(r)
	if err == nil && res.StatusCode == http.StatusSwitchingProtocols {
		_ = res.Body.Close()
		return nil, errors.New("it switched to another protocol without being asked")
	}
	return res, err
}

// failed turns the failure of an allowed hop into a reason, and writes it down.
func (t *Tools) failed(ctx context.Context, c *tool.Call, to string, err error) error {
	var reason *deny.Reason
	var untrusted *tls.CertificateVerificationError
	var roots x509.SystemRootsError
	verdict := record.Failed
	switch {
	case errors.As(err, &reason):
		if !reason.Code.Failure() && reason.Code != deny.ToolTooLarge { // what came is too large
			verdict = record.Denied
		}
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		reason = tool.Refuse(deny.ToolTimeout, c.What(), fmt.Sprintf("%s did not answer, with all of its redirects, within %s", to, t.cfg.Timeout), "ask for less, or try again later")
	case ctx.Err() != nil:
		return ctx.Err() // the caller went away
	case errors.As(err, &untrusted), errors.As(err, &roots):
		reason = &deny.Reason{
			Layer: deny.LayerEgress, Code: deny.Unreachable, What: to, Why: "it is allowed, but its certificate is not good for that name: " + deny.Unquoted(err.Error()),
			Mend: "ask for the name that the certificate has; for a company's own authority, add its certificate to caFiles in bulkhead.yaml",
		}
	default:
		reason = &deny.Reason{
			Layer: deny.LayerEgress, Code: deny.Unreachable, What: to, Why: "it is allowed, but the exchange failed: " + deny.Unquoted(err.Error()),
			Mend: "check that the service runs and can be reached from this host",
		}
	}
	t.cfg.Record(to, verdict, reason)
	return reason
}

func invalid(c *tool.Call, faults ...deny.Field) *deny.Reason {
	return misread(c.What(), faults...)
}

func misread(what string, faults ...deny.Field) *deny.Reason {
	r := tool.Refuse(deny.ToolInvalid, what, "the input is not what this tool takes", "mend the fields that are named")
	r.Fields = faults
	return r
}
