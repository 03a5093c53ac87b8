package messages

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/draftkey"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/adapter/server"
	"bulkhead/internal/adapter/store"
	"bulkhead/internal/record"
)

const (
	serveDir  = "BULKHEAD_TEST_ADAPTER" // this process is an adapter in that folder
	otherUser = 70001                   // a gateway is never root
	token     = "a token that is long enough"

	orchestrator = "BULKHEAD_TEST_ORCHESTRATOR" // who that is; nobody by default

	senderBytes = 1 << 20 // what the policy lets wait of alice
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(serveDir) != "":
		if err := serve(os.Getenv(serveDir)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case os.Getuid() == 0 && !slices.Contains(os.Args, "-update"): // which writes here
		os.Exit(unprivileged())
	default:
		os.Exit(m.Run())
	}
}

// unprivileged runs these tests again under another id.
func unprivileged() int {
	dir, err := os.MkdirTemp("/tmp", "messages")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	exe := filepath.Join(dir, "messages.test")
	text, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(exe, text, 0o755)
	}
	tmp := filepath.Join(dir, "tmp")
	for _, step := range []func() error{
		func() error { return os.Chmod(dir, 0o755) }, func() error { return os.Mkdir(tmp, 0o700) }, func() error { return os.Chown(tmp, otherUser, otherUser) },
	} {
		if err == nil {
			err = step()
		}
	}
	if err != nil {
		panic(err)
	}
	var args []string
	for _, a := range os.Args[1:] { // what go test keeps in folders of its own
		switch {
		case strings.HasPrefix(a, "-test.testlogfile="):
		case strings.HasPrefix(a, "-test.fuzzcachedir="):
			args = append(args, "-test.fuzzcachedir="+tmp)
		default:
			args = append(args, a)
		}
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "HOME="+tmp)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUser, Gid: otherUser}}
	if cmd.Run() != nil {
		return 1
	}
	return 0
}

// serve is the adapter process.
func serve(dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	id := uint32(os.Getuid())
	cfg := protocol.Config{
		Team: "t", Database: filepath.Join(dir, "messages.db"), // One agent at a time: both have the same id here.
		Listeners: []string{os.Getenv("BULKHEAD_TEST_AGENT"), protocol.OperatorListener},
		Agents:    map[string]protocol.Agent{os.Getenv("BULKHEAD_TEST_AGENT"): {GatewayID: id, TokenHash: protocol.HashToken(token)}},
		Policy: adapter.Policy{
			Team: "t", Channels: map[string][]string{"all": {"alice", "bob"}, "board": {"bob"}, "trio": {"alice", "bob", "carol"}}, Orchestrator: os.Getenv(orchestrator),
			Agents: map[string]adapter.AgentPolicy{"alice": {To: []string{"alice2", "bob"}, Critical: []adapter.Type{adapter.Escalation}, MaxBytes: senderBytes}, "alice2": {To: []string{"alice"}}, "bob": {To: []string{"alice"}}, "carol": {}},
		},
	}
	var listeners []*net.UnixListener
	for _, name := range cfg.Listeners {
		path := filepath.Join(dir, name+".sock")
		_ = os.Remove(path)
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return err
		}
		listeners = append(listeners, ln)
	}
	store, err := store.Open(ctx, store.Config{Path: cfg.Database, Policy: cfg.Policy, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	s, err := server.New(cfg, store, os.Stdout)
	if err != nil {
		return err
	}
	fmt.Println("serving")
	err = s.Serve(ctx, listeners)
	_ = store.Close()
	return err
}

// stage is alice's gateway, and an adapter that comes and goes.
type stage struct {
	t   testing.TB
	dir string
	m   *Messages
	web *httptest.Server
	cmd *exec.Cmd

	mu  sync.Mutex
	out bytes.Buffer
}

func (s *stage) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(b)
}

func newStage(t testing.TB) *stage {
	t.Helper()
	dir, err := os.MkdirTemp("", "m") //nolint:usetesting // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{t: t, dir: dir}
	t.Cleanup(func() {
		s.closeGateway()
		s.kill()
		_ = os.RemoveAll(dir)
	})
	s.openGateway()
	return s
}

func (s *stage) openGateway() {
	s.t.Helper()
	var err error
	s.m, err = Open(Config{Agent: "alice", Socket: filepath.Join(s.dir, "alice.sock"), Token: token, Data: s.dir, Log: record.NewLog("t", s)})
	if err != nil {
		s.t.Fatal(err)
	}
	mux := http.NewServeMux()
	s.m.Register(mux)
	s.web = httptest.NewServer(mux)
}

func (s *stage) closeGateway() {
	if s.m == nil {
		return
	}
	s.web.CloseClientConnections()
	s.web.Close()
	if err := s.m.Close(); err != nil {
		s.t.Error(err)
	}
	s.m = nil
}

// up starts the adapter with alice's socket, or another's.
func (s *stage) up(agent string) {
	s.t.Helper()
	s.cmd = exec.Command(os.Args[0])
	s.cmd.Env = append(os.Environ(), serveDir+"="+s.dir, "BULKHEAD_TEST_AGENT="+agent)
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	b := make([]byte, 8)
	if _, err := io.ReadFull(out, b); err != nil || string(b) != "serving\n" {
		s.t.Fatalf("the adapter said %q, %v", b, err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
}

func (s *stage) kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
	_ = os.Remove(filepath.Join(s.dir, "alice.sock"))
}

// linked waits until the gateway has the adapter.
func (s *stage) linked() {
	s.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		conn, changed := s.m.link.get()
		if conn != nil {
			return
		}
		select {
		case <-changed:
		case <-time.After(time.Second):
		}
	}
	s.t.Fatal("the gateway does not find the adapter")
}

// away waits until the gateway knows that the adapter is gone.
func (s *stage) away() {
	s.t.Helper()
	for {
		conn, changed := s.m.link.get()
		if conn == nil {
			return
		}
		<-changed
	}
}

func (s *stage) do(method, path, body string) (int, http.Header, string) {
	s.t.Helper()
	return ask(s.t, method, s.web.URL+path, body)
}

func ask(t testing.TB, method, address, body string) (int, http.Header, string) {
	t.Helper()
	q, err := http.NewRequest(method, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Error(err)
		return 0, nil, ""
	}
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	if !json.Valid(text) {
		t.Errorf("%s %s: %d, not JSON: %.200q", method, address, r.StatusCode, text)
	}
	return r.StatusCode, r.Header, string(text)
}

func draftTo(to string, body string) string {
	return fmt.Sprintf(`{"idempotency_key":%q,"to":%q,"type":"note","body":%s}`, draftkey.New(), to, body)
}

func (s *stage) records() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}
