package gateway

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/layout"
	"bulkhead/internal/tooltoken"
	"bulkhead/internal/wire"
)

const runtimeToken = "the token of the runtime, long enough"

// asRuntime dials in a thread with the runtime's effective id, which is what
// the kernel tells of a peer.
func asRuntime(t testing.TB, path string) *net.UnixConn {
	t.Helper()
	c, err := dialAsRuntime(path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// dialAsRuntime is asRuntime for goroutines that are not the test's.
func dialAsRuntime(path string) (c *net.UnixConn, err error) {
	var work sync.WaitGroup
	work.Go(func() {
		runtime.LockOSThread() // and never unlocked: the thread ends here
		if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), layout.RuntimeID, ^uintptr(0)); errno != 0 {
			err = errno
			return
		}
		c, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	})
	work.Wait()
	return c, err
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// serveGateway serves a gateway of that config on a socket of its own, and gives
// the socket's path and the records.
func serveGateway(t testing.TB, configure func(dir string, cfg *Config)) (socket string, records *lockedBuffer) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to connect under the runtime's id")
	}
	dir, err := os.MkdirTemp("/tmp", "gateway") //nolint:usetesting // others get in, and the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "gateway.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{dir, socket} {
		if err := os.Chmod(p, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	cfg := Config{Team: "t", Agent: "writer", Token: runtimeToken, DialerSocket: filepath.Join(dir, "dialer.sock")}
	configure(dir, &cfg)
	ctx, cancel := context.WithCancel(context.Background())
	records = &lockedBuffer{}
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, cfg, records) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return socket, records
}

// startGateway gives the path of its socket, the address of its proxy, and its
// records.
func startGateway(t testing.TB, messages bool) (socket, proxy string, records *lockedBuffer) {
	t.Helper()
	socket, records = serveGateway(t, func(dir string, cfg *Config) {
		if messages {
			cfg.AdapterSocket, cfg.AdapterToken, cfg.Data = filepath.Join(dir, "adapter.sock"), runtimeToken, dir
		}
	})
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f, err := tcp.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	own, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g, err := own.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	shim := wire.New(asRuntime(t, socket))
	t.Cleanup(func() { _ = shim.Close() })
	if _, err := shim.Greet(wire.GatewayProtocol, wire.GatewayVersion); err != nil {
		t.Fatal(err)
	}
	q := wire.ListenRequest{Token: runtimeToken, Listeners: []wire.Listener{{Address: tcp.Addr().String()}, {Address: own.Addr().String(), Target: "bulkhead.internal:80"}}}
	if err := shim.Send(1, wire.VerbListen, q, f, g); err != nil {
		t.Fatal(err)
	}
	if m, _, err := shim.Recv(); err != nil || m.Verb != wire.VerbOK {
		t.Fatalf("%+v, %v", m, err)
	}
	_, _, _, _ = f.Close(), g.Close(), tcp.Close(), own.Close()
	return socket, tcp.Addr().String(), records
}

func exchange(t testing.TB, c net.Conn, request string) (int, string) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.StatusCode == 200 && strings.HasPrefix(request, "CONNECT ") {
		return r.StatusCode, "" // what follows is the tunnel
	}
	defer func() { _ = r.Body.Close() }()
	text, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(text)
}

func get(path, host, authorization string) string {
	if authorization != "" {
		authorization = "Authorization: " + authorization + "\r\n"
	}
	return "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + authorization + "\r\n"
}

func TestToolsNeedTheirToken(t *testing.T) {
	socket, proxy, records := startGateway(t, true)
	tool := tooltoken.Of(runtimeToken)
	basic := &http.Request{Header: http.Header{}}
	basic.SetBasicAuth("anybody", tool)
	for _, c := range []struct {
		path, authorization string
		status              int
	}{
		{"/v1/health", "", 200},
		{"/v1/openapi.json", "", 200},
		{"/v1/outbox", "Bearer " + tool, 200},
		{"/v1/outbox", basic.Header.Get("Authorization"), 200},
		{"/v1/outbox", "", 401},
		{"/v1/outbox", "Bearer " + runtimeToken, 401}, // the shim's own
		{"/v1/outbox", "Bearer " + tool + "x", 401},
		{"/v1/outbox", "Bearer ", 401},
		{"/v1/outbox", "Basic " + tool, 401},
		{"/v1/nothing", "Bearer " + tool, 400},
		{"/v1/nothing", "", 401},
		{"/v1/channels", "Bearer " + tool, 503}, // no adapter is there
	} {
		for way, request := range map[string]func(net.Conn) (int, string){
			"gateway.sock": func(net.Conn) (int, string) {
				return exchange(t, asRuntime(t, socket), get(c.path, "localhost", c.authorization))
			},
			"absolute": func(p net.Conn) (int, string) {
				return exchange(t, p, get("http://Bulkhead.internal.:80"+c.path, "bulkhead.internal", c.authorization))
			},
			"origin form": func(p net.Conn) (int, string) {
				return exchange(t, p, get(c.path, "bulkhead.internal", c.authorization))
			},
			"CONNECT": func(p net.Conn) (int, string) {
				if status, text := exchange(t, p, "CONNECT bulkhead.internal:80 HTTP/1.1\r\nHost: bulkhead.internal:80\r\n\r\n"); status != 200 {
					return status, text
				}
				return exchange(t, p, get(c.path, "bulkhead.internal", c.authorization))
			},
		} {
			p, err := net.Dial("tcp", proxy)
			if err != nil {
				t.Fatal(err)
			}
			if status, text := request(p); status != c.status {
				t.Errorf("%s %s with %q: %d %s", way, c.path, c.authorization, status, text)
			}
			_ = p.Close()
		}
	}
	if out := records.String(); !strings.Contains(out, `"kind":"message","verdict":"denied","target":"gateway.sock"`) || !strings.Contains(out, "identity.bad_token") {
		t.Errorf("no record of a wrong token: %s", out)
	}
}

func TestTheOwnNameIsNeverDialledAndNoOtherIsServed(t *testing.T) {
	_, proxy, _ := startGateway(t, false)
	tool := "Bearer " + tooltoken.Of(runtimeToken)
	for request, want := range map[string]int{
		get("http://bulkhead.internal/v1/channels", "bulkhead.internal", tool):               403, // the agent has no messages
		get("http://bulkhead.internal:8080/v1/health", "bulkhead.internal:8080", tool):       403, // another port is a destination as any
		get("http://bulkhead.internal.example/v1/health", "bulkhead.internal.example", tool): 403,
		get("http://user@bulkhead.internal/v1/health", "bulkhead.internal", tool):            400,
		get("/v1/health", "localhost", tool):                                                 400,
		"CONNECT bulkhead.internal:443 HTTP/1.1\r\nHost: bulkhead.internal:443\r\n\r\n":      403,
	} {
		p, err := net.Dial("tcp", proxy)
		if err != nil {
			t.Fatal(err)
		}
		if status, text := exchange(t, p, request); status != want {
			t.Errorf("%q: %d %s", request, status, text)
		}
		_ = p.Close()
	}
	p, err := net.Dial("tcp", proxy)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	if status, _ := exchange(t, p, "CONNECT bulkhead.internal:80 HTTP/1.1\r\nHost: x\r\n\r\n"); status != 200 {
		t.Fatalf("CONNECT: %d", status)
	}
	if status, text := exchange(t, p, get("/v1/health", "evil.example", tool)); status != 400 {
		t.Errorf("another host inside the tunnel: %d %s", status, text)
	}
}

// What busybox's wget makes of --post-data through a proxy is a GET with a body:
// the answer says which method is meant, and not that there are no messages.
func TestAnotherMethodIsNamed(t *testing.T) {
	_, proxy, _ := startGateway(t, false)
	head := "\r\nHost: bulkhead.internal\r\nConnection: close\r\nAuthorization: Bearer " + tooltoken.Of(runtimeToken) + "\r\nContent-Length: 2\r\n\r\n{}"
	for request, want := range map[string]string{
		"GET http://bulkhead.internal/v1/tools/mem_set HTTP/1.1": "this endpoint takes POST, and GET was sent",
		"PUT http://bulkhead.internal/v1/tools HTTP/1.1":         "this endpoint takes GET, and PUT was sent",
		"POST http://bulkhead.internal/v1/none HTTP/1.1":         "there is no such endpoint",
	} {
		p, err := net.Dial("tcp", proxy)
		if err != nil {
			t.Fatal(err)
		}
		if status, text := exchange(t, p, request+head); status != 400 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", request, status, text)
		}
		_ = p.Close()
	}
}

func TestOnlyTheRuntimesIdIsServed(t *testing.T) {
	socket, _, records := startGateway(t, true)
	c, err := net.Dial("unix", socket) // as root
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, _ = io.WriteString(c, get("/v1/outbox", "localhost", "Bearer "+tooltoken.Of(runtimeToken)))
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if text, _ := io.ReadAll(c); len(text) > 0 {
		t.Errorf("root was answered %q", text)
	}
	if !strings.Contains(records.String(), "identity.bad_peer") {
		t.Error("no record of it")
	}
}

func FuzzAuthorization(f *testing.F) {
	tool := tooltoken.Of(runtimeToken)
	f.Add("Bearer " + tool)
	f.Add("Basic " + tool)
	f.Add("bearer")
	f.Fuzz(func(t *testing.T, authorization string) {
		r := &http.Request{Header: http.Header{"Authorization": {authorization}}, URL: &url.URL{}}
		if shown(r) == tool && !strings.HasPrefix(authorization, "Bearer ") && !strings.HasPrefix(strings.ToLower(authorization), "basic ") {
			t.Errorf("%q shows the token", authorization)
		}
	})
}
