package dialer_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/dialer"
	"bulkhead/internal/wire"
)

func me() uint32 { return uint32(os.Getuid()) } // #nosec G115 -- an id

// warden answers the pin protocol as the test says.
type warden struct {
	ln    *net.UnixListener
	mu    sync.Mutex
	asked int
	conns []*wire.Conn
	pins  map[string]wire.Pinned
}

func startWarden(t *testing.T, path string) *warden {
	t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	w := &warden{ln: ln, pins: map[string]wire.Pinned{}}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			work.Go(func() { w.serve(wire.New(c)) })
		}
	})
	t.Cleanup(func() { w.stop(); work.Wait() })
	return w
}

func (w *warden) serve(c *wire.Conn) {
	w.mu.Lock()
	w.conns = append(w.conns, c)
	w.mu.Unlock()
	if _, err := c.Greet(wire.PinProtocol, wire.PinVersion); err != nil {
		return
	}
	for {
		m, _, err := c.Recv()
		if err != nil {
			return
		}
		var q wire.DialRequest
		_ = json.Unmarshal(m.Body, &q)
		w.mu.Lock()
		w.asked++
		p, ok := w.pins[q.Host]
		w.mu.Unlock()
		if !ok {
			_ = c.Send(m.ID, wire.VerbDenied, wire.Denied{Reason: deny.Reason{Layer: deny.LayerEgress, Code: deny.NotListed, What: q.Host}})
			continue
		}
		verb := wire.VerbPinned
		if p.Via != nil {
			verb = wire.VerbProxied
		}
		_ = c.Send(m.ID, verb, p)
	}
}

func (w *warden) stop() {
	_ = w.ln.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
}

func (w *warden) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked
}

func startDialer(t *testing.T, dir string, gateway uint32) *dialer.Client {
	t.Helper()
	return startBounded(t, dir, dialer.Config{Gateway: gateway, Connections: 100})
}

func startBounded(t *testing.T, dir string, cfg dialer.Config) *dialer.Client {
	t.Helper()
	cfg.PinSocket = filepath.Join(dir, "pin.sock")
	path := filepath.Join(dir, "dialer.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- dialer.Serve(ctx, ln, cfg)
	}()
	c := dialer.NewClient(path)
	t.Cleanup(func() {
		_ = c.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

func listen(t *testing.T) netip.AddrPort {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hello")
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); <-done })
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

// closed gives a port of loopback on which nobody listens.
func closed(t *testing.T) netip.AddrPort {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

func hello(t *testing.T, c *dialer.Client, host string) {
	t.Helper()
	conn, _, err := c.Dial(t.Context(), host, 1)
	if err != nil {
		t.Fatalf("%s: %v", host, err)
	}
	defer func() { _ = conn.Close() }()
	if b, err := io.ReadAll(conn); string(b) != "hello" || err != nil {
		t.Fatalf("%s: %q %v", host, b, err)
	}
}

func code(err error) deny.Code {
	var r *deny.Reason
	if !errors.As(err, &r) {
		return ""
	}
	return r.Code
}

func TestDialsWhatIsPinnedAndCaches(t *testing.T) {
	dir := t.TempDir()
	w := startWarden(t, filepath.Join(dir, "pin.sock"))
	up := listen(t)
	pin := func(host string, life time.Duration, addrs ...netip.AddrPort) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.pins[host] = wire.Pinned{Addresses: addrs, Expires: time.Now().Add(life)}
	}
	pin("good", time.Minute, up)
	pin("second", time.Minute, closed(t), up) // the first address answers nobody
	pin("down", time.Minute, closed(t), closed(t))
	pin("short", time.Millisecond, up)
	c := startDialer(t, dir, me())
	for range 3 {
		hello(t, c, "good")
	}
	if n := w.count(); n != 1 {
		t.Fatalf("the warden was asked %d times for one destination", n)
	}
	hello(t, c, "second")
	if _, _, err := c.Dial(t.Context(), "down", 1); code(err) != deny.Unreachable {
		t.Fatalf("down: %v", err)
	}
	if _, _, err := c.Dial(t.Context(), "evil", 1); code(err) != deny.NotListed {
		t.Fatalf("evil: %v", err)
	}
	hello(t, c, "short")

	w.stop()
	hello(t, c, "good") // the warden is away: the pin still serves
	time.Sleep(2 * time.Millisecond)
	for _, host := range []string{"short", "evil"} {
		if _, _, err := c.Dial(t.Context(), host, 1); code(err) != deny.PinFailed {
			t.Fatalf("%s while the warden is away: %v", host, err)
		}
	}
	w2 := startWarden(t, filepath.Join(dir, "pin.sock"))
	w2.mu.Lock()
	w2.pins["short"] = wire.Pinned{Addresses: []netip.AddrPort{up}, Expires: time.Now().Add(time.Minute)}
	w2.mu.Unlock()
	hello(t, c, "short")

	w2.mu.Lock()
	for _, conn := range w2.conns {
		_ = conn.Send(0, wire.VerbUnpin, wire.DialRequest{Host: "good", Port: 1})
	}
	w2.mu.Unlock()
	for i := 0; ; i++ { // the notice travels on its own
		_, _, err := c.Dial(t.Context(), "good", 1)
		if code(err) == deny.NotListed {
			break
		}
		if i > 500 {
			t.Fatalf("unpinned: %v", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestManyAtOnceAskOnce(t *testing.T) {
	dir := t.TempDir()
	w := startWarden(t, filepath.Join(dir, "pin.sock"))
	w.pins["good"] = wire.Pinned{Addresses: []netip.AddrPort{listen(t)}, Expires: time.Now().Add(time.Minute)}
	c := startDialer(t, dir, me())
	var group sync.WaitGroup
	for range 32 {
		group.Go(func() {
			conn, _, err := c.Dial(t.Context(), "good", 1)
			if err != nil {
				t.Error(err)
				return
			}
			_ = conn.Close()
		})
	}
	group.Wait()
	if n := w.count(); n != 1 {
		t.Fatalf("asked %d times", n)
	}
}

func TestSocketsForAttacks(t *testing.T) {
	dir := t.TempDir()
	c := startDialer(t, dir, me())
	for _, family := range []int{4, 6} {
		f, err := c.Socket(t.Context(), family)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
}

func TestAnotherIDIsTurnedAway(t *testing.T) {
	c := startDialer(t, t.TempDir(), me()+1)
	if _, _, err := c.Dial(t.Context(), "good", 1); code(err) != deny.PinFailed {
		t.Fatalf("%v", err)
	}
}

func TestTheNumberOfOpenConnectionsIsBounded(t *testing.T) {
	dir := t.TempDir()
	w := startWarden(t, filepath.Join(dir, "pin.sock"))
	w.mu.Lock()
	w.pins["good"] = wire.Pinned{Addresses: []netip.AddrPort{listen(t)}, Expires: time.Now().Add(time.Minute)}
	w.mu.Unlock()
	c := startBounded(t, dir, dialer.Config{Gateway: me(), Connections: 3})
	var open []io.Closer
	for range 2 {
		conn, _, err := c.Dial(t.Context(), "good", 1)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, conn)
	}
	sock, err := c.Socket(t.Context(), 4) // one that is not connected counts as well
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = c.Dial(t.Context(), "good", 1)
	if code(err) != deny.TooMany {
		t.Fatalf("a fourth: %v", err)
	}
	if _, err := c.Socket(t.Context(), 6); code(err) != deny.TooMany {
		t.Fatalf("a fourth, not connected: %v", err)
	}
	for _, o := range append(open, sock) {
		_ = o.Close()
	}
	for range 10 {
		hello(t, c, "good")
	}
}

func TestTellsTheAddressesThatItWouldDial(t *testing.T) {
	dir := t.TempDir()
	w := startWarden(t, filepath.Join(dir, "pin.sock"))
	life := time.Now().Add(time.Minute)
	w.mu.Lock()
	w.pins["two"] = wire.Pinned{Addresses: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.7:443"), netip.MustParseAddrPort("[2001:db8::7]:443")}, Expires: life}
	w.pins["behind"] = wire.Pinned{Addresses: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:3128")}, Expires: life, Via: &wire.Via{Proxy: "proxy:3128", Target: "behind:443"}}
	w.mu.Unlock()
	c := startBounded(t, dir, dialer.Config{Gateway: me(), Connections: 100, Relay: true})
	for range 2 {
		got, err := c.Addresses(t.Context(), "two", 443)
		if err != nil || len(got) != 2 || got[0].String() != "203.0.113.7" || got[1].String() != "2001:db8::7" {
			t.Fatalf("%v %v", got, err)
		}
	}
	if n := w.count(); n != 1 {
		t.Errorf("the warden was asked %d times", n)
	}
	if _, err := c.Addresses(t.Context(), "evil", 443); code(err) != deny.NotListed {
		t.Error(err)
	}
	// The proxy's own address is nobody's business.
	if got, err := c.Addresses(t.Context(), "behind", 443); code(err) != deny.NameUnresolved || got != nil {
		t.Errorf("%v %v", got, err)
	}
}
