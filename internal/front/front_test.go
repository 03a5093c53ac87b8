package front

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/front/protocol"
	"bulkhead/internal/hub"
	"bulkhead/internal/identity/token"
	"bulkhead/internal/wire"
)

const gatewayID = 54322

// scene is a front with one gateway, writer's, whose end is this test.
type scene struct {
	address string
	tokens  map[string]string // by agent; "other team" and "late" are refused

	mu  sync.Mutex
	got []*http.Request // what the gateway was passed
	raw bytes.Buffer
}

func start(t testing.TB) *scene {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to connect under a gateway's id")
	}
	dir, err := os.MkdirTemp("/tmp", "front") //nolint:usetesting // others get in, and the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	unixAt := func(name string) *net.UnixListener {
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, name), 0o777); err != nil {
			t.Fatal(err)
		}
		return ln
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{address: tcp.Addr().String(), tokens: map[string]string{}}
	operator := unixAt("operator.sock")
	f := New(protocol.Config{Listeners: []protocol.Listener{{Address: s.address, Teams: []string{"pair"}}}}, io.Discard)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Serve(ctx, operator, []net.Listener{tcp}, io.Discard) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	signer, err := token.NewSigner(token.EdDSA, "", "")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Unix()
	for name, c := range map[string]token.Claims{
		"writer": {Agent: "writer", Team: "pair"}, "reviewer": {Agent: "reviewer", Team: "pair"}, "other team": {Agent: "writer", Team: "other"},
		"late": {Agent: "writer", Team: "pair", Expires: now - 1},
	} {
		c.ID, c.IssuedAt, c.NotBefore = name, now-60, now-60
		if c.Expires == 0 {
			c.Expires = now + 600
		}
		if s.tokens[name], err = signer.Issue(c); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(verb string, body any, files ...*os.File) {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, "operator.sock"), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		w := wire.New(c)
		defer func() { _ = w.Close() }()
		if _, err := w.Greet(hub.OperatorProtocol, hub.OperatorVersion); err != nil {
			t.Fatal(err)
		}
		if err := w.Send(1, verb, body, files...); err != nil {
			t.Fatal(err)
		}
		if m, _, err := w.Recv(); err != nil || m.Verb != wire.VerbResult {
			t.Fatalf("%s: %s, %v", verb, m.Body, err)
		}
	}
	ask(protocol.VerbTrust, token.Trust{Version: token.TrustVersion, Keys: []token.Key{signer.Key}})
	member := unixAt("front.sock")
	file, err := member.File()
	if err != nil {
		t.Fatal(err)
	}
	member.SetUnlinkOnClose(false)
	_ = member.Close()
	ask(hub.VerbAdmit, hub.Member{Team: "pair", Agent: "writer", GatewayID: gatewayID, TokenHash: hub.HashToken("t")}, file)
	_ = file.Close()
	s.gateway(t, filepath.Join(dir, "front.sock"))
	// The gateway was let in; front takes it into its list a moment later.
	for there := false; !there; runtime.Gosched() {
		f.mu.Lock()
		there = len(f.gateways) == 1
		f.mu.Unlock()
		if t.Context().Err() != nil {
			t.Fatal("front never had the gateway")
		}
	}
	return s
}

// gateway connects under the gateway's id and answers what front passes on.
func (s *scene) gateway(t testing.TB, path string) {
	t.Helper()
	var u *net.UnixConn
	var work sync.WaitGroup
	work.Go(func() {
		runtime.LockOSThread() // and never unlocked
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), gatewayID, ^uintptr(0)); errno != 0 {
			t.Error(errno)
			return
		}
		var err error
		if u, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"}); err != nil {
			t.Error(err)
		}
	})
	work.Wait()
	if t.Failed() {
		t.FailNow()
	}
	c := wire.New(u)
	if err := hub.Dial(c, protocol.Name, protocol.Version, "t"); err != nil {
		t.Fatal(err)
	}
	conns := make(chan net.Conn)
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer close(conns)
		for {
			m, files, err := c.Recv()
			if err != nil {
				return
			}
			if m.Verb != protocol.VerbConnection || len(files) != 1 {
				t.Errorf("%s with %d descriptors", m.Verb, len(files))
				return
			}
			one, err := net.FileConn(files[0])
			_ = files[0].Close()
			if err == nil {
				conns <- one
			}
		}
	}()
	go func() {
		for one := range conns {
			go s.answer(one)
		}
	}()
	t.Cleanup(func() { _ = c.Close(); <-served })
}

func (s *scene) answer(c net.Conn) {
	defer func() { _ = c.Close() }()
	in := bufio.NewReader(io.TeeReader(c, lockedWriter{s}))
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.got = append(s.got, r)
		s.mu.Unlock()
		text := fmt.Sprintf(`{"path":%q,"bytes":%d}`, r.URL.String(), len(body))
		if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: keep-alive\r\n\r\n%s", len(text), text); err != nil {
			return
		}
	}
}

type lockedWriter struct{ s *scene }

// Write implements io.Writer.
func (l lockedWriter) Write(b []byte) (int, error) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.s.raw.Write(b)
}

// exchange sends raw bytes and gives the statuses of all answers until front
// closes or is silent.
func (s *scene) exchange(t testing.TB, raw string) (statuses []int, bodies []string) {
	t.Helper()
	c, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, raw); err != nil {
		return nil, nil
	}
	in := bufio.NewReader(c)
	for {
		r, err := http.ReadResponse(in, nil)
		if err != nil {
			return statuses, bodies
		}
		b, _ := io.ReadAll(r.Body)
		_ = r.Body.Close()
		statuses, bodies = append(statuses, r.StatusCode), append(bodies, string(b))
		_ = c.(*net.TCPConn).CloseWrite() // only now: it ends a request that is being answered
	}
}

func TestOnlyAGoodTokenGetsThrough(t *testing.T) {
	s := start(t)
	auth := func(v string) string { return "GET /v1/tools HTTP/1.1\r\nHost: x\r\n" + v + "\r\n" }
	for name, c := range map[string]struct {
		raw    string
		status int
	}{
		"good":             {auth("Authorization: Bearer " + s.tokens["writer"] + "\r\n"), 200},
		"none":             {auth(""), 401},
		"expired":          {auth("Authorization: Bearer " + s.tokens["late"] + "\r\n"), 401},
		"another team":     {auth("Authorization: Bearer " + s.tokens["other team"] + "\r\n"), 401},
		"Basic":            {auth("Authorization: Basic " + s.tokens["writer"] + "\r\n"), 401},
		"bearer":           {auth("Authorization: bearer " + s.tokens["writer"] + "\r\n"), 401},
		"two, good first":  {auth("Authorization: Bearer " + s.tokens["writer"] + "\r\nAuthorization: Bearer x\r\n"), 401},
		"two, good last":   {auth("Authorization: Bearer x\r\nAuthorization: Bearer " + s.tokens["writer"] + "\r\n"), 401},
		"two, both good":   {auth("Authorization: Bearer " + s.tokens["writer"] + "\r\nAuthorization: Bearer " + s.tokens["writer"] + "\r\n"), 401},
		"in the query":     {"GET /v1/tools?access_token=" + s.tokens["writer"] + " HTTP/1.1\r\nHost: x\r\n\r\n", 401},
		"in a cookie":      {auth("Cookie: token=" + s.tokens["writer"] + "\r\n"), 401},
		"no gateway there": {auth("Authorization: Bearer " + s.tokens["reviewer"] + "\r\n"), 503},
	} {
		statuses, bodies := s.exchange(t, c.raw)
		if len(statuses) != 1 || statuses[0] != c.status {
			t.Errorf("%s: %v %v", name, statuses, bodies)
			continue
		}
		var e struct{ Code, PossibleFix string }
		if c.status != 200 && (json.Unmarshal([]byte(bodies[0]), &e) != nil || e.Code == "" || e.PossibleFix == "") {
			t.Errorf("%s: %s", name, bodies[0])
		}
	}
	if len(s.got) != 1 {
		t.Errorf("%d requests got through", len(s.got))
	}
	if statuses, _ := s.exchange(t, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"); len(statuses) != 1 || statuses[0] != 200 {
		t.Errorf("health: %v", statuses)
	}
}

// behind says whether the gateway has seen the start of requests that it has not
// read to their end.
func (s *scene) behind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(requestLine.FindAllString(s.raw.String(), -1)) != len(s.got)
}

var requestLine = regexp.MustCompile(`(?m)^[A-Z]+ \S+ HTTP/1\.1\r$`)

// Requests that two readers could take differently: at most the first gets
// through, written anew, and what is hidden behind it never does.
func TestNothingIsSmuggled(t *testing.T) {
	const good = "Authorization: Bearer GOOD\r\n"
	hidden := "GET /hidden HTTP/1.1\r\nHost: x\r\n" + good + "\r\n"
	for name, raw := range map[string]string{
		"CL and TE":              "POST /v1/a HTTP/1.1\r\nHost: x\r\n" + good + "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
		"two lengths":            "POST /v1/a HTTP/1.1\r\nHost: x\r\n" + good + "Content-Length: 0\r\nContent-Length: " + fmt.Sprint(len(hidden)) + "\r\n\r\n" + hidden,
		"a length with a plus":   "POST /v1/a HTTP/1.1\r\nHost: x\r\n" + good + "Content-Length: +0\r\n\r\n" + hidden,
		"TE with a space":        "POST /v1/a HTTP/1.1\r\nHost: x\r\n" + good + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + hidden,
		"TE identity, chunked":   "POST /v1/a HTTP/1.1\r\nHost: x\r\n" + good + "Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n" + hidden,
		"TE xchunked":            "POST /v1/a HTTP/1.1\r\nHost: x\r\n" + good + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + hidden,
		"a bare CR in a header":  "GET /v1/a HTTP/1.1\r\nHost: x\r\n" + good + "X: a\rGET /hidden HTTP/1.1\r\n\r\n",
		"a folded header":        "GET /v1/a HTTP/1.1\r\nHost: x\r\n" + good + "X: a\r\n GET /hidden HTTP/1.1\r\n\r\n",
		"a NUL in a header":      "GET /v1/a HTTP/1.1\r\nHost: x\r\n" + good + "X: a\x00\r\n\r\n",
		"a line break in a path": "GET /v1/a%0d%0aGET%20/hidden HTTP/1.1\r\nHost: x\r\n" + good + "\r\n",
		"an absolute target":     "GET http://evil.example/hidden HTTP/1.1\r\nHost: x\r\n" + good + "\r\n",
		"CONNECT":                "CONNECT /hidden HTTP/1.1\r\nHost: x\r\n" + good + "\r\n",
		"TRACE":                  "TRACE /hidden HTTP/1.1\r\nHost: x\r\n" + good + "\r\n",
		"an upgrade":             "GET /hidden HTTP/1.1\r\nHost: x\r\n" + good + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		"h2c":                    "GET /hidden HTTP/1.1\r\nHost: x\r\n" + good + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
		"HTTP/2 preface":         "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"HTTP/0.9":               "GET /hidden\r\n\r\n",
		"two hosts":              "GET /hidden HTTP/1.1\r\nHost: x\r\nHost: y\r\n" + good + "\r\n",
		"a page of another site": "GET /hidden HTTP/1.1\r\nHost: x\r\n" + good + "Origin: https://evil.example\r\n\r\n",
		"trailers":               "POST /v1/a HTTP/1.1\r\nHost: x\r\n" + good + "Transfer-Encoding: chunked\r\nTrailer: X-Hidden\r\n\r\n0\r\nX-Hidden: 1\r\n\r\n",
		"a huge chunk size":      "POST /v1/a HTTP/1.1\r\nHost: x\r\n" + good + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" + hidden,
		"a chunk with no end":    "POST /v1/a HTTP/1.1\r\nHost: x\r\n" + good + "Transfer-Encoding: chunked\r\n\r\n1\r\naX" + hidden,
	} {
		s := start(t) // one each: what follows the first request may come late
		raw = strings.ReplaceAll(raw, good, "Authorization: Bearer "+s.tokens["writer"]+"\r\n")
		statuses, bodies := s.exchange(t, raw)
		// The gateway may still be reading when front has given its refusal.
		for wait := time.Now().Add(10 * time.Second); s.behind() && time.Now().Before(wait); time.Sleep(time.Millisecond) {
		}
		s.mu.Lock()
		for _, r := range s.got {
			// A second request on the connection is one of its own, with its own
			// token: front reads it as such, and the gateway as well.
			if r.URL.Path == "/hidden" && !strings.Contains(name, "CL and TE") && !strings.Contains(name, "TE") {
				t.Errorf("%s: %s got through: %v %v", name, r.URL, statuses, bodies)
			}
		}
		if n := len(requestLine.FindAllString(s.raw.String(), -1)); n != len(s.got) {
			t.Errorf("%s: %d request lines were passed on for %d requests:\n%s", name, n, len(s.got), s.raw.String())
		}
		for _, word := range []string{"X-Hidden", "Upgrade", "evil.example", "\x00"} {
			if strings.Contains(s.raw.String(), word) {
				t.Errorf("%s: %q was passed on:\n%s", name, word, s.raw.String())
			}
		}
		s.mu.Unlock()
	}
}

func TestWhatIsPassedOnIsWrittenAnew(t *testing.T) {
	s := start(t)
	statuses, _ := s.exchange(t, "POST /v1/tools/mem_set?a=%2f HTTP/1.1\r\nHost: front.example\r\nAuthorization: Bearer "+s.tokens["writer"]+
		"\r\nX-Forwarded-For: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\nX-Real-IP: 1.2.3.4\r\nCookie: a=b\r\nConnection: X-Secret\r\nX-Secret: 1\r\nProxy-Authorization: x\r\nTE: trailers\r\nAccept: text/event-stream\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
	if len(statuses) != 1 || statuses[0] != 200 || len(s.got) != 1 {
		t.Fatalf("%v, %d", statuses, len(s.got))
	}
	r := s.got[0]
	if r.URL.String() != "/v1/tools/mem_set?a=%2f" || r.Host != wire.OwnName || r.Header.Get("Authorization") != "Bearer "+s.tokens["writer"] || r.Header.Get("Accept") != "text/event-stream" {
		t.Errorf("%s %s %v", r.Host, r.URL, r.Header)
	}
	for _, name := range []string{"X-Forwarded-For", "Forwarded", "X-Real-Ip", "Cookie", "X-Secret", "Proxy-Authorization"} {
		if r.Header.Get(name) != "" {
			t.Errorf("%s was passed on", name)
		}
	}
}

// Nobody keeps all places: neither without a token, nor with one.
func TestOneClientDoesNotKeepOthersOut(t *testing.T) {
	s := start(t)
	open := func(request string) (c net.Conn, closes bool) {
		c, err := net.Dial("tcp", s.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		a, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, a.Body)
		_ = a.Body.Close()
		return c, a.Close
	}
	if _, closes := open("GET /health HTTP/1.1\r\nHost: x\r\n\r\n"); !closes {
		t.Error("who shows no token keeps a place")
	}
	with := "GET /v1/tools HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + s.tokens["writer"] + "\r\n\r\n"
	var all []net.Conn
	for i := range maxHeld {
		c, closes := open(with)
		if all = append(all, c); closes {
			t.Fatalf("connection %d is closed", i+1)
		}
	}
	if _, closes := open(with); !closes {
		t.Errorf("%d connections of one token stay open", maxHeld+1)
	}
	for _, c := range all {
		_ = c.Close()
	}
	for closes := true; closes; { // as soon as front has seen their end
		if _, closes = open(with); t.Context().Err() != nil {
			t.Fatal("their places are not given back")
		}
	}
}

func TestABodyIsBounded(t *testing.T) {
	s := start(t)
	statuses, bodies := s.exchange(t, fmt.Sprintf("POST /v1/a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", s.tokens["writer"], maxBody+1))
	if len(statuses) != 1 || statuses[0] != 413 {
		t.Errorf("%v %v", statuses, bodies)
	}
	if statuses, _ := s.exchange(t, "GET /v1/a HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("a", 64<<10)+"\r\n\r\n"); len(statuses) != 1 || statuses[0] != 431 {
		t.Errorf("a large header: %v", statuses)
	}
}

func TestManyAtOnceAreAnsweredOrRefused(t *testing.T) {
	s := start(t)
	var work sync.WaitGroup
	for range 100 {
		work.Go(func() {
			statuses, bodies := s.exchange(t, "GET /v1/a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+s.tokens["writer"]+"\r\n\r\n")
			if len(statuses) != 1 || statuses[0] != 200 && statuses[0] != 429 {
				t.Errorf("%v %v", statuses, bodies)
			}
		})
	}
	work.Wait()
}
