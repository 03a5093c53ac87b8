package execution

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/govern"
	"bulkhead/internal/record"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
	"bulkhead/internal/wire"
)

// clock is a time that a test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.now }

func (c *clock) add(d time.Duration) { c.mu.Lock(); defer c.mu.Unlock(); c.now = c.now.Add(d) }

// bench is executions over a real store, with tools that only count.
type bench struct {
	t     testing.TB
	path  string
	clock *clock
	store *store.Store
	book  *govern.Book
	e     *Executions
	calls *tool.Dispatcher
	rate  int
	quota int64
	sent  atomic.Int32 // calls of notify_send that were done
	fail  atomic.Bool  // it fails
	held  chan struct{}
	still atomic.Pointer[error]

	mu   sync.Mutex
	told []record.Record
}

func start(t *testing.T, change func(*bench)) *bench {
	b := &bench{t: t, path: filepath.Join(t.TempDir(), "system.db"), clock: &clock{now: time.Now()}, rate: 1_000_000}
	if change != nil {
		change(b)
	}
	b.open()
	t.Cleanup(func() { b.close() })
	return b
}

func (b *bench) open() {
	b.t.Helper()
	var err error
	if b.store, err = store.Open(b.t.Context(), store.Config{Path: b.path, Now: b.clock.Now, Quota: b.quota}); err != nil {
		b.t.Fatal(err)
	}
	if b.book, err = govern.Open(b.t.Context(), b.store, b.clock.Now); err != nil {
		b.t.Fatal(err)
	}
	if b.e, err = Open(b.t.Context(), Config{
		Agent: "writer", Store: b.store, Book: b.book, Asks: func(n string) bool { return n == "notify_send" || n == "net_http_post" },
		Expire: time.Hour, Waiting: 3, Calls: func() *tool.Dispatcher { return b.calls }, Now: b.clock.Now, Unknown: errUnknown,
		Tell: func(r record.Record) { b.mu.Lock(); b.told = append(b.told, r); b.mu.Unlock() },
		Still: func(tool.Caller) error {
			if err := b.still.Load(); err != nil {
				return *err
			}
			return nil
		},
	}); err != nil {
		b.t.Fatal(err)
	}
	text := func(name string) tool.Field { return tool.Field{Name: name, Type: tool.String, Required: true} }
	table, err := tool.NewTable(append(b.e.Tools(), tool.Tool{
		Name: "notify_send", Group: tool.Notices, Effect: true, Fields: []tool.Field{text("message"), {Name: "raw", Type: tool.Bytes}},
		Run: func(ctx context.Context, c *tool.Call) (any, error) {
			if err := c.Begin(ctx); err != nil {
				return nil, err
			}
			b.sent.Add(1)
			if b.held != nil {
				select {
				case <-b.held:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			if b.fail.Load() {
				return nil, errors.New("no")
			}
			return map[string]string{"sent": c.In.String("message")}, nil
		},
	}, tool.Tool{
		Name: "net_http_post", Group: tool.Network, Effect: true, Fields: []tool.Field{text("url"), {Name: "body", Type: tool.Any}},
		Scope: func(in tool.Input) (string, *deny.Reason) {
			host, _, _ := strings.Cut(in.String("url"), "/")
			if strings.Contains(host, " ") {
				r := tool.Refuse(deny.ToolInvalid, "url", "the input is not what this tool takes", "mend it")
				r.Fields = []deny.Field{{Name: "url", Why: "it has a space in it"}}
				return "", r
			}
			return host, nil
		},
		Run: func(context.Context, *tool.Call) (any, error) {
			b.sent.Add(1)
			return map[string]int{"status": 200}, nil
		},
	}, tool.Tool{
		Name: "mem_get", Group: tool.Memory, Fields: []tool.Field{text("key")},
		Run: func(context.Context, *tool.Call) (any, error) { return map[string]int{}, nil },
	})...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.calls = tool.New(tool.Config{Table: table, Journal: b.store, Allowed: []string{"notify", "net", "mem", "execution"}, Rate: b.rate, Gate: b.e, Now: b.clock.Now})
	b.e.Run()
}

var errUnknown = errors.New("not known")

func (b *bench) close() {
	if err := errors.Join(b.e.Close(), b.store.Close()); err != nil {
		b.t.Error(err)
	}
}

var who = tool.Caller{Team: "t", Agent: "writer"}

// fuzzed opens it for a fuzz target.
func (b *bench) fuzzed(f *testing.F) {
	b.t, b.clock = f, &clock{now: time.Now()}
	b.open()
	f.Cleanup(b.close)
}

// try makes a call as the agent, or with a token.
func (b *bench) try(token, name, input string) (string, *deny.Reason) {
	b.t.Helper()
	out, r := b.calls.Call(b.t.Context(), tool.Caller{Team: "t", Agent: "writer", Token: token}, name, []byte(input))
	return string(out), r
}

// ask makes a call that must wait, and gives its execution.
func (b *bench) ask(name, input string) string {
	b.t.Helper()
	out, r := b.try("", name, input)
	if r == nil || r.Code != deny.ToolApproval || r.Execution == "" {
		b.t.Fatalf("%s %s: %s, %v", name, input, out, r)
	}
	return r.Execution
}

func (b *bench) decide(q wire.DecideRequest) (*wire.DecideResult, *deny.Reason) {
	q.By = 7
	return b.e.Decide(b.t.Context(), q)
}

func (b *bench) approve(id, kind string) *wire.DecideResult {
	b.t.Helper()
	q := wire.DecideRequest{ID: id, Approve: true, Kind: kind, Wide: kind != "" && kind != wire.PermitOnce}
	if kind == wire.PermitFor {
		q.For = time.Minute
	}
	res, r := b.decide(q)
	if r != nil {
		b.t.Fatal(r)
	}
	return res
}

func (b *bench) inspect(id string) Shown {
	b.t.Helper()
	out, r := b.try("", "execution_inspect", `{"executionId":"`+id+`"}`)
	if r != nil {
		b.t.Fatal(r)
	}
	var s Shown
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		b.t.Fatal(err)
	}
	return s
}

// until waits for a state.
func (b *bench) until(id string, want State) Shown {
	b.t.Helper()
	for {
		s := b.inspect(id)
		if s.State == want {
			return s
		}
		if s.State.ended() {
			b.t.Fatalf("%s is %s, not %s: %+v", id, s.State, want, s.Steps)
		}
		if b.t.Context().Err() != nil {
			b.t.Fatal("the test's time is over")
		}
		time.Sleep(time.Millisecond)
	}
}

func (b *bench) records() (out []record.Record) {
	b.t.Helper()
	out, _, err := b.store.Spool().Recent(b.t.Context(), time.Time{}, 10_000)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

func TestACallWaitsForAPersonAndIsDoneOnce(t *testing.T) {
	b := start(t, nil)
	if _, r := b.try("", "mem_get", `{"key":"k"}`); r != nil {
		t.Fatalf("a call that is not asked for: %v", r)
	}
	id := b.ask("notify_send", `{"message":"hello"}`)
	if again := b.ask("agentos.notify_send", ` {"message": "hello"}`); again != id {
		t.Errorf("the same call is kept twice: %s and %s", id, again)
	}
	b.clock.add(time.Millisecond)
	other := b.ask("notify_send", `{"message":"other"}`)
	if other == id {
		t.Error("two calls are one execution")
	}
	if s := b.inspect(id); s.State != Waiting || s.Steps[0].State != waiting || b.sent.Load() != 0 {
		t.Fatalf("%+v, %d sent", s, b.sent.Load())
	}
	list, r := b.e.Approvals(t.Context(), "")
	if r != nil || len(list) != 2 || list[0].ID != id || list[0].Tool != "notify_send" || list[0].Given[0] != (wire.Given{Name: "message", Form: "text", Text: "hello", Bytes: 5}) {
		t.Fatalf("%+v, %v", list, r)
	}
	if res := b.approve(id, ""); res.Grant != nil || res.Tool != "notify_send" {
		t.Errorf("%+v", res)
	}
	s := b.until(id, Completed)
	if string(s.Steps[0].Answer) != `{"sent":"hello"}` || !strings.Contains(s.Steps[0].Approved, "user id 7") || b.sent.Load() != 1 {
		t.Errorf("%+v, %d sent", s, b.sent.Load())
	}
	if res := b.approve(id, ""); res.State != string(Completed) || b.sent.Load() != 1 { // its answer was lost
		t.Errorf("%+v, %d sent", res, b.sent.Load())
	}
	for _, q := range []wire.DecideRequest{{ID: id}, {ID: id, Approve: true, Kind: wire.PermitAlways, Wide: true}} {
		if _, r := b.decide(q); r == nil || r.Code != deny.ToolMissing {
			t.Errorf("a call is decided about twice: %+v, %v", q, r)
		}
	}
	if next := b.ask("notify_send", `{"message":"hello"}`); next == id {
		t.Error("an approval covers the next call")
	}
	var asked, decided, did int
	for _, r := range b.records() {
		switch {
		case r.Kind == record.Tool && r.Target == "notify_send" && r.Verdict == record.Denied && r.Reason.Code == deny.ToolApproval:
			asked++
		case r.Kind == record.Approval && r.Verdict == record.Allowed && strings.Contains(r.Detail, "user id 7"):
			decided++
		case r.Kind == record.Tool && r.Target == "notify_send" && r.Verdict == record.Allowed && strings.Contains(r.Detail, id):
			did++
		}
	}
	if asked != 4 || decided != 1 || did != 1 {
		t.Errorf("%d asked, %d decided and %d done are on record", asked, decided, did)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.told) != 3 || !strings.Contains(b.told[0].Detail, id) {
		t.Errorf("%+v", b.told)
	}
}

func TestWhatAPersonDeniesIsNotDoneAndNotAskedAgainForAWhile(t *testing.T) {
	b := start(t, nil)
	id := b.ask("notify_send", `{"message":"x"}`)
	if _, r := b.decide(wire.DecideRequest{ID: id, Reason: "not to strangers"}); r != nil {
		t.Fatal(r)
	}
	s := b.inspect(id)
	if s.State != Failed || s.Steps[0].Error == nil || !strings.Contains(s.Steps[0].Error.Why, "not to strangers") {
		t.Errorf("%+v", s)
	}
	if res, r := b.decide(wire.DecideRequest{ID: id, Reason: "not to strangers"}); r != nil || res.Approved || res.State != string(Failed) {
		t.Errorf("the answer to a denial is given once: %+v, %v", res, r)
	}
	for _, q := range []wire.DecideRequest{{ID: id}, {ID: id, Approve: true}} {
		if _, r := b.decide(q); r == nil || r.Code != deny.ToolMissing {
			t.Errorf("%+v: %v", q, r)
		}
	}
	if _, r := b.try("", "notify_send", `{"message":"x"}`); r == nil || r.Code != deny.ToolDisapproved {
		t.Errorf("%v", r)
	}
	if got := b.book.List(); len(got) != 0 {
		t.Errorf("a denial gave a grant: %+v", got)
	}
	b.ask("notify_send", `{"message":"y"}`) // another one is asked
	b.clock.add(refusedFor + time.Minute)
	if next := b.ask("notify_send", `{"message":"x"}`); next == id || b.sent.Load() != 0 {
		t.Errorf("%s, %d sent", next, b.sent.Load())
	}
}

func TestNobodyDecidesInTime(t *testing.T) {
	b := start(t, nil)
	id := b.ask("notify_send", `{"message":"x"}`)
	b.clock.add(time.Hour)
	if _, r := b.decide(wire.DecideRequest{ID: id, Approve: true}); r == nil || r.Code != deny.ToolMissing {
		t.Errorf("an approval that comes too late counts: %v", r)
	}
	if err := b.store.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := b.inspect(id); s.State != Failed || s.Steps[0].Error == nil || s.Steps[0].Error.Where != "tools/tools.disapproved" {
		t.Errorf("%+v", s)
	}
	b.ask("notify_send", `{"message":"x"}`) // nobody denied it
	b.clock.add(keptFor + time.Hour)
	for range 2 { // first it is over, then old
		if err := b.store.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, r := b.try("", "execution_inspect", `{"executionId":"`+id+`"}`); r == nil || r.Code != deny.ToolMissing {
		t.Errorf("what ended a week ago is kept: %v", r)
	}
}

func TestAsManyWaitAsMay(t *testing.T) {
	b := start(t, nil)
	var first string
	for i := range 3 {
		id := b.ask("notify_send", fmt.Sprintf(`{"message":"%d"}`, i))
		if i == 0 {
			first = id
		}
	}
	_, r := b.try("", "notify_send", `{"message":"more"}`)
	if r == nil || r.Envelope().StatusCode != 429 || r.RetryAfter == 0 {
		t.Fatalf("%v", r)
	}
	if b.ask("notify_send", `{"message":"0"}`) != first {
		t.Error("a repetition takes a place")
	}
	if _, r := b.try("", "execution_cancel", `{"executionId":"`+first+`"}`); r != nil {
		t.Fatal(r)
	}
	b.ask("notify_send", `{"message":"more"}`)
	if _, r := b.decide(wire.DecideRequest{ID: first, Approve: true}); r == nil {
		t.Error("what was taken back is approved")
	}
	if s := b.inspect(first); s.State != Cancelled || b.sent.Load() != 0 {
		t.Errorf("%+v", s)
	}
}

// Each kind of grant: what it covers, and what ends it.
func TestGrants(t *testing.T) {
	for _, k := range []struct {
		name string
		q    wire.DecideRequest
		// The first call is net_http_post {"url":"a.example:443/x"} as the agent.
		sameInput, sameHost, otherHost, withToken bool // is it covered?
		afterTime, afterSession, afterRestart     bool // does it still hold?
	}{
		{name: "once", q: wire.DecideRequest{Kind: wire.PermitOnce}},
		{name: "session", q: wire.DecideRequest{Kind: wire.PermitSession}, sameInput: true, sameHost: true, afterTime: true},
		{name: "for a time", q: wire.DecideRequest{Kind: wire.PermitFor, For: 10 * time.Minute}, sameInput: true, sameHost: true, afterSession: true, afterRestart: true},
		{name: "always", q: wire.DecideRequest{Kind: wire.PermitAlways}, sameInput: true, sameHost: true, afterTime: true, afterSession: true, afterRestart: true},
		{name: "always, this very input", q: wire.DecideRequest{Kind: wire.PermitAlways, Exact: true}, sameInput: true, afterTime: true, afterSession: true, afterRestart: true},
		{name: "always, wide", q: wire.DecideRequest{Kind: wire.PermitAlways, Wide: true}, sameInput: true, sameHost: true, otherHost: true, afterTime: true, afterSession: true, afterRestart: true},
	} {
		t.Run(k.name, func(t *testing.T) {
			const input = `{"url":"a.example:443/x"}`
			covered := func(b *bench, token, input string) bool {
				_, r := b.try(token, "net_http_post", input)
				if r != nil && r.Code != deny.ToolApproval && r.Code != deny.ToolRate {
					t.Fatal(r)
				}
				return r == nil
			}
			given := func(t *testing.T) *bench {
				b := start(t, nil)
				q := k.q
				q.ID, q.Approve = b.ask("net_http_post", input), true
				if _, r := b.decide(q); r != nil {
					t.Fatal(r)
				}
				b.until(q.ID, Completed)
				n := len(b.book.List())
				if res, r := b.decide(q); r != nil || len(b.book.List()) != n || (res.Grant != nil) != (n == 1) {
					t.Fatalf("said again: %+v, %v", res, r)
				}
				return b
			}
			b := given(t)
			for _, c := range []struct {
				what, token, input string
				want               bool
			}{
				{"the same input", "", input, k.sameInput},
				{"the same host", "", `{"url":"a.example:443/x","body":{"b":1}}`, k.sameHost},
				{"another host", "", `{"url":"b.example:443/x"}`, k.otherHost},
				{"the same input with a token", "other", input, k.withToken},
			} {
				if got := covered(b, c.token, c.input); got != c.want {
					t.Errorf("%s: covered is %t", c.what, got)
				}
			}
			if _, r := b.try("", "notify_send", `{"message":"x"}`); r == nil {
				t.Error("it covers another tool")
			}
			b = given(t)
			b.clock.add(10*time.Minute + time.Second)
			if got := covered(b, "", input); got != k.afterTime {
				t.Errorf("after its time it holds: %t", got)
			}
			b = given(t)
			if err := b.book.EndSession(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := covered(b, "", input); got != k.afterSession {
				t.Errorf("after the session it holds: %t", got)
			}
			b = given(t)
			b.close()
			b.open()
			if got := covered(b, "", input); got != k.afterRestart {
				t.Errorf("after a restart of the gateway it holds: %t", got)
			}
			for _, g := range b.book.List() {
				if err := b.book.Revoke(t.Context(), g.ID, record.Record{Kind: record.Approval}); err != nil {
					t.Fatal(err)
				}
			}
			if covered(b, "", input) {
				t.Error("what was revoked holds")
			}
			b.close()
			b.open()
			if covered(b, "", input) {
				t.Error("what was revoked comes back with a restart")
			}
		})
	}
}

// Of a call whose destination cannot be told nobody could give but a grant for any.
func TestACallWhoseDestinationCannotBeToldIsNotKept(t *testing.T) {
	b := start(t, nil)
	for input, field := range map[string]string{`{"url":"a.example :443/x"}`: "url", `{"url":""}`: "", `{"url":"/x"}`: ""} {
		if _, r := b.try("", "net_http_post", input); r == nil || r.Code != deny.ToolInvalid || field != "" && (len(r.Fields) != 1 || r.Fields[0].Name != field) {
			t.Errorf("%s: %v", input, r)
		}
		want := "steps[0].input"
		if field != "" {
			want += "." + field
		}
		if _, r := b.try("", "execution_start", `{"steps":[{"tool":"net_http_post","input":`+input+`}]}`); r == nil || r.Code != deny.ToolInvalid || r.Fields[0].Name != want {
			t.Errorf("%s as a step: %v", input, r)
		}
	}
	if list, r := b.e.Approvals(t.Context(), ""); r != nil || len(list) != 0 || b.sent.Load() != 0 {
		t.Errorf("%+v, %v", list, r)
	}
}

// A grant without a destination is for any: nobody gives it without saying so.
func TestAGrantForACallWithoutADestinationIsSaid(t *testing.T) {
	b := start(t, nil)
	id := b.ask("notify_send", `{"message":"x"}`)
	for _, q := range []wire.DecideRequest{{Kind: wire.PermitSession}, {Kind: wire.PermitFor, For: time.Hour}, {Kind: wire.PermitAlways}} {
		q.ID, q.Approve = id, true
		if _, r := b.decide(q); r == nil || r.Code != deny.ToolInvalid || !strings.Contains(r.Mend, "--exact") {
			t.Errorf("%s: %v", q.Kind, r)
		}
	}
	if s := b.inspect(id); s.State != Waiting || len(b.book.List()) != 0 {
		t.Fatalf("%+v, %+v", s, b.book.List())
	}
	if _, r := b.decide(wire.DecideRequest{ID: id, Approve: true, Kind: wire.PermitAlways, Exact: true}); r != nil {
		t.Fatal(r)
	}
	b.until(id, Completed)
	if _, r := b.try("", "notify_send", `{"message":"x"}`); r != nil {
		t.Error(r)
	}
	b.ask("notify_send", `{"message":"y"}`)
}

func TestADecisionThatMakesNoSenseChangesNothing(t *testing.T) {
	b := start(t, nil)
	id := b.ask("net_http_post", `{"url":"a.example:443"}`)
	for _, q := range []wire.DecideRequest{
		{ID: id, Approve: true, Kind: "forever"},
		{ID: id, Approve: true, Kind: wire.PermitFor},
		{ID: id, Approve: true, Kind: wire.PermitFor, For: -time.Hour},
		{ID: id, Approve: true, Kind: wire.PermitFor, For: govern.MaxFor + 1},
		{ID: id, Approve: true, Kind: wire.PermitAlways, Exact: true, Wide: true},
		{ID: id, Approve: true, Exact: true},
		{ID: id, Approve: true, Reason: "because"},
		{ID: id, Kind: wire.PermitAlways},
		{ID: id, Reason: strings.Repeat("x", maxReason+1)},
		{ID: id + ".2", Approve: true},
		{ID: id + ".01", Approve: true},
		{ID: "", Approve: true},
		{ID: "x", Approve: true},
		{ID: "xaaaaaaaa", Approve: true},
		{ID: strings.Repeat("x", 1<<16), Approve: true},
	} {
		if res, r := b.decide(q); r == nil {
			t.Errorf("%+v is taken: %+v", q, res)
		}
	}
	if s := b.inspect(id); s.State != Waiting || len(b.book.List()) != 0 || b.sent.Load() != 0 {
		t.Errorf("%+v", s)
	}
}

func TestWhatWasApprovedStaysWithinRateTokenAndInput(t *testing.T) {
	b := start(t, nil)
	bad := errors.New("revoked")
	_, r := b.try("tok", "notify_send", `{"message":"x"}`)
	id := r.Execution
	b.still.Store(&bad)
	b.approve(id, "")
	s := b.until(id, Failed)
	if b.sent.Load() != 0 || s.Steps[0].Error == nil || s.Steps[0].Error.StatusCode != 401 {
		t.Errorf("it is done with a token that was revoked: %+v", s)
	}
	if !slices.ContainsFunc(b.records(), func(r record.Record) bool {
		return r.Kind == record.Tool && r.Target == "notify_send" && r.Verdict == record.Denied && r.Reason != nil && r.Reason.Code == deny.BadToken
	}) {
		t.Error("it is on no record")
	}
	b.still.Store(nil)
	if _, r := b.try("another", "execution_inspect", `{"executionId":"`+id+`"}`); r == nil || r.Code != deny.ToolMissing {
		t.Errorf("another token sees it: %v", r)
	}
	if _, r := b.try("tok", "execution_inspect", `{"executionId":"`+id+`"}`); r != nil {
		t.Errorf("its own does not: %v", r)
	}
	if _, r := b.try("", "notify_send", `{"message":"`+strings.Repeat("x", maxInput)+`"}`); r == nil || r.Envelope().StatusCode != 413 {
		t.Errorf("%v", r)
	}
	_, r = b.calls.Call(tool.Streamed(t.Context()), tool.Caller{Team: "t", Agent: "writer"}, "notify_send", []byte(`{"message":"x"}`))
	if r == nil || r.Code != deny.ToolApproval || r.Execution != "" {
		t.Errorf("a stream is kept: %v", r)
	}
	b.fail.Store(true)
	id = b.ask("notify_send", `{"message":"x"}`)
	b.approve(id, "")
	if s := b.until(id, Failed); s.Steps[0].Error.Where != "tools/tools.failed" {
		t.Errorf("%+v", s)
	}
}

// A gateway that was killed never does a call twice: what had begun is uncertain,
// what was approved and had not is done.
func TestWhatBeganBeforeARestartIsNotDoneAgain(t *testing.T) {
	b := start(t, nil)
	began, queued := b.ask("notify_send", `{"message":"began"}`), b.ask("notify_send", `{"message":"queued"}`)
	waits := b.ask("notify_send", `{"message":"waits"}`)
	b.close()
	st, err := store.Open(t.Context(), store.Config{Path: b.path, Now: b.clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Update(t.Context(), func(tx *store.Tx) error { // as a gateway leaves it that is killed
		for id, state := range map[string]string{began: running, queued: granted} {
			if _, err := tx.Exec("UPDATE step SET state = ?, touched = 1 WHERE execution = ?", state, id); err != nil {
				return err
			}
			if _, err := tx.Exec("UPDATE execution SET state = 'running' WHERE id = ?", id); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	b.open()
	s := b.until(began, Failed)
	if !strings.Contains(s.Steps[0].Error.Why, "may or may not") {
		t.Errorf("%+v", s)
	}
	b.until(queued, Completed)
	if s := b.inspect(waits); s.State != Waiting || b.sent.Load() != 1 {
		t.Errorf("%+v; %d sent", s, b.sent.Load())
	}
}

func TestADecisionOfWhichTheTokenIsNotKnownYetWaits(t *testing.T) {
	b := start(t, nil)
	unknown := fmt.Errorf("just started: %w", errUnknown)
	b.still.Store(&unknown)
	id := b.ask("notify_send", `{"message":"x"}`)
	b.approve(id, "")
	time.Sleep(20 * time.Millisecond)
	if s := b.inspect(id); s.State != Queued || b.sent.Load() != 0 {
		t.Errorf("%+v", s)
	}
	b.still.Store(nil)
	b.until(id, Completed)
}

func TestACallUnderWayIsCancelled(t *testing.T) {
	b := start(t, func(b *bench) { b.held = make(chan struct{}) })
	id := b.ask("notify_send", `{"message":"x"}`)
	b.approve(id, "")
	for b.sent.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	if s := b.inspect(id); s.State != Running {
		t.Errorf("%+v", s)
	}
	if _, r := b.try("", "execution_cancel", `{"executionId":"`+id+`"}`); r != nil {
		t.Fatal(r)
	}
	for b.inspect(id).Steps[0].Over == nil { // its call ends
		time.Sleep(time.Millisecond)
	}
	if s := b.inspect(id); s.State != Cancelled || s.Steps[0].State != failed {
		t.Errorf("%+v", s)
	}
	if _, r := b.try("", "execution_cancel", `{"executionId":"`+id+`"}`); r == nil || r.Code != deny.ToolConflict {
		t.Errorf("%v", r)
	}
}

func TestHowMuchWaitsIsKnown(t *testing.T) {
	b := start(t, nil)
	wait := func(n int) {
		t.Helper()
		for b.e.Asking().Waiting != n {
			time.Sleep(time.Millisecond)
		}
	}
	one := b.ask("notify_send", `{"message":"1"}`)
	b.ask("notify_send", `{"message":"2"}`)
	wait(2)
	b.approve(one, "")
	wait(1)
	b.close()
	b.open()
	wait(1)
	b.clock.add(time.Hour)
	if err := b.store.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait(0)
}

func TestAPersonSeesWhatTheToolUnderstands(t *testing.T) {
	b := start(t, nil)
	b.ask("notify_send", `{"message":"a\u001b[2J\nb", "raw":"aGkK"}`)
	b.clock.add(time.Millisecond)
	long := strings.Repeat("é", shortText)
	id := b.ask("notify_send", `{"message":"`+long+`", "raw":"/w=="}`)
	list, r := b.e.Approvals(t.Context(), "")
	if r != nil {
		t.Fatal(r)
	}
	if g := list[0].Given; g[0].Text != "a\x1b[2J\nb" || g[1] != (wire.Given{Name: "raw", Form: "text", Text: "hi\n", Bytes: 3}) {
		t.Errorf("%+v", g) // the CLI escapes it
	}
	if g := list[1].Given; !g[0].Cut || len(g[0].Text) != shortText || g[0].Bytes != int64(len(long)) || g[1].Form != "base64" {
		t.Errorf("%+v", g)
	}
	if list, r = b.e.Approvals(t.Context(), id); r != nil || len(list) != 1 || list[0].Given[0].Cut || list[0].Given[0].Text != long {
		t.Errorf("%+v, %v", list, r)
	}
	if _, r = b.e.Approvals(t.Context(), "nonsense"); r == nil {
		t.Error("nonsense is an id")
	}
}

// What a person is not shown whole is not kept: the end of it could be anything.
func TestWhatCannotBeShownIsNotKept(t *testing.T) {
	b := start(t, nil)
	free := strings.Repeat("a", wholeText)
	b.ask("notify_send", `{"message":"`+free+`"}`)
	for _, input := range []string{
		`{"message":"` + free + `b"}`,
		`{"message":"x","raw":"` + strings.Repeat("/wAA", wholeText/4+1) + `"}`,
	} {
		if _, r := b.try("", "notify_send", input); r == nil || r.Code != deny.ToolTooLarge {
			t.Errorf("%.40s: %v", input, r)
		}
	}
	id := b.begin(true, sendStep(free+"b"))
	if s := b.until(id, Failed); s.Steps[0].Error == nil || s.Steps[0].Error.Where != "tools/tools.too_large" {
		t.Errorf("%+v", s.Steps)
	}
	list, r := b.e.Approvals(t.Context(), "")
	if r != nil || len(list) != 1 || b.sent.Load() != 0 {
		t.Errorf("%d wait, %v", len(list), r)
	}
	id = b.ask("notify_send", `{"message":"x","raw":"`+strings.Repeat("/wAA", 100)+`"}`)
	b.clock.add(time.Millisecond)
	for _, only := range []string{"", id} {
		list, r := b.e.Approvals(t.Context(), only)
		if r != nil {
			t.Fatal(r)
		}
		for _, p := range list {
			if p.ID == id && (p.Given[1].Form != "base64" || p.Given[1].Bytes != 300 || p.Given[1].Cut != (only == "") || len(p.Given[1].Text)%4 != 0) {
				t.Errorf("%+v", p.Given[1])
			}
		}
	}
}

// An approval is no stock: who pauses the call cannot have it done when nobody expects it.
func TestAnApprovalIsNotKeptForLater(t *testing.T) {
	for _, swept := range []bool{true, false} {
		b := start(t, nil)
		id := b.ask("notify_send", `{"message":"x"}`)
		b.must("execution_pause", id)
		list, r := b.e.Approvals(t.Context(), "")
		if r != nil || len(list) != 1 || !list[0].Paused {
			t.Fatalf("%+v, %v", list, r)
		}
		b.approve(id, "")
		if s := b.inspect(id); s.State != Paused || s.Steps[0].State != granted {
			t.Fatalf("%+v", s)
		}
		b.clock.add(time.Hour)
		if swept {
			if err := b.store.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
		} else {
			b.must("execution_resume", id)
		}
		s := b.until(id, Failed)
		if s.Steps[0].State != disapproved || s.Steps[0].Approved != "" || b.sent.Load() != 0 {
			t.Errorf("swept %t: %+v, %d sent", swept, s, b.sent.Load())
		}
		b.ask("notify_send", `{"message":"x"}`) // nobody denied it
	}
}

// FuzzCut holds that what a person types is an id or not, and never both.
func FuzzCut(f *testing.F) {
	for _, s := range []string{"", "xabcdefgh", "xabcdefgh.2", "xabcdefgh.02", "xabcdefgh.", "x.1", "gabcdefgh", "xabcdefgh.999", "xabcdefgh.1.1", "x\x1b[2Jabcd"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, n, ok := splitID(s)
		if !ok {
			return
		}
		if !validID(id) || n < 0 || n > 99 {
			t.Fatalf("%q: %q, %d", s, id, n)
		}
		want := id
		if n > 0 {
			want = fmt.Sprintf("%s.%d", id, n)
		}
		if want != s {
			t.Fatalf("%q reads as %q", s, want)
		}
	})
}
