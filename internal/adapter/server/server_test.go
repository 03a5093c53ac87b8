package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/client"
	"bulkhead/internal/adapter/draftkey"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/adapter/server"
	"bulkhead/internal/adapter/store"
	"bulkhead/internal/deny"
	"bulkhead/internal/identity"
	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

// Ids of gateways; nobody has them here.
const (
	alice = 70001
	bob   = 70002
	boss  = 70003
)

type stage struct {
	dir   string
	store *store.Adapter

	mu   sync.Mutex
	out  bytes.Buffer
	stop func() // the server, not the store
}

func (s *stage) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(b)
}

func (s *stage) records(t testing.TB) []record.Record {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []record.Record
	for line := range strings.Lines(s.out.String()) {
		var r record.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func policy() adapter.Policy {
	return adapter.Policy{
		Team: "t", Orchestrator: "boss", Channels: map[string][]string{"all": {"alice", "bob", "boss"}},
		Agents: map[string]adapter.AgentPolicy{"alice": {To: []string{"bob", "boss"}}, "bob": {To: []string{"alice"}}, "boss": {}},
	}
}

func start(t testing.TB) *stage {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to connect under other ids")
	}
	dir, err := os.MkdirTemp("/tmp", "adapter") //nolint:usetesting // others get in, and the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := &stage{dir: dir}
	cfg := protocol.Config{Team: "t", Policy: policy(), Database: filepath.Join(dir, "messages.db"), Agents: map[string]protocol.Agent{}}
	var listeners []*net.UnixListener
	for name, id := range map[string]uint32{"alice": alice, "bob": bob, "boss": boss, protocol.OperatorListener: 0} {
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.socket(name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(s.socket(name), 0o777); err != nil { // the server is to refuse, not the folder
			t.Fatal(err)
		}
		listeners = append(listeners, ln)
		cfg.Listeners = append(cfg.Listeners, name)
		if id != 0 {
			cfg.Agents[name] = protocol.Agent{GatewayID: id, TokenHash: protocol.HashToken("token of " + name)}
		}
	}
	if s.store, err = store.Open(t.Context(), store.Config{Path: cfg.Database, Policy: cfg.Policy, Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	srv, err := server.New(cfg, s.store, s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, listeners) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		s.stop()
		if err := s.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *stage) socket(name string) string { return filepath.Join(s.dir, name+".sock") }

// as runs do in a thread with another effective id, which is what the kernel
// tells of a peer.
func as(t testing.TB, id int, do func()) {
	t.Helper()
	var work sync.WaitGroup
	work.Go(func() {
		runtime.LockOSThread() // and never unlocked: the thread ends here
		if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(id), ^uintptr(0)); errno != 0 {
			t.Error(errno)
			return
		}
		do()
	})
	work.Wait()
}

func (s *stage) dial(t testing.TB, id int, socket, token string) (c *client.Agent, err error) {
	t.Helper()
	as(t, id, func() { c, err = client.Dial(context.Background(), s.socket(socket), token) })
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

func (s *stage) agent(t testing.TB, name string) *client.Agent {
	t.Helper()
	c, err := s.dial(t, map[string]int{"alice": alice, "bob": bob, "boss": boss}[name], name, "token of "+name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (s *stage) operator(t testing.TB) *client.Operator {
	t.Helper()
	o, err := client.DialOperator(t.Context(), s.socket(protocol.OperatorListener))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	return o
}

func draft(to, body string) adapter.Draft {
	return adapter.Draft{IdempotencyKey: draftkey.New(), To: to, Type: "note", Body: json.RawMessage(body)}
}

func TestSocketIdAndTokenAreAllNeeded(t *testing.T) {
	s := start(t)
	for name, c := range map[string]struct {
		id            int
		socket, token string
		code          deny.Code // empty: it works
		why           string
	}{
		"the gateway itself":                  {alice, "alice", "token of alice", "", ""},
		"the gateway without the right token": {alice, "alice", "token of bob", deny.BadToken, "token"},
		"another gateway with a valid token":  {bob, "alice", "token of alice", deny.BadPeer, "id 70002 connected"},
		"another gateway with its own token":  {bob, "alice", "token of bob", deny.BadPeer, "id 70002"},
		"the bare account":                    {1, "alice", "token of alice", deny.BadPeer, "id 1 connected"},
		"root":                                {0, "alice", "token of alice", deny.BadPeer, "id 0 connected"},
		"the overflow id":                     {identity.Overflow, "alice", "token of alice", deny.BadPeer, "overflow"},
		"a gateway at the operator's socket":  {alice, protocol.OperatorListener, "token of alice", deny.BadPeer, "root's"},
		"the overflow id at the operator's":   {identity.Overflow, protocol.OperatorListener, "x", deny.BadPeer, "overflow"},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(s.records(t))
			c0, err := s.dial(t, c.id, c.socket, c.token)
			if c.code == "" {
				if err != nil {
					t.Fatal(err)
				}
				if r := c0.Send(t.Context(), "bob", []adapter.Draft{draft("bob", `1`)}); r[0].Err != nil {
					t.Fatal(r[0].Err)
				}
				return
			}
			if err == nil {
				t.Fatal("it was heard")
			}
			var reason *deny.Reason
			if c.code == deny.BadToken && (!errors.As(err, &reason) || reason.Code != deny.BadToken) {
				t.Errorf("it was told %v", err)
			}
			all := s.records(t)[before:]
			if len(all) == 0 { // folded into an earlier line of the same kind
				all = s.records(t)
			}
			found := false
			for _, r := range all {
				found = found || r.Kind == record.Message && r.Verdict == record.Denied && r.Agent == c.socket && r.Reason != nil && r.Reason.Code == c.code
			}
			if !found {
				t.Errorf("no record of it: %+v", all)
			}
		})
	}
	got, err := s.agent(t, "boss").Receive(t.Context(), "", adapter.ReceiveRequest{Max: 10, Wait: 5 * time.Second})
	if err != nil || len(got) == 0 {
		t.Fatalf("the orchestrator was not alerted: %v", err)
	}
	for _, d := range got {
		if d.From != adapter.AlertName || d.Type != server.SecurityAlert || !strings.Contains(string(d.Body), `"identity.bad_`) {
			t.Errorf("%s: %s", d.Type, d.Body)
		}
	}
	text, err := s.operator(t).Metrics(t.Context())
	if err != nil || !strings.Contains(text, `bulkhead_adapter_connections_denied_total{agent="alice",code="identity.bad_token"} 1`) {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestEveryRequestGoesThroughTheSocket(t *testing.T) {
	s := start(t)
	a, b, o := s.agent(t, "alice"), s.agent(t, "bob"), s.operator(t)
	ctx := t.Context()
	d := draft("bob", `{"text":"<&> \u2028 ü"}`)
	r := a.Send(ctx, "", []adapter.Draft{d, d, draft("nobody", `1`), draft("bob", `2`)})
	var reason *deny.Reason
	if r[0].Err != nil || r[0].Sequence != 1 || r[0].Channel != adapter.Direct("alice", "bob") || r[0].Time.IsZero() || !r[1].Duplicate || r[1].Sequence != 1 ||
		!errors.As(r[2].Err, &reason) || reason.Code != deny.MessageNotAllowed || r[3].Sequence != 2 {
		t.Fatalf("%+v", r)
	}
	got, err := b.Receive(ctx, "", adapter.ReceiveRequest{Max: 5})
	if err != nil || len(got) == 0 || got[0].From != "alice" || string(got[0].Body) != string(d.Body) || got[0].Attempt != 1 || got[0].Lease == "" || got[0].Expires.IsZero() {
		t.Fatalf("%+v, %v", got, err)
	}
	if errs := b.Extend(ctx, "", []string{got[0].Lease, "none"}, time.Minute); errs[0] != nil || !errors.As(errs[1], &reason) || reason.Code != deny.MessageLeaseOver {
		t.Fatalf("extend: %v", errs)
	}
	if errs := b.Refuse(ctx, "", []adapter.Refusal{{Lease: got[0].Lease, Delay: time.Millisecond, Reason: "not now"}}); errs[0] != nil {
		t.Fatalf("refuse: %v", errs)
	}
	for n := 0; n < 2; {
		again, err := b.Receive(ctx, "", adapter.ReceiveRequest{Max: 5, Wait: 5 * time.Second})
		if err != nil || len(again) == 0 {
			t.Fatalf("%+v, %v", again, err)
		}
		for _, d := range again {
			n++
			if errs := b.Ack(ctx, "", []string{d.Lease}); errs[0] != nil {
				t.Fatalf("ack: %v", errs)
			}
		}
	}
	if errs := b.Ack(ctx, "", nil); len(errs) != 0 {
		t.Errorf("%v", errs)
	}
	reply := draft("alice", `"re"`)
	reply.ReplyTo = 1
	if r := b.Send(ctx, "", []adapter.Draft{reply}); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	page, err := a.Thread(ctx, "", adapter.ThreadRequest{Channel: adapter.Direct("alice", "bob"), Sequence: 3})
	if err != nil || len(page.Messages) != 2 || page.Messages[1].ReplyTo != 1 {
		t.Fatalf("thread: %+v, %v", page, err)
	}
	page, err = a.Replay(ctx, "", adapter.ReplayRequest{Channel: adapter.Direct("alice", "bob"), From: 2, Limit: 1})
	if err != nil || len(page.Messages) != 1 || page.Messages[0].Sequence != 2 || page.Next != 3 {
		t.Fatalf("replay: %+v, %v", page, err)
	}
	if _, err = a.Replay(ctx, "", adapter.ReplayRequest{Channel: "secret", From: 1}); !errors.As(err, &reason) {
		t.Fatalf("replay of a foreign channel: %v", err)
	}
	channels, err := a.Channels(ctx, "")
	if err != nil || len(channels) == 0 {
		t.Fatalf("channels: %+v, %v", channels, err)
	}

	queues, err := o.Queues(ctx)
	if err != nil || len(queues) != 3 {
		t.Fatalf("queues: %+v, %v", queues, err)
	}
	tail, err := o.Tail(ctx, 0, 2, 0)
	if err != nil || len(tail.Messages) != 2 || tail.Position == 0 {
		t.Fatalf("tail: %+v, %v", tail, err)
	}
	if page, err := o.Thread(ctx, "", adapter.ThreadRequest{Channel: adapter.Direct("alice", "bob"), Sequence: 1}); err != nil || len(page.Messages) != 2 {
		t.Fatalf("operator's thread: %+v, %v", page, err)
	}
	if r := o.OperatorSend(ctx, draft("bob", `"from above"`)); r.Err != nil || r.Sequence == 0 {
		t.Fatalf("operator's send: %+v", r)
	}
	if l, err := o.DeadLetters(ctx, "", 0, 0); err != nil || len(l) != 0 {
		t.Fatalf("dead: %+v, %v", l, err)
	}
	if n, err := o.ReplayDead(ctx, "bob", nil); err != nil || n != 0 {
		t.Fatalf("replay: %d, %v", n, err)
	}
	if n, err := o.DropDead(ctx, "bob", nil); err != nil || n != 0 {
		t.Fatalf("drop: %d, %v", n, err)
	}
	if err := o.Backup(ctx, filepath.Join(s.dir, "backup.db")); err != nil {
		t.Fatal(err)
	}
	p := policy()
	p.Agents["alice"] = adapter.AgentPolicy{}
	if err := o.SetPolicy(ctx, p); err != nil {
		t.Fatal(err)
	}
	if r := a.Send(ctx, "", []adapter.Draft{draft("bob", `1`)}); !errors.As(r[0].Err, &reason) || reason.Code != deny.MessageNotAllowed {
		t.Fatalf("after the policy changed: %+v", r)
	}
}

func TestAWaitStopsNothingElse(t *testing.T) {
	s := start(t)
	a, b := s.agent(t, "alice"), s.agent(t, "bob")
	var waits sync.WaitGroup
	var mu sync.Mutex
	full := 0
	ctx, cancel := context.WithCancel(t.Context())
	for range 70 {
		waits.Go(func() {
			_, err := b.Receive(ctx, "", adapter.ReceiveRequest{Wait: time.Minute, Channel: "all"})
			var r *deny.Reason
			if errors.As(err, &r) && r.RetryAfter > 0 {
				mu.Lock()
				full++
				mu.Unlock()
			}
		})
	}
	reply := b.Send(t.Context(), "", []adapter.Draft{draft("alice", `1`)})
	if reply[0].Err != nil {
		t.Fatal(reply[0].Err)
	}
	if got, err := a.Receive(t.Context(), "", adapter.ReceiveRequest{Wait: 10 * time.Second}); err != nil || len(got) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	for refused := 0; refused == 0; { // who leaves before it is refused does not hear of it
		if t.Context().Err() != nil {
			t.Fatal("70 waits at once were all taken")
		}
		time.Sleep(time.Millisecond)
		mu.Lock()
		refused = full
		mu.Unlock()
	}
	cancel()
	waits.Wait()
	// The places are free again, and nothing was leased to those who left.
	if r := a.Send(t.Context(), "", []adapter.Draft{draft("bob", `2`)}); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	for n := 0; ; n++ {
		got, err := b.Receive(t.Context(), "", adapter.ReceiveRequest{Wait: 5 * time.Second})
		var r *deny.Reason
		if errors.As(err, &r) && r.RetryAfter > 0 && n < 1000 {
			time.Sleep(time.Millisecond) // the last of them are just ending
			continue
		}
		if err != nil || len(got) != 1 || got[0].Attempt != 1 {
			t.Fatalf("%+v, %v", got, err)
		}
		return
	}
}

func TestManyLeasesAreAcknowledgedAtOnce(t *testing.T) {
	s := start(t)
	a, b := s.agent(t, "alice"), s.agent(t, "bob")
	drafts := make([]adapter.Draft, 100)
	for i := range drafts {
		drafts[i] = draft("bob", "1")
	}
	for _, r := range a.Send(t.Context(), "", drafts) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	got, err := b.Receive(t.Context(), "", adapter.ReceiveRequest{Max: 100})
	if err != nil || len(got) != 100 {
		t.Fatalf("%d, %v", len(got), err)
	}
	leases := make([]string, adapter.MaxBatch-50, adapter.MaxBatch+50) // none of his
	for _, d := range got {
		leases = append(leases, d.Lease)
	}
	for i, err := range b.Ack(t.Context(), "", leases) {
		if (err == nil) != (i >= adapter.MaxBatch-50) {
			t.Fatalf("lease %d of %d: %v", i, len(leases), err)
		}
	}
}

func TestWhatIsLargerThanAFrameComesInParts(t *testing.T) {
	s := start(t)
	a, b, o := s.agent(t, "alice"), s.agent(t, "bob"), s.operator(t)
	const n = 7
	var drafts []adapter.Draft
	for i := range n {
		drafts = append(drafts, draft("bob", fmt.Sprintf(`"%d%s"`, i, strings.Repeat("<", adapter.MaxBody-3))))
	}
	for i, r := range a.Send(t.Context(), "", drafts) {
		if r.Err != nil || r.Sequence != uint64(i+1) {
			t.Fatalf("%d: %+v", i, r)
		}
	}
	var got []adapter.Delivery
	for len(got) < n {
		part, err := b.Receive(t.Context(), "", adapter.ReceiveRequest{Max: 100, Wait: 5 * time.Second})
		if err != nil || len(part) == 0 {
			t.Fatalf("%d, %v", len(part), err)
		}
		got = append(got, part...)
		for _, d := range part {
			if errs := b.Ack(t.Context(), "", []string{d.Lease}); errs[0] != nil {
				t.Fatal(errs[0])
			}
		}
	}
	for i, d := range got {
		if d.Sequence != uint64(i+1) || string(d.Body) != string(drafts[i].Body) {
			t.Fatalf("delivery %d is %d", i, d.Sequence)
		}
	}
	seen := uint64(0)
	for from := uint64(1); from != 0; {
		p, err := a.Replay(t.Context(), "", adapter.ReplayRequest{Channel: adapter.Direct("alice", "bob"), From: from, Limit: 1000})
		if err != nil || len(p.Messages) == 0 || len(p.Messages) == n {
			t.Fatalf("%d messages in one page, %v", len(p.Messages), err)
		}
		for _, m := range p.Messages {
			if seen++; m.Sequence != seen {
				t.Fatalf("%d follows %d", m.Sequence, seen-1)
			}
		}
		from = p.Next
	}
	position := int64(0)
	for seen = 0; seen < n; {
		l, err := o.Tail(t.Context(), position, 100, 0)
		if err != nil || len(l.Messages) == 0 {
			t.Fatalf("tail: %d, %v", len(l.Messages), err)
		}
		seen, position = seen+uint64(len(l.Messages)), l.Position
	}
}

func TestGarbageEndsTheConnectionAndNothingElse(t *testing.T) {
	s := start(t)
	for name, text := range map[string]string{
		"an endless frame":    "\xff\xff\xff\xff",
		"no JSON":             "\x00\x00\x00\x03abc",
		"no verb":             "\x00\x00\x00\x02{}",
		"HTTP":                "GET / HTTP/1.1\r\n\r\n",
		"half a frame":        "\x00\x00\x01\x00{",
		"an auth that is not": "\x00\x00\x00\x1e" + `{"id":1,"verb":"auth","body":7}`,
	} {
		t.Run(name, func(t *testing.T) {
			var c net.Conn
			as(t, alice, func() {
				var err error
				if c, err = net.Dial("unix", s.socket("alice")); err != nil {
					t.Error(err)
				}
			})
			w := wire.New(c.(*net.UnixConn))
			if _, err := w.Greet(protocol.Name, protocol.Version); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(c, text); err != nil {
				t.Fatal(err)
			}
			_ = c.(*net.UnixConn).CloseWrite()
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
			if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, unix.ECONNRESET) { // which is closed as well
				t.Errorf("it was not closed: %v", err)
			}
			_ = c.Close()
		})
	}
	a := s.agent(t, "alice")
	if r := a.Send(t.Context(), "", []adapter.Draft{draft("bob", `1`)}); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
}

func TestManyAgentsAtOnce(t *testing.T) {
	s := start(t)
	a, b := s.agent(t, "alice"), s.agent(t, "bob")
	var work sync.WaitGroup
	const senders, each = 16, 25
	for range senders {
		work.Go(func() {
			for range each {
				if r := a.Send(t.Context(), "", []adapter.Draft{draft("bob", `1`)}); r[0].Err != nil {
					t.Error(r[0].Err)
				}
			}
		})
	}
	seen := map[uint64]bool{}
	for len(seen) < senders*each {
		got, err := b.Receive(t.Context(), "", adapter.ReceiveRequest{Max: 20, Wait: 10 * time.Second})
		if err != nil || len(got) == 0 {
			t.Fatalf("after %d: %v", len(seen), err)
		}
		var leases []string
		for _, d := range got {
			if d.Sequence != uint64(len(seen)+1) {
				t.Fatalf("%d comes after %d", d.Sequence, len(seen))
			}
			seen[d.Sequence] = true
			leases = append(leases, d.Lease)
		}
		for _, err := range b.Ack(t.Context(), "", leases) {
			if err != nil {
				t.Error(err)
			}
		}
	}
	work.Wait()
	text, err := s.operator(t).Metrics(t.Context())
	for _, want := range []string{
		`bulkhead_adapter_messages_total{agent="alice",outcome="stored"} 400`, "bulkhead_adapter_commit_seconds_bucket", `bulkhead_adapter_queue_messages{agent="bob"} 0`,
		`bulkhead_adapter_queue_oldest_seconds{agent="bob"}`, "bulkhead_adapter_retried_total 0", `bulkhead_adapter_dead_letters{agent="bob"} 0`, "bulkhead_adapter_acknowledged_total 400",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the metrics, %v", want, err)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

// Whatever a gateway that was taken over sends, the adapter answers or closes,
// and goes on serving others.
func FuzzSession(f *testing.F) {
	s := start(f)
	for _, m := range []string{
		`{"id":1,"verb":"send","body":{"drafts":[{"idempotency_key":"6ba7b810-9dad-41d1-80b4-00c04fd430c8","to":"bob","type":"note","body":1}]}}`,
		`{"id":2,"verb":"receive","body":{"max":1,"wait":1}}`, `{"id":3,"verb":"ack","body":{"leases":["x"]}}`, `{"id":4,"verb":"extend","body":{"leases":["x"],"duration":-1}}`,
		`{"id":5,"verb":"refuse","body":{"refusals":[{"lease":"x","delay":-5}]}}`, `{"id":6,"verb":"thread","body":{"channel":"all","channel_sequence_id":1}}`,
		`{"id":7,"verb":"replay","body":{"channel":"@alice+bob","from_sequence_id":18446744073709551615,"limit":-1}}`, `{"id":8,"verb":"channels"}`,
		`{"id":9,"verb":"cancel","body":{"id":2}}`, `{"id":10,"verb":"policy","body":{}}`,
	} {
		f.Add([]byte(m))
	}
	other := s.agent(f, "bob")
	f.Fuzz(func(t *testing.T, payload []byte) {
		var c net.Conn
		var err error
		as(t, alice, func() { c, err = net.Dial("unix", s.socket("alice")) })
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		w := wire.New(c.(*net.UnixConn))
		if _, err := w.Greet(protocol.Name, protocol.Version); err != nil {
			return // its connections are used up for the moment
		}
		if err := w.Send(1, protocol.VerbAuth, protocol.Auth{Token: "token of alice"}); err != nil {
			t.Fatal(err)
		}
		if m, _, err := w.Recv(); err != nil || m.Verb != protocol.VerbOK {
			t.Fatalf("%+v, %v", m, err)
		}
		frame := append([]byte{byte(len(payload) >> 24), byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload))}, payload...)
		if _, err := c.Write(frame); err != nil {
			t.Fatal(err)
		}
		_ = c.(*net.UnixConn).CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		for {
			m, _, err := w.Recv()
			if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
				break
			}
			if err != nil {
				t.Fatalf("not closed, or no frame: %v", err)
			}
			if !json.Valid(m.Body) {
				t.Fatalf("an answer that is not JSON: %q", m.Body)
			}
		}
		if _, err := other.Channels(context.Background(), ""); err != nil {
			t.Fatalf("bob is not served any more: %v", err)
		}
	})
}

// A refused send is found by operators, once for each kind, with its count.
func TestARefusedSendIsWrittenDown(t *testing.T) {
	s := start(t)
	a := s.agent(t, "alice")
	for range 3 {
		if r := a.Send(t.Context(), "", []adapter.Draft{draft("nobody", `1`)}); r[0].Err == nil {
			t.Fatal("alice may write to anybody")
		}
	}
	d := draft("bob", `1`)
	first, other := d, d
	other.Body = json.RawMessage(`2`)
	for _, r := range a.Send(t.Context(), "", []adapter.Draft{first, other}) {
		_ = r // the second is refused: its key was taken
	}
	_ = a.Close()
	s.stop() // what is folded is written at the end
	count := map[deny.Code]uint64{}
	for _, r := range s.records(t) {
		if r.Kind == record.Message && r.Verdict == record.Denied && r.Agent == "alice" && r.Reason != nil {
			count[r.Reason.Code] += r.Count
			if want := map[deny.Code]string{deny.MessageNotAllowed: "to nobody", deny.MessageDuplicateKey: "to bob"}[r.Reason.Code]; r.Target != want {
				t.Errorf("%+v", r)
			}
		}
	}
	if count[deny.MessageNotAllowed] != 3 || count[deny.MessageDuplicateKey] != 1 {
		t.Errorf("%v", count)
	}
}
