package dialer_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
	"bulkhead/internal/dialer"
	"bulkhead/internal/wire"
)

const secret = "Basic am86aHVudGVyMg=="

// forwarder is a forward proxy that knows where names lead.
type forwarder struct {
	at      netip.AddrPort
	mu      sync.Mutex
	targets map[string]netip.AddrPort
	asked   []string
}

// startForwarder takes CONNECT for its targets with the right credentials.
func startForwarder(t *testing.T) *forwarder {
	t.Helper()
	f := &forwarder{targets: map[string]netip.AddrPort{}}
	f.at = serve(t, func(c net.Conn) {
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		f.mu.Lock()
		f.asked = append(f.asked, r.Method+" "+r.RequestURI+" "+r.Host)
		to, ok := f.targets[r.RequestURI]
		f.mu.Unlock()
		switch {
		case r.Header.Get("Proxy-Authorization") != secret:
			_, _ = io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n")
			return
		case !ok:
			_, _ = io.WriteString(c, "HTTP/1.1 403 Forbidden\r\n\r\nno")
			return
		}
		up, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(to))
		if err != nil {
			_, _ = io.WriteString(c, "HTTP/1.1 503 Service Unavailable\r\n\r\n")
			return
		}
		defer func() { _ = up.Close() }()
		_, _ = io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n")
		var both sync.WaitGroup
		both.Go(func() { _, _ = io.Copy(up, c); _ = up.CloseWrite() })
		_, _ = io.Copy(c, up)
		_ = c.(*net.TCPConn).CloseWrite()
		both.Wait()
	})
	return f
}

func (f *forwarder) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string{}, f.asked...)
}

// serve gives each connection to fn until the test ends.
func serve(t *testing.T, fn func(net.Conn)) netip.AddrPort {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			end := context.AfterFunc(t.Context(), func() { _ = c.Close() })
			work.Go(func() {
				defer end()
				defer func() { _ = c.Close() }()
				fn(c)
			})
		}
	})
	t.Cleanup(func() { _ = ln.Close(); work.Wait() })
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

// behind starts a warden and a dialer that relays; pins lead to proxy.
func behind(t *testing.T, proxy netip.AddrPort, names ...string) (*warden, *dialer.Client) {
	t.Helper()
	dir := t.TempDir()
	w := startWarden(t, filepath.Join(dir, "pin.sock"))
	for _, n := range names {
		w.pin(n, wire.Pinned{Addresses: []netip.AddrPort{proxy}, Via: &wire.Via{Proxy: "proxy.example:3128", Target: n + ":1", Authorization: secret}})
	}
	return w, startBounded(t, dir, dialer.Config{Gateway: me(), Connections: 20, Relay: true})
}

func (w *warden) pin(host string, p wire.Pinned) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.Expires.IsZero() {
		p.Expires = time.Now().Add(time.Minute)
	}
	w.pins[host] = p
}

// isPipe says whether a passed connection is of the unix family, by the kernel.
func isPipe(t *testing.T, c net.Conn) bool {
	t.Helper()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	family := 0
	if err := raw.Control(func(fd uintptr) { family, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN) }); err != nil {
		t.Fatal(err)
	}
	return family == unix.AF_UNIX
}

func TestAProxiedConnectionIsAPipeThatCarriesBothWays(t *testing.T) {
	f := startForwarder(t)
	// The far side greets first, then sends back what it read once it is whole.
	f.targets["echo.example:1"] = serve(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "hello ")
		b, _ := io.ReadAll(c)
		_, _ = c.Write(b)
	})
	_, c := behind(t, f.at, "echo.example")
	conn, at, err := c.Dial(t.Context(), "echo.example", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if !isPipe(t, conn) || at != f.at {
		t.Fatalf("a socket of the host's network came, to %s", at)
	}
	said := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // beyond every buffer in between
	var sent sync.WaitGroup
	sent.Go(func() {
		if _, err := conn.Write(said); err != nil {
			t.Error(err)
		}
		if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Error(err)
		}
	})
	got, err := io.ReadAll(conn)
	sent.Wait()
	if err != nil || !bytes.Equal(got, append([]byte("hello "), said...)) {
		t.Fatalf("%d bytes came back, %v", len(got), err)
	}
	if got := f.requests(); len(got) != 1 || got[0] != "CONNECT echo.example:1 echo.example:1" {
		t.Fatalf("%q", got)
	}
}

func TestWhatIsReachedWithoutTheProxyIsAPipeToo(t *testing.T) {
	w, c := behind(t, closed(t))
	w.pin("direct.example", wire.Pinned{Addresses: []netip.AddrPort{listen(t)}})
	conn, _, err := c.Dial(t.Context(), "direct.example", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if b, err := io.ReadAll(conn); string(b) != "hello" || err != nil || !isPipe(t, conn) {
		t.Fatalf("%q %v", b, err)
	}
}

func TestNoFreshSocketIsGivenBehindAProxy(t *testing.T) {
	_, c := behind(t, closed(t))
	for _, family := range []int{4, 6} {
		if f, err := c.Socket(t.Context(), family); code(err) != deny.RelayedOnly || f != nil {
			t.Fatalf("%v", err)
		}
	}
}

func TestADialerThatDoesNotRelayRefusesAProxy(t *testing.T) {
	f := startForwarder(t)
	f.targets["echo.example:1"] = listen(t)
	dir := t.TempDir()
	w := startWarden(t, filepath.Join(dir, "pin.sock"))
	w.pin("echo.example", wire.Pinned{Addresses: []netip.AddrPort{f.at}, Via: &wire.Via{Target: "echo.example:1", Authorization: secret}})
	c := startDialer(t, dir, me())
	if _, _, err := c.Dial(t.Context(), "echo.example", 1); code(err) != deny.PinFailed {
		t.Fatalf("%v", err)
	}
	if got := f.requests(); len(got) != 0 {
		t.Fatalf("the proxy was asked: %q", got)
	}
}

func TestRefusalsOfProxiesNameTheStatusAndTheMend(t *testing.T) {
	says := func(what string) netip.AddrPort {
		return serve(t, func(c net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_, _ = io.WriteString(c, what)
		})
	}
	for name, c := range map[string]struct {
		proxy     netip.AddrPort
		code      deny.Code
		why, mend string
	}{
		"forbidden":         {says("HTTP/1.1 403 Forbidden\r\n\r\n"), deny.UpstreamRefused, "proxy.example:3128 answered: 403 Forbidden", "allow CONNECT to x.example:1"},
		"wrong credentials": {says("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"), deny.UpstreamRefused, "answered: 407", "credentialsFile"},
		"unreachable":       {says("HTTP/1.1 502 Bad Gateway\r\n\r\n"), deny.UpstreamRefused, "answered: 502 Bad Gateway", "check that the service runs"},
		"a redirect":        {says("HTTP/1.1 302 Found\r\nLocation: http://login.example/\r\n\r\n"), deny.UpstreamRefused, "302 Found", "allow CONNECT"},
		"no proxy":          {says("SSH-2.0-OpenSSH_9\r\n"), deny.Unreachable, "not HTTP", "upstreamProxy.url"},
		"silent end":        {says(""), deny.Unreachable, "closed the connection", "upstreamProxy.url"},
		"endless":           {says("HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 1<<16)), deny.Unreachable, "longer than", "upstreamProxy.url"},
		"down":              {closed(t), deny.Unreachable, "gave no connection", "upstreamProxy.url"},
	} {
		t.Run(name, func(t *testing.T) {
			_, client := behind(t, c.proxy, "x.example")
			_, _, err := client.Dial(t.Context(), "x.example", 1)
			var r *deny.Reason
			if !errors.As(err, &r) || r.Code != c.code || !strings.Contains(r.Why, c.why) || !strings.Contains(r.Mend, c.mend) || r.What != "x.example:1" {
				t.Fatalf("%v", err)
			}
			if strings.Contains(err.Error(), secret[6:]) {
				t.Fatal("the credentials are shown")
			}
		})
	}
}

func TestAProxyThatNeverAnswersEndsWithItsAsker(t *testing.T) {
	silent := serve(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	_, client := behind(t, silent, "x.example")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := client.Dial(ctx, "x.example", 1); err == nil {
		t.Fatal("connected to nobody")
	}
	// The dialer itself is ended by the test's cleanup, with that request open.
}

func TestNewCredentialsAreFetchedOnce(t *testing.T) {
	f := startForwarder(t)
	f.targets["x.example:1"] = listen(t)
	w, c := behind(t, f.at)
	p := wire.Pinned{Addresses: []netip.AddrPort{f.at}, Via: &wire.Via{Target: "x.example:1", Authorization: "Basic b2xk"}}
	w.pin("x.example", p)
	if _, _, err := c.Dial(t.Context(), "x.example", 1); code(err) != deny.UpstreamRefused {
		t.Fatal(err)
	}
	fresh := p
	fresh.Via = &wire.Via{Target: "x.example:1", Authorization: secret}
	w.pin("x.example", fresh) // the cache has the old ones still
	hello(t, c, "x.example")
	if n := w.count(); n != 2 {
		t.Fatalf("the warden was asked %d times", n)
	}
}

// hung is a far side that stays until its connection ends.
func hung(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

func ends(t *testing.T, conn net.Conn, why string) {
	t.Helper()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Fatal(why)
	}
}

func TestATemporaryDestinationEndsBehindTheProxyToo(t *testing.T) {
	f := startForwarder(t)
	for _, n := range []string{"now.example", "over.example", "stays.example"} {
		f.targets[n+":1"] = serve(t, hung)
	}
	w, c := behind(t, f.at, "now.example", "stays.example")
	w.pin("over.example", wire.Pinned{Addresses: []netip.AddrPort{f.at}, Via: &wire.Via{
		Target: "over.example:1", Authorization: secret, Ends: time.Now().Add(200 * time.Millisecond),
	}})
	open := map[string]net.Conn{}
	for _, n := range []string{"now.example", "over.example", "stays.example"} {
		conn, _, err := c.Dial(t.Context(), n, 1)
		if err != nil {
			t.Fatal(n, err)
		}
		defer func() { _ = conn.Close() }()
		open[n] = conn
	}
	ends(t, open["over.example"], "it outlives its end")
	unpin := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, conn := range w.conns {
			_ = conn.Send(0, wire.VerbUnpin, wire.DialRequest{Host: "now.example", Port: 1})
		}
	}
	unpin()
	ends(t, open["now.example"], "it outlives its permission")
	if _, err := open["stays.example"].Write([]byte("x")); err != nil {
		t.Fatal("another's connection ended:", err)
	}
}

func TestADialerHearsOfWhatIsOverAfterTheWardenCameBack(t *testing.T) {
	f := startForwarder(t)
	f.targets["now.example:1"] = serve(t, hung)
	dir := t.TempDir()
	w := startWarden(t, filepath.Join(dir, "pin.sock"))
	w.pin("now.example", wire.Pinned{Addresses: []netip.AddrPort{f.at}, Via: &wire.Via{Target: "now.example:1", Authorization: secret}})
	c := startBounded(t, dir, dialer.Config{Gateway: me(), Connections: 20, Relay: true})
	conn, _, err := c.Dial(t.Context(), "now.example", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	w.stop()
	_ = os.Remove(filepath.Join(dir, "pin.sock"))
	w2 := startWarden(t, filepath.Join(dir, "pin.sock"))
	for i := 0; ; i++ { // it comes by itself: nobody asks for anything
		w2.mu.Lock()
		n := len(w2.conns)
		for _, conn := range w2.conns {
			_ = conn.Send(0, wire.VerbUnpin, wire.DialRequest{Host: "now.example", Port: 1})
		}
		w2.mu.Unlock()
		if n > 0 {
			break
		}
		if i > 1000 {
			t.Fatal("the dialer did not come back")
		}
		time.Sleep(5 * time.Millisecond)
	}
	ends(t, conn, "it outlives its permission")
}

func TestARelayedConnectionTakesAPlaceUntilItHasEnded(t *testing.T) {
	f := startForwarder(t)
	f.targets["x.example:1"] = serve(t, hung)
	_, c := behind(t, f.at, "x.example")
	var open []net.Conn
	for {
		conn, _, err := c.Dial(t.Context(), "x.example", 1)
		if code(err) == deny.TooMany {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if open = append(open, conn); len(open) > 20 {
			t.Fatal("there is no bound")
		}
	}
	if len(open) != 20 {
		t.Fatalf("%d of 20 places", len(open))
	}
	_ = open[0].Close()
	for i := 0; ; i++ { // the far side learns of it, and ends too
		conn, _, err := c.Dial(t.Context(), "x.example", 1)
		if err == nil {
			_ = conn.Close()
			return
		}
		if i > 1000 {
			t.Fatal("its place is not free:", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestEveryEndIsPassedOnAndNothingIsLeft(t *testing.T) {
	f := startForwarder(t)
	f.targets["x.example:1"] = listen(t) // says hello and leaves
	_, c := behind(t, f.at, "x.example")
	for i := range 50 { // more than may be open at a time
		conn, _, err := c.Dial(t.Context(), "x.example", 1)
		if err != nil {
			t.Fatal(fmt.Sprint(i), err)
		}
		if b, err := io.ReadAll(conn); string(b) != "hello" || err != nil {
			t.Fatalf("%d: %q %v", i, b, err)
		}
		_ = conn.Close()
	}
}
