package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/plain"
	"bulkhead/internal/record"
	"bulkhead/internal/team"
)

// Defaults and limits.
const (
	MaxConnections = 512
	maxHeader      = 64 << 10
	headerTimeout  = 30 * time.Second
	idleTimeout    = 2 * time.Minute
	firstTimeout   = 30 * time.Second // for the first bytes of a client that began to speak
	copyBuffer     = 128 << 10
	smallBuffer    = 8 << 10
	maxIdleUp      = 64 // idle connections kept for each destination
)

// Config is what a Proxy works with.
type Config struct {
	// Policy gives the policy of this moment.
	Policy func() *dial.Policy
	// Dial gives a connected socket; a refusal is a *deny.Reason.
	Dial func(ctx context.Context, host string, port uint16) (net.Conn, error)
	// Record hears of each decision, with "name:port" as target. It must not
	// block.
	Record         func(target string, v record.Verdict, r *deny.Reason)
	MaxConnections int // zero: MaxConnections
	// Own answers requests to wire.OwnName itself; nothing is dialled for them.
	// Nil: nobody answers to that name.
	Own http.Handler
}

// Proxy serves any number of listeners.
type Proxy struct {
	cfg       Config
	slots     chan struct{}
	http      *http.Server
	origin    *handover // tunnels whose first bytes were HTTP
	transport *http.Transport
	reverse   *httputil.ReverseProxy
	buffers   sync.Pool // of copyBuffer, for bodies
	small     sync.Pool // of smallBuffer, for tunnels
	work      sync.WaitGroup
	ctx       context.Context // ends with the proxy
	stop      context.CancelFunc
	upstreams *upstreams // of plain requests; the transport has its own
	careful   bool       // net/http serves plain requests as well: tests compare

	mu   sync.Mutex
	open map[*slotConn]bool
}

// New makes a proxy. Close ends it.
func New(cfg Config) *Proxy {
	if cfg.MaxConnections <= 0 {
		cfg.MaxConnections = MaxConnections
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &Proxy{
		cfg: cfg, slots: make(chan struct{}, cfg.MaxConnections), origin: newHandover(), ctx: ctx, stop: stop,
		upstreams: &upstreams{open: map[*upConn]bool{}, idle: map[string][]*upConn{}},
		open:      map[*slotConn]bool{},
	}
	p.buffers.New = func() any { b := make([]byte, copyBuffer); return &b }
	p.small.New = func() any { b := make([]byte, smallBuffer); return &b }
	p.transport = &http.Transport{
		DialContext: p.dialUp, Proxy: nil, DisableCompression: true,
		MaxIdleConnsPerHost: maxIdleUp, MaxIdleConns: 4 * maxIdleUp, IdleConnTimeout: time.Minute,
		MaxResponseHeaderBytes: maxAnswer, ExpectContinueTimeout: time.Second,
		ReadBufferSize: 16 << 10, WriteBufferSize: 16 << 10,
	}
	quiet := log.New(io.Discard, "", 0) // what a client sent wrong is its own business
	p.reverse = &httputil.ReverseProxy{
		Rewrite: p.rewrite, Transport: p.transport, FlushInterval: -1, BufferPool: pool{&p.buffers},
		ErrorHandler: p.failed, ErrorLog: quiet, ModifyResponse: undenied,
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	p.http = &http.Server{
		Handler: p, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, Protocols: protocols, ErrorLog: quiet,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
	p.work.Go(func() { _ = p.http.Serve(p.origin) })
	return p
}

type connKey struct{}

// ServeProxy serves the HTTP proxy on ln until ln is closed.
func (p *Proxy) ServeProxy(ln net.Listener) error {
	err := p.http.Serve(&clients{limited{Listener: ln, p: p}})
	if errors.Is(err, net.ErrClosed) || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// ServeStatic passes each connection on ln to host:port until ln is closed.
func (p *Proxy) ServeStatic(ctx context.Context, ln net.Listener, host string, port uint16) error {
	l := &limited{Listener: ln, p: p}
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		p.work.Go(func() { p.static(ctx, c.(*slotConn), host, port) })
	}
}

func (p *Proxy) static(ctx context.Context, c *slotConn, host string, port uint16) {
	t, reason := p.target(host, port)
	if reason != nil {
		p.cfg.Record(t.String(), record.Denied, reason)
		_ = c.Close()
		return
	}
	up, err := p.cfg.Dial(ctx, t.host.String(), t.port)
	if err != nil {
		p.recordFailure(t, err)
		_ = c.Close()
		return
	}
	p.tunnel(c, nil, up, t)
}

// Close ends every connection and waits.
func (p *Proxy) Close() error {
	p.stop()
	err := p.http.Close()
	_ = p.origin.Close()
	p.mu.Lock()
	for c := range p.open {
		_ = c.stream.Close()
	}
	p.mu.Unlock()
	p.upstreams.close()
	p.work.Wait()
	p.transport.CloseIdleConnections()
	return err
}

// target is a destination that the guard let pass.
type target struct {
	host dial.Host
	port uint16
	dest team.Destination
}

func (t target) String() string { return dial.Target(t.host, t.port) }

// authority is t as a request for it has it in Host, when t is bound to its name.
func (t target) authority() string {
	if t.port == 80 {
		return t.host.Name
	}
	return t.String()
}

// byName says whether the destination is bound to its name.
func (t target) byName() bool { return t.host.Name != "" && t.dest.SNI != team.SNIAny }

func (p *Proxy) target(host string, port uint16) (target, *deny.Reason) {
	h, _ := dial.Normalise(host)
	t := target{host: h, port: port}
	d, reason := p.cfg.Policy().Check(host, port)
	t.dest = d
	return t, reason
}

// ServeHTTP is one request to the proxy, or inside a tunnel.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch c := r.Context().Value(connKey{}).(*clientConn); {
	case c.own:
		p.inOwnTunnel(w, r)
		return
	case c.tunnel != nil:
		p.inTunnel(w, r, *c.tunnel)
		return
	}
	if p.own(r) {
		p.cfg.Own.ServeHTTP(w, r)
		return
	}
	if r.Method == http.MethodConnect {
		p.connect(w, r)
		return
	}
	if r.URL.Scheme != "http" || r.URL.Host == "" || r.URL.User != nil || r.URL.Opaque != "" {
		p.refuse(w, badRequest(r.Method+" "+r.URL.Scheme+"://"+r.URL.Host, "a proxy takes CONNECT and absolute http:// targets without a user"))
		return
	}
	host, port, err := split(r.URL.Host, "80")
	if err != nil {
		p.refuse(w, badRequest(r.URL.Host, err.Error()))
		return
	}
	t, reason := p.target(host, port)
	if reason == nil && t.port == 443 && t.byName() {
		reason = notTLS(t)
	}
	if reason != nil {
		p.refuse(w, reason)
		return
	}
	p.forward(w, r, t)
}

// inTunnel checks one more request on a connection that is for one target.
func (p *Proxy) inTunnel(w http.ResponseWriter, r *http.Request, t target) {
	host, port, err := split(r.Host, strconv.Itoa(int(t.port)))
	if err != nil || r.Method == http.MethodConnect {
		p.refuse(w, badRequest(fmt.Sprintf("%s with Host %.100q", r.Method, r.Host), "inside a tunnel every request names the tunnel's host"))
		return
	}
	if h, err := dial.Normalise(host); t.byName() && (err != nil || h != t.host || port != t.port) {
		p.refuse(w, mismatch(t, "Host", r.Host))
		return
	}
	p.forward(w, r, t)
}

func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, t target) {
	p.cfg.Record(t.String(), record.Allowed, nil)
	p.reverse.ServeHTTP(foreign{w}, r.WithContext(context.WithValue(r.Context(), targetKey{}, t)))
	delete(w.Header(), DeniedHeader) // a trailer by now; what was written is
	delete(w.Header(), http.TrailerPrefix+DeniedHeader)
}

type targetKey struct{}

// rewrite builds the request that goes out: hop-by-hop fields are gone
// already, and Host is the authority that was checked.
func (p *Proxy) rewrite(pr *httputil.ProxyRequest) {
	t := pr.In.Context().Value(targetKey{}).(target)
	pr.Out.URL.Scheme, pr.Out.URL.Host = "http", t.String()
	pr.Out.Body = plain.Exact(pr.Out.Body, pr.Out.ContentLength)
	if t.byName() {
		pr.Out.Host = t.authority()
		// After a switch of protocols nothing is checked any more. WebSocket has
		// no other host inside; h2c, which some servers take, has one in every
		// request (RFC 7540, 3.2).
		if u := pr.Out.Header.Get("Upgrade"); u != "" && !strings.EqualFold(u, "websocket") {
			pr.Out.Header.Del("Upgrade")
			pr.Out.Header.Del("Connection")
			pr.Out.Header.Del("HTTP2-Settings")
		}
	}
}

// dialUp is the transport's way out. addr is always a target's String.
func (p *Proxy) dialUp(ctx context.Context, _, addr string) (net.Conn, error) {
	if c, ok := ctx.Value(connKey{}).(*clientConn); ok && c.tunnel != nil && c.tunnel.String() == addr {
		if up := c.spared(); up != nil {
			return up, nil
		}
	}
	host, port, err := split(addr, "")
	if err != nil {
		return nil, err
	}
	return p.cfg.Dial(ctx, host, port)
}

func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	t, _ := r.Context().Value(targetKey{}).(target)
	if errors.Is(err, context.Canceled) {
		return // the client went away
	}
	p.refuse(w.(foreign).ResponseWriter, p.reasonFor(t, err))
}

func (p *Proxy) connect(w http.ResponseWriter, r *http.Request) {
	if i := strings.LastIndexByte(r.RequestURI, '@'); i >= 0 { // not on record: it may be a password
		p.refuse(w, badRequest("CONNECT "+r.RequestURI[i+1:], "a proxy takes CONNECT host:port without a user"))
		return
	}
	host, port, err := split(r.RequestURI, "")
	if err != nil {
		p.refuse(w, badRequest("CONNECT "+r.RequestURI, err.Error()))
		return
	}
	if p.isOwn(host, port) {
		p.connectOwn(w)
		return
	}
	t, reason := p.target(host, port)
	if reason != nil {
		p.refuse(w, reason)
		return
	}
	up, err := p.cfg.Dial(r.Context(), t.host.String(), t.port)
	if err != nil {
		p.refuse(w, p.reasonFor(t, err))
		return
	}
	c, early, err := established(w)
	if err != nil {
		_ = up.Close()
		return
	}
	// In the connection's own goroutine: the server counts it no more.
	p.work.Add(1)
	defer p.work.Done()
	p.tunnel(c, early, up, t)
}

// established takes a connection over from the server and says that its tunnel
// stands. early is what the client said already.
func established(w http.ResponseWriter) (c *slotConn, early []byte, err error) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	c = conn.(*clientConn).slotConn
	_ = c.SetDeadline(time.Time{})
	if n := rw.Reader.Buffered(); n > 0 {
		early = make([]byte, n)
		_, _ = io.ReadFull(rw.Reader, early)
	}
	if _, err := io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		_ = c.Close()
		return nil, nil, err
	}
	return c, early, nil
}

// reasonFor turns the failure of an allowed destination into a reason.
func (p *Proxy) reasonFor(t target, err error) *deny.Reason {
	var reason *deny.Reason
	if errors.As(err, &reason) {
		return reason
	}
	return &deny.Reason{
		Layer: deny.LayerEgress, Code: deny.Unreachable, What: t.String(),
		Why: "it is allowed, but the exchange failed: " + deny.Unquoted(err.Error()), Mend: "check that the service runs and can be reached from this host",
	}
}

func (p *Proxy) recordFailure(t target, err error) { p.recordReason(t.String(), p.reasonFor(t, err)) }

func (p *Proxy) recordReason(what string, r *deny.Reason) {
	v := record.Denied
	if r.Code.Failure() {
		v = record.Failed
	}
	p.cfg.Record(what, v, r)
}

// split reads "host:port" or, with a default port, "host". A port is one to
// five decimal digits.
func split(authority, port string) (string, uint16, error) {
	host := authority
	if i := strings.LastIndexByte(authority, ':'); i >= 0 && !strings.HasSuffix(authority, "]") && (strings.HasPrefix(authority, "[") || strings.Count(authority, ":") == 1) {
		host, port = authority[:i], authority[i+1:]
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || len(port) > 5 || port[0] == '+' || n == 0 || host == "" {
		return "", 0, fmt.Errorf("%.100q is not host:port", authority)
	}
	return host, uint16(n), nil
}

type pool struct{ *sync.Pool }

func (p pool) Get() []byte  { return *p.Pool.Get().(*[]byte) }
func (p pool) Put(b []byte) { p.Pool.Put(&b) }

// temporary says whether accepting may work again soon.
func temporary(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM)
}
