package hub

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
	"bulkhead/internal/wire"
)

const memberID = 54321

// lockedText takes records.
type lockedText struct {
	mu sync.Mutex
	b  strings.Builder
}

// Write implements io.Writer.
func (l *lockedText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func listen(t testing.TB, dir, name string) (*net.UnixListener, string) {
	t.Helper()
	path := filepath.Join(dir, name)
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	return ln, path
}

// dialAs connects under an effective id, in a thread that ends with it.
func dialAs(t testing.TB, id uint32, path string) *wire.Conn {
	t.Helper()
	var c *net.UnixConn
	var work sync.WaitGroup
	work.Go(func() {
		if id != 0 {
			runtime.LockOSThread() // and never unlocked
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(id), ^uintptr(0)); errno != 0 {
				t.Error(errno)
				return
			}
		}
		var err error
		if c, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"}); err != nil {
			t.Error(err)
		}
	})
	work.Wait()
	if t.Failed() {
		t.FailNow()
	}
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	t.Cleanup(func() { _ = c.Close() })
	return wire.New(c)
}

// start runs a hub whose members are told their own name.
func start(t testing.TB) (dir, operator string, records *lockedText) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to connect under other ids")
	}
	dir, err := os.MkdirTemp("/tmp", "hub") //nolint:usetesting // others get in, and the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ln, operator := listen(t, dir, "operator.sock")
	records = &lockedText{}
	h := New(Config{
		Protocol: "test", Version: 1, Out: records,
		Member:   func(_ context.Context, m Member, c *wire.Conn) { _ = c.Send(2, "you", m); _, _, _ = c.Recv() },
		Operator: map[string]Answer{"fail": func(context.Context, json.RawMessage) (any, error) { return nil, BadInput("no", "yes") }},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return dir, operator, records
}

func ask(t testing.TB, operator, verb string, body any, files ...*os.File) (wire.Message, error) {
	t.Helper()
	c := dialAs(t, 0, operator)
	if _, err := c.Greet(OperatorProtocol, OperatorVersion); err != nil {
		return wire.Message{}, err
	}
	if err := c.Send(1, verb, body, files...); err != nil {
		return wire.Message{}, err
	}
	m, _, err := c.Recv()
	return m, err
}

func admit(t testing.TB, dir, operator string, m Member) (path string, answer wire.Message) {
	t.Helper()
	ln, path := listen(t, dir, m.Agent+".sock")
	f, err := ln.File()
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	_ = ln.Close()
	defer func() { _ = f.Close() }()
	answer, err = ask(t, operator, VerbAdmit, m, f)
	if err != nil {
		t.Fatal(err)
	}
	return path, answer
}

func TestAMemberIsHeardByItsSocketIdAndToken(t *testing.T) {
	dir, operator, records := start(t)
	path, a := admit(t, dir, operator, Member{Team: "pair", Agent: "writer", GatewayID: memberID, TokenHash: HashToken("right")})
	if a.Verb != wire.VerbResult {
		t.Fatalf("%+v", a)
	}
	c := dialAs(t, memberID, path)
	if err := Dial(c, "test", 1, "right"); err != nil {
		t.Fatal(err)
	}
	m, _, err := c.Recv()
	if err != nil || m.Verb != "you" || !strings.Contains(string(m.Body), "writer") {
		t.Errorf("%+v, %v", m, err)
	}
	var r *deny.Reason
	if err := Dial(dialAs(t, memberID, path), "test", 1, "wrong"); !errors.As(err, &r) || r.Code != deny.BadToken {
		t.Errorf("a wrong token: %v", err)
	}
	if err := Dial(dialAs(t, memberID, path), "other", 1, "right"); err == nil {
		t.Error("another protocol is taken")
	}
	for _, id := range []uint32{0, memberID + 1, 65534} {
		if err := Dial(dialAs(t, id, path), "test", 1, "right"); err == nil {
			t.Errorf("id %d is taken", id)
		}
	}
	if _, err := ask(t, operator, VerbExpel, Member{Team: "pair", Agent: "writer"}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Recv(); err == nil {
		t.Error("the connection of one that was expelled stands")
	}
	out := records.String()
	if !strings.Contains(out, "identity.bad_peer") || !strings.Contains(out, "identity.bad_token") || strings.Contains(out, "right") || strings.Contains(out, "wrong\"") {
		t.Errorf("records: %s", out)
	}
}

// Each of many connections of root is answered, if only after another has ended.
func TestRootWaitsForItsTurn(t *testing.T) {
	_, operator, _ := start(t)
	var first []*wire.Conn
	for range maxOperators {
		c := dialAs(t, 0, operator)
		if _, err := c.Greet(OperatorProtocol, OperatorVersion); err != nil {
			t.Fatal(err)
		}
		first = append(first, c)
	}
	late := make(chan error, 1)
	c := dialAs(t, 0, operator)
	go func() {
		_, err := c.Greet(OperatorProtocol, OperatorVersion)
		late <- err
	}()
	select {
	case err := <-late:
		t.Fatalf("one too many was answered, or thrown out: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	_ = first[0].Close()
	if err := <-late; err != nil {
		t.Errorf("the one that waited: %v", err)
	}
}

func TestRootAloneIsTheOperator(t *testing.T) {
	dir, operator, _ := start(t)
	c := dialAs(t, memberID, operator)
	if _, err := c.Greet(OperatorProtocol, OperatorVersion); err == nil {
		t.Error("another id is greeted")
	}
	if m, err := ask(t, operator, "fail", struct{}{}); err != nil || m.Verb != wire.VerbError || !strings.Contains(string(m.Body), `"mend":"yes"`) {
		t.Errorf("%s, %v", m.Body, err)
	}
	if m, err := ask(t, operator, "nothing", struct{}{}); err != nil || m.Verb != wire.VerbError {
		t.Errorf("%+v, %v", m, err)
	}
	for name, m := range map[string]Member{
		"of root":      {Team: "t", Agent: "a", TokenHash: HashToken("x")},
		"of anybody":   {Team: "t", Agent: "b", GatewayID: 65534, TokenHash: HashToken("x")},
		"of nobody":    {Agent: "c", GatewayID: 1, TokenHash: HashToken("x")},
		"with no hash": {Team: "t", Agent: "d", GatewayID: 1, TokenHash: "x"},
	} {
		if _, a := admit(t, dir, operator, m); a.Verb != wire.VerbError {
			t.Errorf("a member %s is admitted", name)
		}
	}
	if m, err := ask(t, operator, VerbAdmit, Member{Team: "t", Agent: "a", GatewayID: 7, TokenHash: HashToken("x")}); err != nil || m.Verb != wire.VerbError {
		t.Errorf("without a socket: %+v, %v", m, err)
	}
	if m, err := ask(t, operator, VerbMembers, struct{}{}); err != nil || string(m.Body) != `{"members":[]}` {
		t.Errorf("%s, %v", m.Body, err)
	}
}
