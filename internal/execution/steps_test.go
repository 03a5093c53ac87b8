package execution

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
	"bulkhead/internal/wire"
)

// send is a step that is not asked for unless its message is "ask".
func sendStep(message string) map[string]any {
	return map[string]any{"tool": "notify_send", "input": map[string]string{"message": message}}
}

var getStep = map[string]any{"tool": "agentos.mem_get", "input": map[string]string{"key": "k"}}

func (b *bench) begin(stop bool, steps ...map[string]any) string {
	b.t.Helper()
	raw, err := json.Marshal(map[string]any{"steps": steps, "stopOnError": stop})
	if err != nil {
		b.t.Fatal(err)
	}
	out, r := b.try("", "execution_start", string(raw))
	var s Shown
	if r != nil || json.Unmarshal([]byte(out), &s) != nil || s.State != Queued {
		b.t.Fatalf("%s, %v %+v", out, r, r)
	}
	return s.ID
}

func (b *bench) do(name, id string) *deny.Reason {
	b.t.Helper()
	_, r := b.try("", name, `{"executionId":"`+id+`"}`)
	return r
}

func (b *bench) must(name, id string) {
	b.t.Helper()
	if r := b.do(name, id); r != nil {
		b.t.Fatal(r)
	}
}

// free has calls of notify_send pass without asking.
func free(b *bench) {
	id := b.ask("notify_send", `{"message":"first"}`)
	b.approve(id, wire.PermitAlways)
	b.until(id, Completed)
	b.sent.Store(0)
}

func states(s Shown) string {
	var out []string
	for _, one := range s.Steps {
		out = append(out, one.State)
	}
	return strings.Join(out, " ")
}

func TestStepsAreCallsOneAfterTheOther(t *testing.T) {
	b := start(t, nil)
	id := b.begin(true, getStep, sendStep("one"), getStep, sendStep("two"))
	s := b.until(id, Waiting)
	if states(s) != "done waiting pending pending" || b.sent.Load() != 0 {
		t.Fatalf("%s", states(s))
	}
	list, r := b.e.Approvals(t.Context(), "")
	if r != nil || len(list) != 1 || list[0].ID != id+".2" || list[0].Step != 2 || list[0].Steps != 4 {
		t.Fatalf("%+v, %v", list, r)
	}
	for _, wrong := range []string{id, id + ".1", id + ".3", id + ".5"} {
		if _, r := b.decide(wire.DecideRequest{ID: wrong, Approve: true}); r == nil {
			t.Errorf("%s is approved", wrong)
		}
	}
	b.approve(id+".2", "")
	for b.inspect(id).Steps[3].State != waiting { // the approval was for one step
		time.Sleep(time.Millisecond)
	}
	if b.sent.Load() != 1 {
		t.Errorf("%d were sent", b.sent.Load())
	}
	b.approve(id+".4", "")
	s = b.until(id, Completed)
	if string(s.Steps[3].Answer) != `{"sent":"two"}` || b.sent.Load() != 2 {
		t.Errorf("%+v", s)
	}
	calls := map[string]int{}
	for _, r := range b.records() {
		if r.Kind == record.Tool && r.Verdict == record.Allowed {
			calls[r.Target]++
		}
	}
	if calls["mem_get"] != 2 || calls["notify_send"] != 2 || calls["execution_start"] != 1 {
		t.Errorf("on record: %v", calls)
	}
}

func TestWhatFailsEndsAnExecutionOrNot(t *testing.T) {
	for _, c := range []struct {
		name    string
		stop    bool
		ends    State
		steps   string
		retried string
	}{
		{"stops", true, Partial, "done failed skipped", "done done done"},
		{"goes on", false, Partial, "done failed done", "done done done"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := start(t, nil)
			free(b)
			b.fail.Store(true)
			id := b.begin(c.stop, getStep, sendStep("x"), getStep)
			s := b.until(id, c.ends)
			if states(s) != c.steps || s.Steps[1].Error == nil {
				t.Errorf("%s: %+v", states(s), s)
			}
			if r := b.do("execution_resume", id); r == nil || r.Code != deny.ToolConflict {
				t.Errorf("what ended is resumed: %v", r)
			}
			b.fail.Store(false)
			b.must("execution_retry", id)
			s = b.until(id, Completed)
			if states(s) != c.retried || b.sent.Load() != 2 {
				t.Errorf("%s, %d sent", states(s), b.sent.Load())
			}
			gets := 0
			for _, r := range b.records() {
				if r.Kind == record.Tool && r.Target == "mem_get" && r.Verdict == record.Allowed {
					gets++
				}
			}
			if gets != 2 {
				t.Errorf("what was done is done again: %d", gets)
			}
			if r := b.do("execution_retry", id); r == nil || r.Code != deny.ToolConflict {
				t.Errorf("what is completed is tried again: %v", r)
			}
		})
	}
	b := start(t, nil)
	free(b)
	b.fail.Store(true)
	if s := b.until(b.begin(true, sendStep("x"), getStep), Failed); states(s) != "failed skipped" {
		t.Error(states(s))
	}
}

// rolledBack gives what a rollback says of each step.
func (b *bench) rolledBack(id string) string {
	b.t.Helper()
	out, r := b.try("", "execution_rollback", `{"executionId":"`+id+`"}`)
	var got struct{ Steps []RolledBack }
	if r != nil || json.Unmarshal([]byte(out), &got) != nil {
		b.t.Fatalf("%s, %v", out, r)
	}
	var list []string
	for _, s := range got.Steps {
		list = append(list, s.Outcome+": "+s.Why)
	}
	return strings.Join(list, "; ")
}

func TestRollbackOfWhatFailed(t *testing.T) {
	b := start(t, nil)
	free(b)
	b.fail.Store(true)
	id := b.begin(false, sendStep("x"), getStep, map[string]any{"tool": "net_http_post", "input": map[string]string{"url": "a.example:443"}})
	b.until(id, Waiting)
	if _, r := b.decide(wire.DecideRequest{ID: id + ".3"}); r != nil {
		t.Fatal(r)
	}
	b.until(id, Partial)
	const want = "cannot be undone: it is not known whether it was done; nothing to undo: it only read; nothing to undo: it was not done"
	if got := b.rolledBack(id); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	b.fail.Store(false)
	b.clock.add(2 * refusedFor)
	b.must("execution_retry", id)
	b.until(id, Waiting)
	b.approve(id+".3", "")
	b.until(id, Completed)
	if got := b.rolledBack(id); !strings.HasPrefix(got, "cannot be undone: it was tried again") {
		t.Errorf("an earlier try is forgotten: %s", got)
	}
}

func TestADeniedStep(t *testing.T) {
	b := start(t, nil)
	id := b.begin(false, sendStep("x"), getStep, sendStep("x"))
	b.until(id, Waiting)
	if _, r := b.decide(wire.DecideRequest{ID: id + ".1", Reason: "no"}); r != nil {
		t.Fatal(r)
	}
	// The same call later is not asked again.
	if s := b.until(id, Partial); states(s) != "disapproved done disapproved" || !strings.Contains(s.Steps[2].Error.Why, "no") {
		t.Errorf("%s", states(s))
	}
}

func TestWhatCannotBeAStep(t *testing.T) {
	b := start(t, nil)
	many := strings.TrimSuffix(strings.Repeat(`{"tool":"mem_get","input":{"key":"k"}},`, maxSteps+1), ",")
	for _, c := range []struct {
		steps, field string
		code         deny.Code
	}{
		{`[]`, "steps", deny.ToolInvalid},
		{`[` + many + `]`, "steps", deny.ToolInvalid},
		{`[{"tool":"execution_start","input":{"steps":[]}}]`, "steps[0].tool", deny.ToolInvalid},
		{`[{"tool":"mem_get","input":{"key":"k"}},{"tool":"agentos.execution_retry","input":{"executionId":"xaaaaaaaa"}}]`, "steps[1].tool", deny.ToolInvalid},
		{`[{"tool":"proc_schedule","input":{}}]`, "steps[0].tool", deny.ToolInvalid},
		{`[{"tool":"agentos.agentos.execution_start","input":{"steps":[]}}]`, "steps[0].tool", deny.ToolInvalid},
		{`[{"tool":"agentos.agentos.proc_schedule","input":{}}]`, "steps[0].tool", deny.ToolInvalid},
		{`[{"tool":"agentos.agentos.mem_get","input":{"key":"k"}}]`, "steps[0].tool", deny.ToolInvalid},
		{`[{"tool":"nonsense","input":{}}]`, "steps[0].tool", deny.ToolInvalid},
		{`[{"tool":"mem_get","input":{"kee":"k"}}]`, "steps[0].input.key", deny.ToolInvalid},
		{`[{"tool":"mem_get","input":{"key":"k"}},{"tool":"mem_get","input":{"key":5}}]`, "steps[1].input.key", deny.ToolInvalid},
		{`[{"tool":"mem_get","input":[1]}]`, "steps[0].input", deny.ToolInvalid},
		{`[{"tool":"mem_get","input":"{}"}]`, "steps[0].input", deny.ToolInvalid},
		{`[{"tool":"mem_get"}]`, "steps[0].input.key", deny.ToolInvalid},
		{`[{"tool":"mem_get","input":{"key":"k"},"approved":true}]`, "", deny.ToolInvalid},
		{`[{"tool":"fs_read","input":{"path":"x"}}]`, "", deny.ToolNotAllowed},
	} {
		_, r := b.try("", "execution_start", `{"steps":`+c.steps+`}`)
		if r == nil || r.Code != c.code {
			t.Errorf("%.80s: %v", c.steps, r)
			continue
		}
		found := c.field == ""
		for _, f := range r.Fields {
			found = found || f.Name == c.field
		}
		if !found {
			t.Errorf("%.80s: %+v, want %s", c.steps, r.Fields, c.field)
		}
	}
}

func TestPauseAndWhoEndsIt(t *testing.T) {
	b := start(t, nil)
	id := b.begin(true, sendStep("x"), getStep)
	b.until(id, Waiting)
	b.must("execution_pause", id)
	b.approve(id+".1", "")
	time.Sleep(20 * time.Millisecond)
	if s := b.inspect(id); s.State != Paused || states(s) != "granted pending" || b.sent.Load() != 0 {
		t.Errorf("%+v", s)
	}
	b.must("execution_resume", id)
	b.until(id, Completed)

	id = b.begin(true, sendStep("y"), getStep)
	b.until(id, Waiting)
	by := func(action string) *deny.Reason {
		return b.e.Act(t.Context(), wire.ExecutionRequest{ID: id, Action: action, By: 7})
	}
	if r := by(wire.ExecutionPause); r != nil {
		t.Fatal(r)
	}
	if r := b.do("execution_resume", id); r == nil || r.Code != deny.ToolConflict || !strings.Contains(r.Why, "user id 7") {
		t.Errorf("the agent resumes what an operator paused: %v", r)
	}
	b.must("execution_pause", id) // which does not make the pause its own
	if r := b.do("execution_resume", id); r == nil {
		t.Error("the agent took the operator's pause over")
	}
	b.close()
	b.open()
	if r := b.do("execution_resume", id); r == nil {
		t.Error("a restart ends the operator's pause")
	}
	if r := by(wire.ExecutionResume); r != nil {
		t.Fatal(r)
	}
	b.until(id, Waiting)
	if r := by("retry"); r == nil {
		t.Error("an operator retries")
	}
	if r := by(wire.ExecutionCancel); r != nil {
		t.Fatal(r)
	}
	if s := b.inspect(id); s.State != Cancelled || states(s) != "skipped skipped" || !strings.Contains(s.Detail, "user id 7") {
		t.Errorf("%+v", s)
	}
	list, r := b.e.List(t.Context(), false)
	if r != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, r)
	}
	if list, r = b.e.List(t.Context(), true); r != nil || len(list) != 2 || list[0].State == "" || len(list[0].Steps) != 2 {
		t.Errorf("%+v, %v", list, r)
	}
	acts := 0
	for _, r := range b.records() {
		if r.Kind == record.Approval && r.Target == "execution "+id && strings.Contains(r.Detail, "user id 7") {
			acts++
		}
	}
	if acts != 3 {
		t.Errorf("%d acts of the operator are on record", acts)
	}
}

// As a gateway leaves it that is killed in the middle of step 2.
func TestStepsAfterARestart(t *testing.T) {
	for _, c := range []struct {
		stop  bool
		want  State
		steps string
	}{{true, Partial, "done failed skipped"}, {false, Partial, "done failed done"}} {
		t.Run(fmt.Sprint(c.stop), func(t *testing.T) {
			b := start(t, func(b *bench) { b.held = make(chan struct{}) })
			id := b.ask("notify_send", `{"message":"first"}`)
			b.approve(id, wire.PermitAlways)
			b.held <- struct{}{}
			b.until(id, Completed)
			id = b.begin(c.stop, getStep, sendStep("x"), getStep)
			for b.sent.Load() != 2 {
				time.Sleep(time.Millisecond)
			}
			// Its end cannot be written down any more.
			if err := b.store.Close(); err != nil {
				t.Fatal(err)
			}
			b.e.end()
			b.e.work.Wait()
			b.open()
			s := b.until(id, c.want)
			if states(s) != c.steps || b.sent.Load() != 2 || !strings.Contains(s.Steps[1].Error.Why, "may or may not") {
				t.Errorf("%s, %d sent: %+v", states(s), b.sent.Load(), s.Steps[1].Error)
			}
			if got := b.rolledBack(id); !strings.Contains(got, "; cannot be undone: it is not known whether it was done; ") {
				t.Error(got)
			}
		})
	}
}

func TestStepsWaitForTheRate(t *testing.T) {
	b := start(t, func(b *bench) { b.rate = 2 })
	if _, r := b.try("", "mem_get", `{"key":"k"}`); r != nil {
		t.Fatal(r)
	}
	b.clock.add(59500 * time.Millisecond)
	id := b.begin(true, getStep)
	state := func() (x *execution) {
		t.Helper()
		if err := b.store.View(t.Context(), func(tx *store.Tx) (err error) { x, err = load(tx, id); return err }); err != nil {
			t.Fatal(err)
		}
		return x
	}
	refused := func() bool {
		for _, r := range b.records() {
			if r.Target == "mem_get" && r.Verdict == record.Denied && r.Reason.Code == deny.ToolRate {
				return true
			}
		}
		return false
	}
	for !refused() {
		time.Sleep(time.Millisecond)
	}
	if x := state(); x.state != Queued {
		t.Errorf("%s", x.state)
	}
	b.clock.add(time.Second)
	for state().state != Completed {
		time.Sleep(time.Millisecond)
	}
}

func TestAsManyExecutionsAsMay(t *testing.T) {
	b := start(t, func(b *bench) { b.held = make(chan struct{}) })
	first := b.ask("notify_send", `{"message":"first"}`)
	b.approve(first, wire.PermitAlways)
	b.held <- struct{}{}
	b.until(first, Completed)
	var last string
	for i := range maxOpen {
		last = b.begin(true, sendStep(fmt.Sprint(i))) // some are being done, and do not end
	}
	const another = `{"steps":[{"tool":"mem_get","input":{"key":"k"}}]}`
	if _, r := b.try("", "execution_start", another); r == nil || r.Code != deny.ToolRate || r.RetryAfter == 0 {
		t.Errorf("%v", r)
	}
	if n := b.sent.Load(); n > 1+maxActive {
		t.Errorf("%d are at work at a time", n-1)
	}
	b.must("execution_cancel", last)
	if _, r := b.try("", "execution_start", another); r != nil {
		t.Errorf("%v", r)
	}
	if r := b.do("execution_retry", last); r == nil || r.Code != deny.ToolRate {
		t.Errorf("one is tried again beyond the bound: %v", r)
	}
	close(b.held)
}

func TestTheQuotaBoundsWhatIsKept(t *testing.T) {
	b := start(t, nil)
	var before, after int64
	used := func() (n int64) {
		if err := b.store.View(t.Context(), func(tx *store.Tx) error { n = tx.Used(); return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before = used()
	id := b.begin(true, getStep)
	b.until(id, Completed)
	if after = used(); after <= before {
		t.Errorf("it counts nothing: %d, %d", before, after)
	}
	b.clock.add(keptFor + time.Hour)
	if err := b.store.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := used(); got != before {
		t.Errorf("%d bytes come back of %d", after-got, after-before)
	}
}

// FuzzStart holds that whatever steps are asked for, they are kept or refused, with the
// failing fields.
func FuzzStart(f *testing.F) {
	for _, s := range []string{
		`{"steps":[{"tool":"mem_get","input":{"key":"k"}}]}`, `{"steps":[{"tool":"execution_start","input":{"steps":[]}}]}`, `{"steps":5}`, `[]`, `{"steps":[{}],"stopOnError":1}`,
		`{"steps":[{"tool":"mem_get","input":{"key":"k"}},{"tool":"agentos.agentos.mem_get"}]}`,
	} {
		f.Add([]byte(s))
	}
	b := &bench{t: nil, path: f.TempDir() + "/system.db", rate: 1_000_000_000}
	b.fuzzed(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		out, r := b.calls.Call(t.Context(), who, "execution_start", in)
		switch {
		case r == nil:
			var s Shown
			if err := json.Unmarshal(out, &s); err != nil || !validID(s.ID) {
				t.Fatalf("%s, %v", out, err)
			}
		case r.Code == deny.ToolInvalid && len(r.Fields) == 0:
			t.Fatalf("%s: no field is named: %v", in, r)
		case r.Code == deny.ToolFailed:
			t.Fatalf("%s: %v", in, r)
		}
	})
}

// What a step kept stays when it was done and could not be written down.
func TestWhatTakesAStepBackOutlivesItsFailing(t *testing.T) {
	b := start(t, nil)
	id := b.begin(true, getStep)
	b.until(id, Completed)
	undo := func(touched bool) (raw []byte) {
		if err := b.e.keeper(id, 1)(nil, []byte("back")); err != nil {
			t.Fatal(err)
		}
		if err := b.e.ended(id, tool.Quota{}, 1, touched, nil, errUncertain("mem_get")); err != nil {
			t.Fatal(err)
		}
		if err := b.store.View(t.Context(), func(tx *store.Tx) error {
			x, err := load(tx, id)
			if err != nil {
				return err
			}
			raw, err = x.undoOf(tx, 1)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return raw
	}
	if got := undo(true); string(got) != "back" {
		t.Errorf("%q", got)
	}
	if got := undo(false); got != nil {
		t.Errorf("%q", got)
	}
}

// edit changes the rows, as a gateway leaves them that is killed.
func (b *bench) edit(sql string, args ...any) {
	b.t.Helper()
	if err := b.store.Update(b.t.Context(), func(tx *store.Tx) error { _, err := tx.Exec(sql, args...); return err }); err != nil {
		b.t.Fatal(err)
	}
}

// What a person approved is for that try: a step is begun as it is, not as it was when
// it was looked at.
func TestAnApprovalEndsWithACancel(t *testing.T) {
	b := start(t, nil)
	unknown := fmt.Errorf("just started: %w", errUnknown)
	b.still.Store(&unknown)
	id := b.ask("notify_send", `{"message":"x"}`)
	b.approve(id, "")
	x, s, _, err := b.e.first(id)
	if err != nil || s.state != granted {
		t.Fatalf("%+v, %v", x, err)
	}
	b.must("execution_cancel", id)
	b.must("execution_retry", id)
	if was, err := b.e.begin(id, s.n); err != nil || was.state != pending || was.approved != "" {
		t.Errorf("%+v, %v", was, err)
	}
}

// With no place to wait in, a step waits for one, and does not fail.
func TestAStepWaitsForAPlaceToWaitIn(t *testing.T) {
	b := start(t, nil)
	var first string
	for i := range 3 {
		first = b.ask("notify_send", fmt.Sprintf(`{"message":"%d"}`, i))
	}
	id := b.begin(true, sendStep("x"))
	for b.e.isLater(id) == false {
		time.Sleep(time.Millisecond)
	}
	if s := b.inspect(id); s.State != Queued || states(s) != "pending" {
		t.Errorf("%+v", s)
	}
	// It came as far as the gate, and somebody else took the place.
	if _, err := b.e.begin(id, 1); err != nil {
		t.Fatal(err)
	}
	ctx := context.WithValue(t.Context(), stepKey{}, atStep{id, 1})
	if _, r := b.calls.Call(ctx, who, "notify_send", []byte(`{"message":"x"}`)); r == nil || r.Code != deny.ToolRate || r.Execution != id {
		t.Errorf("%v", r)
	}
	if s := b.inspect(id); s.State != Queued || states(s) != "pending" || s.Steps[0].Began != nil {
		t.Errorf("%+v", s)
	}
	b.must("execution_cancel", first)
	b.until(id, Waiting)
	if b.sent.Load() != 0 {
		t.Error("it is sent")
	}
}

func (e *Executions) isLater(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.later[id]
	return ok
}

// A gateway is killed when a step came as far as the gate: nothing was done, and it
// waits for a person. With a grant it passed the gate, and nobody knows.
func TestAStepThatOnlyCameToWaitIsNotUncertain(t *testing.T) {
	for _, passed := range []bool{false, true} {
		b := start(t, nil)
		unknown := fmt.Errorf("just started: %w", errUnknown)
		b.still.Store(&unknown)
		id := b.begin(true, sendStep("x"))
		was, err := b.e.begin(id, 1)
		if err != nil || was.state != pending {
			t.Fatalf("%+v, %v", was, err)
		}
		if passed {
			if err := b.e.touch(t.Context(), atStep{id, 1}); err != nil {
				t.Fatal(err)
			}
		}
		b.close()
		b.still.Store(nil)
		b.open()
		if passed {
			if s := b.until(id, Failed); !strings.Contains(s.Steps[0].Error.Why, "may or may not") {
				t.Errorf("%+v", s)
			}
		} else {
			b.until(id, Waiting)
		}
		if b.sent.Load() != 0 {
			t.Error("it is sent")
		}
	}
}

// A call with a grant is written down as one that may have had an effect before it has.
func TestAGrantTouchesBeforeTheCall(t *testing.T) {
	b := start(t, func(b *bench) { b.held = make(chan struct{}) })
	first := b.ask("notify_send", `{"message":"first"}`)
	b.approve(first, wire.PermitAlways)
	b.held <- struct{}{}
	b.until(first, Completed)
	id := b.begin(true, sendStep("x"))
	for b.sent.Load() != 2 {
		time.Sleep(time.Millisecond)
	}
	if err := b.store.View(t.Context(), func(tx *store.Tx) error {
		x, err := load(tx, id)
		if err == nil && (x.steps[0].state != running || !x.steps[0].touched) {
			t.Errorf("%+v", x.steps[0])
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	close(b.held)
	b.until(id, Completed)
}

// Since when a call waits does not come from how long it may now, and what is said of
// one that was approved is how it stands.
func TestWhatIsSaidOfACallThatIsKept(t *testing.T) {
	b := start(t, func(b *bench) { b.held = make(chan struct{}) })
	id := b.ask("notify_send", `{"message":"x"}`)
	asked := b.clock.Now()
	b.clock.add(time.Minute)
	b.edit("UPDATE step SET expires = expires + 7200000") // ask.expire was another
	list, r := b.e.Approvals(t.Context(), "")
	if r != nil || len(list) != 1 || list[0].Since.UnixMilli() != asked.UnixMilli() {
		t.Errorf("%+v, %v", list, r)
	}
	b.approve(id, "")
	for b.sent.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	_, r = b.try("", "notify_send", `{"message":"x"}`)
	if env := r.Envelope(); env.State != string(Running) || env.ExecutionID != id || strings.Contains(env.Why, "nothing has been done") || strings.Contains(env.PossibleFix, "approve") {
		t.Errorf("%+v", env)
	}
	close(b.held)
	b.until(id, Completed)
}

// What a caller has kept, cancelled ones too, stays within its own quota, and what has
// ended makes room.
func TestWhatIsKeptStaysWithinTheCallersQuotaAndMakesRoom(t *testing.T) {
	b := start(t, func(b *bench) { b.quota = 512 << 10 })
	small := tool.Caller{Team: "t", Agent: "writer", Token: "small", Quota: tool.Quota{Memory: 150 << 10}}
	var used int64
	ask := func(c tool.Caller, i int) *deny.Reason {
		t.Helper()
		_, r := b.calls.Call(t.Context(), c, "notify_send", fmt.Appendf(nil, `{"message":"%d%s"}`, i, strings.Repeat("x", 50<<10)))
		if r == nil {
			t.Fatal("it is not asked about")
		}
		if r.Code == deny.ToolApproval {
			b.must("execution_cancel", r.Execution)
		}
		if err := b.store.View(t.Context(), func(tx *store.Tx) error { used = tx.Used(); return nil }); err != nil {
			t.Fatal(err)
		}
		return r
	}
	for i := range 6 {
		if r := ask(small, i); i < 2 && r.Code != deny.ToolApproval || i > 2 && r.Code != deny.ToolQuota {
			t.Errorf("%d: %v", i, r)
		}
	}
	if used > small.Quota.Memory {
		t.Errorf("%d bytes are kept for a token of %d", used, small.Quota.Memory)
	}
	for i := range 20 {
		if r := ask(who, i); r.Code != deny.ToolApproval {
			t.Fatalf("what ended makes no room: %d, %v", i, r)
		}
	}
	// Nor does a result get past it.
	b.quota = 0
	id := b.begin(true, getStep)
	b.until(id, Completed)
	if err := b.e.ended(id, tool.Quota{Memory: 1}, 1, false, json.RawMessage(`"more"`), nil); err != nil {
		t.Fatal(err)
	}
	if s := b.inspect(id); string(s.Steps[0].Answer) == `"more"` {
		t.Error("a result is kept beyond the caller's quota")
	}
}

// However much the steps answered, what is shown at once is bounded, and each can be had.
func TestResultsAreShownWithinABound(t *testing.T) {
	b := start(t, nil)
	id := b.begin(true, getStep, getStep, getStep, getStep, getStep, getStep)
	b.until(id, Completed)
	large := json.RawMessage(`"` + strings.Repeat("x", maxAnswer-2) + `"`)
	for n := 1; n <= 6; n++ {
		b.edit("UPDATE step SET answer = ? WHERE execution = ? AND n = ?", []byte(large), id, n)
	}
	s := b.inspect(id)
	for i, one := range s.Steps {
		if shown := string(one.Answer) == string(large); shown != (i >= 2) {
			t.Errorf("step %d: %.60s", one.N, one.Answer)
		}
	}
	if want := fmt.Sprintf(`{"bytes":%d,"notShown":true}`, maxAnswer); string(s.Steps[0].Answer) != want {
		t.Errorf("%.60s", s.Steps[0].Answer)
	}
	out, r := b.try("", "execution_inspect", `{"executionId":"`+id+`","step":1}`)
	if r != nil || json.Unmarshal([]byte(out), &s) != nil || len(s.Steps) != 1 || s.Steps[0].N != 1 || string(s.Steps[0].Answer) != string(large) {
		t.Errorf("%.200s, %v", out, r)
	}
	for _, step := range []string{"7", "0", "51", `"1"`} {
		if _, r := b.try("", "execution_inspect", `{"executionId":"`+id+`","step":`+step+`}`); r == nil {
			t.Errorf("step %s is there", step)
		}
	}
}

// One caller who asks for as much as he may, or whose calls do not end, stops neither what
// a person approved nor another caller.
func TestOneCallerLeavesRoomForOthers(t *testing.T) {
	b := start(t, func(b *bench) { b.held = make(chan struct{}) })
	first := b.ask("notify_send", `{"message":"first"}`)
	b.approve(first, wire.PermitAlways)
	b.held <- struct{}{}
	b.until(first, Completed)
	for i := range maxOpen {
		b.begin(true, sendStep(fmt.Sprint(i))) // with the agent's grant, and they do not end
	}
	for b.sent.Load() != 1+maxCallers {
		time.Sleep(time.Millisecond)
	}
	// A token's steps have a place, and what a person approves another.
	out, r := b.try("tok", "execution_start", `{"steps":[{"tool":"mem_get","input":{"key":"k"}}]}`)
	var s Shown
	if r != nil || json.Unmarshal([]byte(out), &s) != nil {
		t.Fatalf("%s, %v", out, r)
	}
	b.until(s.ID, Completed)
	for i := range 3 {
		if _, r := b.try("", "net_http_post", fmt.Sprintf(`{"url":"%d.example:443"}`, i)); r == nil || r.Code != deny.ToolApproval {
			t.Fatal(r)
		}
	}
	if _, r := b.try("", "net_http_post", `{"url":"more.example:443"}`); r == nil || r.Code != deny.ToolRate {
		t.Errorf("%v", r)
	}
	_, r = b.try("tok", "net_http_post", `{"url":"x.example:443"}`)
	if r == nil || r.Code != deny.ToolApproval {
		t.Fatalf("another caller has no room: %v", r)
	}
	b.approve(r.Execution, "")
	b.until(r.Execution, Completed)
	n := 0
	for i := range 6 {
		for k := range 3 {
			if _, r := b.try(fmt.Sprint("tok", i), "net_http_post", fmt.Sprintf(`{"url":"%d.example:443"}`, k)); r != nil && r.Code == deny.ToolApproval {
				n++
			}
		}
	}
	if n != 3*allCallers-3 {
		t.Errorf("all together have %d more", n)
	}
	close(b.held)
}

// What cannot go on now leaves its place to others.
func TestWhatCannotGoOnLeavesItsPlace(t *testing.T) {
	b := start(t, nil)
	unknown := fmt.Errorf("just started: %w", errUnknown)
	b.still.Store(&unknown)
	var list []string
	for range 2 * maxActive {
		list = append(list, b.begin(true, getStep))
	}
	for _, id := range list { // each has its turn, though none ends
		for !b.e.isLater(id) && b.t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
	}
	b.still.Store(nil)
	for _, id := range list {
		b.until(id, Completed)
	}
}

// What is repeated of a text is cut between characters.
func TestWhatIsRepeatedIsWholeCharacters(t *testing.T) {
	long := "x" + strings.Repeat("é", 300)
	for _, r := range []*deny.Reason{missing(long), noWaiting(long)} {
		if !utf8.ValidString(r.What) || len(r.What) > 40+len("…") || !strings.HasPrefix(r.What, "xéé") {
			t.Errorf("%q", r.What)
		}
	}
	if got := named("xabcdefgh"); got != "xabcdefgh" {
		t.Error(got)
	}
	for most := range 6 {
		if got := head("aé€", most); !utf8.ValidString(got) || len(got) > most {
			t.Errorf("%d: %q", most, got)
		}
	}
}
