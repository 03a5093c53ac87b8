// Package wayout is the one way out of an image's build: the HTTP proxy of
// internal/proxy with a list of destinations, as an id that owns nothing, in
// the host's network. The build itself has no route, see internal/image.
//
// The destinations are the registries that the operator's own clients are
// configured with, or that the command line names. So, unlike an agent's,
// their addresses are not judged: a company's registry is at a private one.
// There is no nftables rule for this id either: it is the proxy that decides.
package wayout

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"time"

	"golang.org/x/net/http/httpproxy"

	"bulkhead/internal/confine"
	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/image"
	"bulkhead/internal/proxy"
	"bulkhead/internal/record"
	"bulkhead/internal/team"
)

// dialTime bounds one attempt to connect.
const dialTime = 30 * time.Second

// Serve serves ln until ctx ends. The request is read from in; what is refused
// is told on log.
func Serve(ctx context.Context, ln net.Listener, in io.Reader, log io.Writer) error {
	if os.Geteuid() == 0 {
		return errors.New("wayout: refuses to run as root: it reads what strangers wrote")
	}
	// It writes no file, and starts no program.
	if err := errors.Join(image.Confine("", log), confine.Seal()); err != nil {
		return fmt.Errorf("wayout: %w", err)
	}
	var r image.WayOutRequest
	if err := json.NewDecoder(in).Decode(&r); err != nil {
		return fmt.Errorf("wayout: request: %w", err)
	}
	policy, err := policyOf(r.Egress)
	if err != nil {
		return fmt.Errorf("wayout: %w", err)
	}
	upstream := httpproxy.FromEnvironment().ProxyFunc()
	p := proxy.New(proxy.Config{
		Policy: func() *dial.Policy { return policy },
		Dial: func(ctx context.Context, host string, port uint16) (net.Conn, error) {
			if _, reason := policy.Check(host, port); reason != nil {
				return nil, reason
			}
			return connect(ctx, net.JoinHostPort(host, strconv.Itoa(int(port))), upstream)
		},
		Record: func(target string, v record.Verdict, reason *deny.Reason) {
			if reason != nil {
				_, _ = fmt.Fprintf(log, "image: the build asked for %s: %s: %s\n", target, v, reason.Why)
			}
		},
	})
	done := make(chan error, 1)
	go func() { done <- p.ServeProxy(ln) }() // ends by Close
	select {
	case <-ctx.Done():
		return p.Close()
	case err := <-done:
		return errors.Join(err, p.Close())
	}
}

// policyOf takes host:port, also with addresses of any range.
func policyOf(egress []string) (*dial.Policy, error) {
	a := &team.Agent{Name: "build"}
	for _, text := range egress {
		if ap, err := netip.ParseAddrPort(text); err == nil {
			a.Egress = append(a.Egress, team.Destination{Address: ap.Addr(), Port: ap.Port(), SNI: team.SNIAny})
			continue
		}
		d, err := team.ParseDestination(text)
		if err != nil {
			return nil, err
		}
		if d.Wild() || d.Host == dial.LoopbackName {
			return nil, fmt.Errorf("%s: name one host", text)
		}
		d.SNI = team.SNIExact
		a.Egress = append(a.Egress, d)
	}
	return dial.NewPolicy(a), nil
}

// connect connects, through the host's own proxy where it has one.
func connect(ctx context.Context, target string, upstream func(*url.URL) (*url.URL, error)) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	var d net.Dialer
	via, err := upstream(&url.URL{Scheme: "https", Host: target})
	if err != nil || via == nil {
		if err != nil {
			return nil, fmt.Errorf("https_proxy: %w", err)
		}
		return d.DialContext(ctx, "tcp", target)
	}
	if via.Scheme != "http" || via.Port() == "" {
		return nil, fmt.Errorf("https_proxy: %s: only http://host:port is supported", via.Redacted())
	}
	c, err := d.DialContext(ctx, "tcp", via.Host)
	if err != nil {
		return nil, err
	}
	if err := tunnel(ctx, c, target, via.User); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func tunnel(ctx context.Context, c net.Conn, target string, user *url.Userinfo) error {
	if end, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(end); err != nil {
			return err
		}
	}
	r := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: target}, Host: target, Header: http.Header{}}
	if user != nil {
		pass, _ := user.Password()
		r.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+pass)))
	}
	if err := r.Write(c); err != nil {
		return err
	}
	// One byte at a time: what follows the answer is the target's.
	answer, err := http.ReadResponse(bufio.NewReaderSize(oneByte{c}, 16), r) //nolint:bodyclose // what follows this answer is the tunnel, and the caller's
	if err != nil {
		return fmt.Errorf("the host's proxy: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the host's proxy refuses %s: %s", target, answer.Status)
	}
	return c.SetDeadline(time.Time{})
}

type oneByte struct{ io.Reader }

func (o oneByte) Read(b []byte) (int, error) { return o.Reader.Read(b[:min(len(b), 1)]) }
