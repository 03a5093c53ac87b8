package dialer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/wire"
)

// proxyAuthentication is the status of a proxy that wants credentials (RFC 9110,
// 15.5.8).
const proxyAuthentication = 407

// connectUpstream asks the proxy at the other end of c for via.Target, and
// gives what the destination has said already. The proxy's refusal is a reason;
// again says that it wants other credentials.
func connectUpstream(ctx context.Context, c net.Conn, via *wire.Via) (early []byte, again bool, _ *deny.Reason) {
	request, err := connectRequest(via)
	if err != nil {
		return nil, false, upstreamFailed(via, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err = c.Write(request)
	var a answer
	if err == nil {
		a, err = readAnswer(c)
	}
	if !stop() && err == nil { // the deadline is set, or will be
		err = ctx.Err()
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("it did not answer in time: %w", ctx.Err())
	}
	switch {
	case err != nil:
		return nil, false, upstreamFailed(via, err)
	case !a.connected():
		return nil, a.code == proxyAuthentication, upstreamRefused(via, a)
	}
	return a.early, false, nil
}

// connectRequest writes the request (RFC 9110, 9.3.6). What it is made of comes
// from the warden; a line end in it would be another request all the same.
func connectRequest(via *wire.Via) ([]byte, error) {
	if via.Target == "" || strings.ContainsFunc(via.Target+via.Authorization, func(c rune) bool { return c < ' ' || c > '~' }) || strings.Contains(via.Target, " ") {
		return nil, errors.New("the warden's answer holds what no request can")
	}
	var b strings.Builder
	b.WriteString("CONNECT " + via.Target + " HTTP/1.1\r\nHost: " + via.Target + "\r\n")
	if via.Authorization != "" {
		b.WriteString("Proxy-Authorization: " + via.Authorization + "\r\n")
	}
	b.WriteString("\r\n")
	return []byte(b.String()), nil
}

// upstreamFailed is for a proxy that did not answer, or not as one.
func upstreamFailed(via *wire.Via, err error) *deny.Reason {
	return &deny.Reason{
		Layer: deny.LayerEgress, Code: deny.Unreachable, What: via.Target,
		Why:  fmt.Sprintf("it is allowed, but the upstream proxy %s gave no connection: %v", via.Proxy, err),
		Mend: "check that upstreamProxy.url in bulkhead.yaml names the company's HTTP proxy, that it runs, and that this host reaches it",
	}
}

// upstreamRefused is for a proxy that answered with anything but 2xx.
func upstreamRefused(via *wire.Via, a answer) *deny.Reason {
	_, port, _ := strings.Cut(via.Target[strings.LastIndexByte(via.Target, ':'):], ":")
	mend := fmt.Sprintf("have the proxy allow CONNECT to %s (many allow port 443 alone), or list the name under upstreamProxy.except in bulkhead.yaml if this host reaches port %s there by itself", via.Target, port)
	switch {
	case a.code == proxyAuthentication && via.Authorization == "":
		mend = "the proxy wants credentials: name a file of root's with user:password under upstreamProxy.credentialsFile in bulkhead.yaml"
	case a.code == proxyAuthentication:
		mend = "the proxy does not take the credentials: correct user:password in upstreamProxy.credentialsFile; only the Basic scheme is spoken"
	case a.code >= 500:
		mend = "check that the service runs; the proxy, and not this host, looks its name up and connects to it"
	}
	return &deny.Reason{
		Layer: deny.LayerEgress, Code: deny.UpstreamRefused, What: via.Target,
		Why: fmt.Sprintf("it is allowed, but the upstream proxy %s answered: %s", via.Proxy, a.status), Mend: mend,
	}
}
