package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"bulkhead/internal/deny"
	"bulkhead/internal/execution"
	"bulkhead/internal/store"
	"bulkhead/internal/team"
	"bulkhead/internal/tool"
	"bulkhead/internal/wire"
)

// desk calls the tools of a gateway as its agent.
type desk struct {
	t   testing.TB
	set *toolset
}

func newDesk(t testing.TB, ask ...string) desk {
	t.Helper()
	cfg := Config{
		Team: "t", Agent: "a", Token: runtimeToken, DialerSocket: "none", Data: t.TempDir(),
		Tools: &team.Tools{Allow: []string{"mem", "vec", "fs", "db", "events", "execution"}, RatePerMinute: 100_000},
	}
	if len(ask) > 0 {
		cfg.Ask = &team.Ask{Tools: ask}
	}
	s, err := newServer(cfg, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.tools.close(); _ = s.dialer.Close() })
	set, reason := s.tools.get(t.Context())
	if reason != nil {
		t.Fatal(reason)
	}
	return desk{t, set}
}

func (d desk) try(name, input string) (string, *deny.Reason) {
	out, r := d.set.calls.Call(d.t.Context(), tool.Caller{Team: "t", Agent: "a"}, name, []byte(input))
	return string(out), r
}

func (d desk) call(name, input string) string {
	d.t.Helper()
	out, r := d.try(name, input)
	if r != nil {
		d.t.Fatalf("%s %.100s: %v %+v", name, input, r, r.Fields)
	}
	return out
}

func (d desk) ended(id string) (x execution.Shown) {
	d.t.Helper()
	for {
		x = execution.Shown{}
		if err := json.Unmarshal([]byte(d.call("execution_inspect", `{"executionId":"`+id+`"}`)), &x); err != nil {
			d.t.Fatal(err)
		}
		switch x.State {
		case execution.Queued, execution.Running:
			time.Sleep(time.Millisecond)
		default:
			return x
		}
	}
}

// run does steps, "tool {input}" each.
func (d desk) run(steps ...string) execution.Shown {
	d.t.Helper()
	var list []string
	for _, s := range steps {
		name, input, _ := strings.Cut(s, " ")
		list = append(list, `{"tool":"`+name+`","input":`+input+`}`)
	}
	var x execution.Shown
	if err := json.Unmarshal([]byte(d.call("execution_start", `{"stopOnError":false,"steps":[`+strings.Join(list, ",")+`]}`)), &x); err != nil {
		d.t.Fatal(err)
	}
	return d.ended(x.ID)
}

// rollback gives what became of each step, "; " between them.
func (d desk) rollback(id string) string {
	d.t.Helper()
	var got struct{ Steps []execution.RolledBack }
	if err := json.Unmarshal([]byte(d.call("execution_rollback", `{"executionId":"`+id+`"}`)), &got); err != nil {
		d.t.Fatal(err)
	}
	var out []string
	for _, s := range got.Steps {
		out = append(out, s.Outcome)
	}
	return strings.Join(out, "; ")
}

// picture is what the values and files are.
func (d desk) picture() string {
	d.t.Helper()
	var b strings.Builder
	for _, k := range []string{"a", "b", "n", "new"} {
		b.WriteString(d.call("mem_get", `{"key":"`+k+`"}`) + "\n")
	}
	for _, p := range []string{"f", "g", "new", "d", "d/x"} {
		out, r := d.try("fs_read", `{"path":"`+p+`"}`)
		if r != nil {
			out = p + " " + string(r.Code)
		}
		b.WriteString(out + "\n")
	}
	for _, c := range [][2]string{
		{"db_query", `{"sql":"SELECT rowid, * FROM t"}`},
		{"db_query", `{"sql":"SELECT type, name, sql FROM sqlite_schema"}`},
		{"vec_query", `{"vector":[1,2]}`},
		{"mem_history", `{"key":"m"}`},
		{"mem_history", `{"key":"words"}`},
		{"mem_recall", `{"tags":["x"]}`},
	} {
		out, r := d.try(c[0], c[1])
		if r != nil {
			out = string(r.Code)
		}
		b.WriteString(out + "\n")
	}
	return b.String()
}

// rows makes a table with a row, vectors and a memory.
func (d desk) rows() {
	d.call("db_create_table", `{"table":"t","schema":[{"column":"a","type":"integer"}]}`)
	d.call("db_insert", `{"table":"t","data":{"a":1}}`)
	d.call("vec_upsert", `{"id":"v","vector":[1,2],"metadata":{"x":1}}`)
	d.call("vec_upsert", `{"id":"w","vector":[1,2]}`)
	d.call("mem_remember", `{"key":"words","content":"first","tags":["x"]}`)
	d.call("mem_remember", `{"key":"words","content":"second","tags":["x"]}`)
}

func (d desk) begin() {
	d.call("mem_set", `{"key":"a","value":{"x": "<1>"}}`)
	d.call("mem_set", `{"key":"b","value":"b"}`)
	d.call("fs_write", `{"path":"f","text":"old","contentType":"text/x-old"}`)
	d.call("fs_write", `{"path":"g","text":"g"}`)
}

func TestRollbackUndoesWhatCanBeAndSaysWhatCannot(t *testing.T) {
	d := newDesk(t)
	d.begin()
	d.rows()
	d.call("fs_write", `{"path":"large","text":"`+strings.Repeat("x", 600<<10)+`"}`)
	before := d.picture()
	x := d.run(`mem_set {"key":"a","value":2}`, `mem_set {"key":"a","value":3}`, `mem_incr {"key":"n"}`, `mem_delete {"key":"b"}`, `mem_expire {"key":"a","seconds":5000}`, `mem_set {"key":"new","value":1}`,
		`fs_write {"path":"f","text":"new"}`, `fs_write {"path":"new","text":"n"}`, `fs_delete {"path":"g"}`, `fs_mkdir {"path":"d"}`, `fs_write {"path":"d/x","text":"x"}`,
		`events_publish {"topic":"t","message":1}`, `mem_get {"key":"a"}`, `fs_write {"path":"large","text":"small"}`, `fs_read {"path":"none"}`, `mem_remember {"key":"m","content":"c"}`, `mem_forget {"key":"words"}`,
		`vec_upsert {"id":"v","vector":[3,4]}`, `vec_delete {"id":"w"}`, `db_insert {"table":"t","data":{"a":2}}`, `db_query {"sql":"UPDATE t SET a = a + 1"}`,
		`db_create_table {"table":"made","schema":[{"column":"a","type":"text"}]}`, `db_insert {"table":"made","data":{"a":"x"}}`, `db_query {"sql":"CREATE INDEX i ON made (a)"}`,
		`db_transaction {"queries":[{"sql":"DELETE FROM t"},{"sql":"INSERT INTO t VALUES (9)"}]}`, `db_query {"sql":"SELECT 1"}`)
	if d.picture() == before || x.State != execution.Partial {
		t.Fatalf("%+v", x)
	}
	const u = "undone; "
	want := strings.Repeat(u, 11) + "cannot be undone; nothing to undo; cannot be undone; nothing to undo; " + strings.Repeat(u, 10) + "nothing to undo"
	if got := d.rollback(x.ID); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if after := d.picture(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	if got := d.rollback(x.ID); got != want {
		t.Errorf("a second time: %s", got)
	}
	if after := d.picture(); after != before {
		t.Errorf("after a second time:\n%s", after)
	}
}

// What was undone is done again by a retry, nothing of the first time shows, and however
// often that is nothing more is counted.
func TestWhatWasUndoneIsTriedAgain(t *testing.T) {
	d := newDesk(t)
	d.begin()
	x := d.run(`mem_set {"key":"a","value":2}`, `mem_get {"key":"a"}`, `fs_write {"path":"f","text":"new"}`)
	used := func() (n int64) {
		t.Helper()
		if err := d.set.store.View(t.Context(), func(tx *store.Tx) error { n = tx.Used(); return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	first := used()
	for range 3 {
		if got := d.rollback(x.ID); got != "undone; nothing to undo; undone" {
			t.Fatal(got)
		}
		if s := d.ended(x.ID); s.State != execution.Completed || s.Steps[0].Answer != nil || s.Steps[1].Answer == nil {
			t.Errorf("%+v", s)
		}
		if _, r := d.try("execution_retry", `{"executionId":"`+x.ID+`"}`); r != nil {
			t.Fatal(r)
		}
		if s := d.ended(x.ID); s.State != execution.Completed || s.Steps[0].Answer == nil || s.Steps[2].Answer == nil {
			t.Errorf("%+v", s)
		}
		if now := used(); max(now-first, first-now) > 16 { // times have one to nine digits after the point
			t.Errorf("%d bytes are counted, and at first %d", now, first)
		}
	}
	if got := d.call("mem_get", `{"key":"a"}`); got != `{"key":"a","value":2}` {
		t.Error(got)
	}
	if _, r := d.try("execution_retry", `{"executionId":"`+x.ID+`"}`); r == nil || r.Code != deny.ToolConflict {
		t.Errorf("what was done is tried again: %v", r)
	}
}

// A value that is too large to be kept cannot be undone, and says so.
func TestALargeValueCannotBeUndone(t *testing.T) {
	d := newDesk(t)
	text := func(n int) string { return `"` + strings.Repeat("x", n) + `"` }
	d.call("mem_set", `{"key":"a","value":`+text(400<<10)+`}`)
	x := d.run(`mem_set {"key":"a","value":`+text(300<<10)+`}`, `mem_set {"key":"a","value":`+text(500<<10)+`}`)
	if got := d.rollback(x.ID); got != "not undone; cannot be undone" {
		t.Error(got)
	}
}

// What had an effect is never said to have only read, and what may have had one is never
// said not to have been done.
func TestRollbackDoesNotDenyWhatHappened(t *testing.T) {
	d := newDesk(t)
	d.call("db_create_table", `{"table":"t","schema":[{"column":"a","type":"integer"}]}`)
	d.call("mem_set", `{"key":"text","value":"x"}`)
	x := d.run(`db_query {"sql":"SELECT count(*) FROM t"}`, `db_query {"sql":"INSERT INTO t VALUES (1)"}`, `db_query {"sql":"DROP TABLE t"}`,
		`db_insert {"table":"none","data":{"a":1}}`, `mem_incr {"key":"text"}`)
	const want = "nothing to undo; not undone; cannot be undone; undone; nothing to undo"
	if got := d.rollback(x.ID); got != want {
		t.Errorf("%s\nwant %s\n%+v", got, want, x.Steps)
	}
}

func TestRollbackKeepsWhatChangedSince(t *testing.T) {
	d := newDesk(t)
	d.begin()
	d.rows()
	x := d.run(`mem_set {"key":"a","value":2}`, `mem_set {"key":"b","value":2}`, `fs_write {"path":"f","text":"new"}`, `fs_mkdir {"path":"d"}`, `fs_delete {"path":"g"}`,
		`db_query {"sql":"UPDATE t SET a = 2"}`, `vec_upsert {"id":"v","vector":[3,4]}`, `mem_remember {"key":"words","content":"third"}`)
	d.call("mem_set", `{"key":"a","value":"later"}`)
	d.call("fs_write", `{"path":"f","text":"later"}`)
	d.call("fs_write", `{"path":"d/x","text":"later"}`)
	d.call("fs_write", `{"path":"g","text":"later"}`)
	d.call("db_query", `{"sql":"UPDATE t SET a = 3"}`)
	d.call("vec_upsert", `{"id":"v","vector":[5,6]}`)
	d.call("mem_remember", `{"key":"words","content":"later"}`)
	now := strings.Replace(d.picture(), `{"key":"b","value":2}`, `{"key":"b","value":"b"}`, 1)
	if got := d.rollback(x.ID); got != "not undone; undone; not undone; not undone; not undone; not undone; not undone; not undone" {
		t.Error(got)
	}
	if after := d.picture(); after != now {
		t.Errorf("want:\n%s\nafter:\n%s", now, after)
	}
}

func TestWhatIsNotRolledBack(t *testing.T) {
	d := newDesk(t, "mem_incr")
	var x execution.Shown
	if err := json.Unmarshal([]byte(d.call("execution_start", `{"steps":[{"tool":"mem_set","input":{"key":"a","value":1}},{"tool":"mem_incr","input":{"key":"n"}}]}`)), &x); err != nil {
		t.Fatal(err)
	}
	if got := d.ended(x.ID); got.State != execution.Waiting {
		t.Fatalf("%+v", got)
	}
	if _, r := d.try("execution_rollback", `{"executionId":"`+x.ID+`"}`); r == nil || r.Code != deny.ToolConflict {
		t.Errorf("what has not ended: %v", r)
	}
	if _, r := d.set.executions.Decide(t.Context(), wire.DecideRequest{ID: x.ID + ".2", Approve: true}); r != nil {
		t.Fatal(r)
	}
	if got := d.ended(x.ID); got.State != execution.Completed {
		t.Fatalf("%+v", got)
	}
	// A person approved one call, and not its opposite.
	if got := d.rollback(x.ID); got != "undone; not undone" {
		t.Error(got)
	}
	if got := d.call("mem_get", `{"key":"n"}`); got != `{"key":"n","value":1}` {
		t.Error(got)
	}
	other := tool.Caller{Team: "t", Agent: "a", Token: "tok"}
	if _, r := d.set.calls.Call(t.Context(), other, "execution_rollback", []byte(`{"executionId":"`+x.ID+`"}`)); r == nil || r.Code != deny.ToolMissing {
		t.Errorf("another caller: %v", r)
	}
}

// Whatever an execution did to values and files: when nothing else touched them they
// are afterwards what they were.
func TestRollbackRestoresWhatWas(t *testing.T) {
	d := newDesk(t)
	rapid.Check(t, func(rt *rapid.T) {
		for _, k := range []string{"n", "new"} {
			d.call("mem_delete", `{"key":"`+k+`"}`)
		}
		for _, p := range []string{"f", "g", "new", "d"} {
			_, _ = d.try("fs_delete", `{"path":"`+p+`","recursive":true}`) // it may not be there
		}
		d.begin()
		before := d.picture()
		step := rapid.Custom(func(t *rapid.T) string {
			key, path := rapid.SampledFrom([]string{"a", "b", "n"}).Draw(t, "key"), rapid.SampledFrom([]string{"f", "g", "new", "d", "d/x"}).Draw(t, "path")
			what := rapid.SampledFrom([]string{
				`mem_set {"key":"%[1]s","value":%[3]d}`, `mem_incr {"key":"%[1]s"}`, `mem_delete {"key":"%[1]s"}`, `mem_expire {"key":"%[1]s","seconds":%[4]d}`,
				`fs_write {"path":"%[2]s","text":"%[3]d"}`, `fs_delete {"path":"%[2]s"}`, `fs_mkdir {"path":"%[2]s"}`,
			}).Draw(t, "what")
			if path == "d" && !strings.HasPrefix(what, "fs_mkdir") {
				path = "new" // where d/x left its folder d, a file d is not put back, nor the absence of one
			}
			return fmt.Sprintf(what, key, path, rapid.IntRange(0, 9).Draw(t, "value"), rapid.IntRange(1000, 9999).Draw(t, "seconds"))
		})
		x := d.run(rapid.SliceOfN(step, 1, 8).Draw(rt, "steps")...)
		got := d.rollback(x.ID)
		if after := d.picture(); strings.Contains(got, "not undone") || leaveD(after) != leaveD(before) {
			rt.Fatalf("%s\n%+v\nbefore:\n%s\nafter:\n%s", got, x.Steps, before, after)
		}
	})
}

// leaveD leaves the folder d out: fs_write of d/x makes it, and what is made above a
// file stays.
func leaveD(picture string) string {
	var out []string
	for l := range strings.Lines(picture) {
		if !strings.HasPrefix(l, "d tools") {
			out = append(out, l)
		}
	}
	return strings.Join(out, "")
}

// TestAKilledGatewayRollsBackWhole kills it in the middle of a rollback, which is done
// again then.
func TestAKilledGatewayRollsBackWhole(t *testing.T) {
	dir := crashDir(t)
	const steps, rounds = 40, 4
	for round := range rounds {
		cmd, client := startKillable(t, dir, "notify_send")
		_, _ = post(client, "db_create_table", `{"table":"rolled","schema":[{"column":"a","type":"integer"}],"ifNotExists":true}`)
		var list []string
		for s := range steps {
			list = append(list, fmt.Sprintf(`{"tool":"mem_incr","input":{"key":"%d:%d"}},{"tool":"fs_write","input":{"path":"r%d/%d","text":"x"}},{"tool":"db_query","input":{"sql":"INSERT INTO rolled VALUES (%d)"}}`, round, s/2, round, s/2, s))
		}
		text, ok := post(client, "execution_start", `{"steps":[`+strings.Join(list[:16], ",")+`]}`)
		var x execution.Shown
		if err := json.Unmarshal([]byte(text), &x); err != nil || !ok {
			t.Fatal(text)
		}
		for x = stateOf(t, client, x.ID); x.State != execution.Completed; x = stateOf(t, client, x.ID) {
			time.Sleep(time.Millisecond)
		}
		var work sync.WaitGroup
		work.Go(func() { _, _ = post(client, "execution_rollback", `{"executionId":"`+x.ID+`"}`) })
		time.Sleep(time.Duration(round*7) * time.Millisecond)
		_ = cmd.Process.Kill()
		work.Wait()
		_ = cmd.Wait()
		client.CloseIdleConnections()
		cmd, client = startKillable(t, dir, "notify_send")
		text, ok = post(client, "execution_rollback", `{"executionId":"`+x.ID+`"}`)
		if !ok || strings.Contains(text, "cannot") || strings.Contains(text, "not undone") {
			t.Errorf("round %d: %s", round, text)
		}
		if got, _ := post(client, "db_query", `{"sql":"SELECT count(*) AS n FROM rolled"}`); !strings.Contains(got, `{"n":0}`) {
			t.Errorf("round %d: %s", round, got)
		}
		for s := range steps / 2 {
			if got, _ := post(client, "mem_get", fmt.Sprintf(`{"key":"%d:%d"}`, round, s)); !strings.Contains(got, "null") {
				t.Errorf("round %d: %s", round, got)
			}
			if got, ok := post(client, "fs_stat", fmt.Sprintf(`{"path":"r%d/%d"}`, round, s)); ok {
				t.Errorf("round %d: %s", round, got)
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		client.CloseIdleConnections()
	}
}

// TestAKilledGatewayKnowsItsSQL kills it while it does steps of SQL: whichever was under
// way between what takes it back and its own commit, a rollback leaves none of the rows.
func TestAKilledGatewayKnowsItsSQL(t *testing.T) {
	dir := crashDir(t)
	for round := range 8 {
		cmd, client := startKillable(t, dir, "notify_send")
		_, _ = post(client, "db_create_table", `{"table":"rolled","schema":[{"column":"a","type":"integer"}],"ifNotExists":true}`)
		var list []string
		for s := range 50 {
			list = append(list, fmt.Sprintf(`{"tool":"db_insert","input":{"table":"rolled","data":{"a":%d}}}`, s))
		}
		text, ok := post(client, "execution_start", `{"steps":[`+strings.Join(list, ",")+`]}`)
		var x execution.Shown
		if err := json.Unmarshal([]byte(text), &x); err != nil || !ok {
			t.Fatal(text)
		}
		time.Sleep(time.Duration(5+round*3) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		client.CloseIdleConnections()
		cmd, client = startKillable(t, dir, "notify_send")
		for x = stateOf(t, client, x.ID); x.State == execution.Queued || x.State == execution.Running; x = stateOf(t, client, x.ID) {
			time.Sleep(time.Millisecond)
		}
		states := map[string]int{}
		for _, s := range x.Steps {
			states[s.State]++
		}
		t.Log(states)
		if text, ok = post(client, "execution_rollback", `{"executionId":"`+x.ID+`"}`); !ok || strings.Contains(text, "not undone") {
			t.Errorf("round %d: %s", round, text)
		}
		if got, _ := post(client, "db_query", `{"sql":"SELECT count(*) AS n FROM rolled"}`); !strings.Contains(got, `{"n":0}`) {
			t.Errorf("round %d: %s\n%s", round, got, text)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		client.CloseIdleConnections()
	}
}
