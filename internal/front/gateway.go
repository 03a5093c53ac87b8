package front

import (
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/front/protocol"
	"bulkhead/internal/hub"
	"bulkhead/internal/plain"
	"bulkhead/internal/wire"
)

// gateway is one agent's, for as long as its connection lives.
type gateway struct {
	c     *wire.Conn
	ctx   context.Context
	proxy *httputil.ReverseProxy
	slots chan struct{}

	active int       // requests of it; guarded by Server.mu
	last   time.Time // when one ended; guarded by Server.mu

	mu     sync.Mutex // guards what follows
	nextID uint64
}

// member keeps one gateway's connection. A later one of the same gateway takes
// the place of a former one that nobody closed yet.
func (s *Server) member(ctx context.Context, m hub.Member, c *wire.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g := &gateway{c: c, ctx: ctx, slots: make(chan struct{}, maxRequests), last: time.Now()}
	t := &http.Transport{
		DialContext: g.dial, MaxConnsPerHost: maxRequests, MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute,
		DisableCompression: true, ResponseHeaderTimeout: requestTimeout, MaxResponseHeaderBytes: maxHeader,
		Protocols: new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	defer t.CloseIdleConnections()
	g.proxy = &httputil.ReverseProxy{
		Rewrite: rewrite, Transport: t, FlushInterval: -1, ErrorLog: stdlog.New(io.Discard, "", 0),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			reason := away(r.Method+" "+clip(r.URL.Path), "the gateway of "+m.Agent+" did not answer")
			var large *http.MaxBytesError
			if errors.As(err, &large) {
				reason = unfit(&http.Request{Method: r.Method, URL: r.URL, ContentLength: maxBody + 1})
			}
			s.refuse(w, m.Team, m.Agent, reason)
		},
	}
	s.mu.Lock()
	s.gateways[m.Key()] = g
	s.desk.woken(m.Key(), nil)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, all := range []map[string]*gateway{s.gateways, s.resting} {
			if all[m.Key()] == g {
				delete(all, m.Key())
			}
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	// The gateway has nothing to say: whatever comes is its end.
	_, files, _ := c.Recv()
	for _, f := range files {
		_ = f.Close()
	}
}

// rewrite makes the request that the gateway gets. Its headers are those of the
// caller without what is between two neighbours, which ReverseProxy has removed,
// and without what says where it came from.
func rewrite(r *httputil.ProxyRequest) {
	r.Out.URL.Scheme, r.Out.URL.Host = "http", wire.OwnName
	r.Out.Host = wire.OwnName
	r.Out.Body = plain.Exact(r.Out.Body, r.Out.ContentLength)
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip", "Via", "Cookie", "Origin", "Referer", "Expect"} {
		r.Out.Header.Del(name)
	}
}

// dial makes a connected pair and passes one end to the gateway.
func (g *gateway) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if ctx.Err() != nil || g.ctx.Err() != nil {
		return nil, errGone
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("front: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "front"), os.NewFile(uintptr(fds[1]), "gateway") // #nosec G115 -- descriptors
	defer func() { _, _ = ours.Close(), theirs.Close() }()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.nextID++
	_ = g.c.Unix().SetWriteDeadline(time.Now().Add(headerTimeout))
	if err := g.c.Send(g.nextID, protocol.VerbConnection, struct{}{}, theirs); err != nil {
		return nil, err
	}
	c, err := net.FileConn(ours)
	if err != nil {
		return nil, fmt.Errorf("front: %w", err)
	}
	return c, nil
}
