package system

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/execution"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
)

// withAsk is [pair] whose writer needs a person for two of its tools.
func withAsk(kind engine.Kind) string {
	return strings.Replace(withEngine(kind), "    role: writes\n", "    role: writes\n    tools: {allow: [mem_incr, mem_get, fs, notify], ratePerMinute: 5000}\n    ask: {tools: [mem_incr, notify_send], waiting: 8}\n", 1)
}

// waits makes a call that must wait, and gives its execution.
func waits(t *testing.T, c stage.CLI, tool, input string) string {
	t.Helper()
	r := call(t, c, "writer", tool, input)
	i := strings.Index(r.String(), "kept as execution ")
	if r.Exit != 4 || i < 0 {
		t.Fatalf("it does not wait: %s", r)
	}
	return r.String()[i+len("kept as execution "):][:9]
}

func inspected(t *testing.T, c stage.CLI, id string) (s execution.Shown) {
	t.Helper()
	r := call(t, c, "writer", "execution_inspect", `{"executionId":"`+id+`"}`)
	if err := json.Unmarshal([]byte(r.Stdout), &s); err != nil {
		t.Fatalf("%v: %s", err, r)
	}
	return s
}

func approvals(t *testing.T, c stage.CLI, args ...string) (out []wire.Approval) {
	t.Helper()
	for _, a := range jsonOf[wire.ApprovalsResult](t, c, append([]string{"approvals"}, args...)...).Agents {
		if a.Problem != "" {
			t.Fatal(a.Problem)
		}
		out = append(out, a.Approvals...)
	}
	return out
}

func grantsOf(t *testing.T, c stage.CLI) (out []wire.Permit) {
	t.Helper()
	for _, a := range jsonOf[wire.PermitsResult](t, c, "grants", "writer").Agents {
		out = append(out, a.Grants...)
	}
	return out
}

func TestAPersonIsPutBeforeTheCallsThatTheManifestNames(t *testing.T) {
	eachHostile(t, withAsk, func(t *testing.T, c stage.CLI) { while(t, c, person) })
}

func person(t *testing.T, c stage.CLI) {
	if r := call(t, c, "writer", "fs_write", `{"path":"free","text":"1"}`); r.Exit != 0 {
		t.Fatalf("a call that is not asked for: %s", r)
	}
	has := sees(t, c, "approvals")
	id := waits(t, c, "mem_incr", `{"key":"n"}`)
	stage.Until(t, "the warden's log tells of it", logged(t, "waits for a person", `"agent":"writer"`, id))
	stage.Until(t, "status tells of it", func() bool { q := c.Agent(t, "writer").Asking; return q != nil && q.Waiting == 1 })
	if out := c.Run(t, "status"); !strings.Contains(out, "Calls that wait for you:\n  writer: 1,") {
		t.Error(out)
	}
	if out := c.Run(t, "metrics"); !strings.Contains(out, `bulkhead_approvals_waiting{team="pair",agent="writer"} 1`) {
		t.Error(out)
	}
	if list := approvals(t, c); len(list) != 1 || list[0].ID != id || list[0].Tool != "mem_incr" || list[0].Given[0].Text != "n" {
		t.Errorf("%+v", list)
	}
	if out := c.Run(t, "why", "writer", "tool:mem_incr"); !strings.Contains(out, "it depends") || !strings.Contains(out, "wait for a person") {
		t.Error(out)
	}

	t.Run("the runtime cannot approve its own call", func(t *testing.T) {
		r := in(t, c, "exec", "writer", "--", "hostile", "approve", "writer", id)
		if r.Exit != 0 || strings.Contains(r.Stdout, "ANSWERED") || !strings.Contains(r.Stdout, "gateway.sock") || !strings.Contains(r.Stdout, "tried ") {
			t.Errorf("%s", r)
		}
		t.Log(r.Stdout)
		if s := inspected(t, c, id); s.State != execution.Waiting || len(grantsOf(t, c)) != 0 {
			t.Errorf("%+v, %+v", s, grantsOf(t, c))
		}
		if logged(t, "an operator decides")() {
			t.Error("the warden took a decision from the runtime")
		}
	})

	t.Run("the call is done once, when a person says so", func(t *testing.T) {
		c.Run(t, "approve", "writer", id)
		stage.Until(t, "it is done", func() bool { return inspected(t, c, id).State == execution.Completed })
		if s := inspected(t, c, id); string(s.Steps[0].Answer) != `{"key":"n","value":1}` || !strings.Contains(s.Steps[0].Approved, "user id 0") {
			t.Errorf("%+v", s)
		}
		if r := c.Try(t, "approve", "writer", id); r.Exit != 0 || !strings.Contains(r.Stdout, "completed") { // the same word again: its answer
			t.Errorf("%s", r)
		}
		if r := call(t, c, "writer", "mem_get", `{"key":"n"}`); !strings.Contains(r.Stdout, `"value":1`) {
			t.Errorf("it was done again: %s", r)
		}
		if r := c.Try(t, "deny", "writer", id); r.Exit != wire.ExitBadInput {
			t.Errorf("what was approved is denied: %s", r)
		}
		stage.Until(t, "who watches sees the decision", has(`"kind":"approval"`, `"allowed"`, id, "approved once", "user id 0"))
		stage.Until(t, "and the log has it", logged(t, "an operator decides", id, `"uid":0`))
		if next := waits(t, c, "mem_incr", `{"key":"n"}`); next == id {
			t.Error("the approval covers the next call")
		}
	})

	t.Run("a denial is told, and is not asked again", func(t *testing.T) {
		id := waits(t, c, "notify_send", `{"subject":"s","message":"m"}`)
		c.Run(t, "deny", "writer", id, "--reason", "not now")
		if s := inspected(t, c, id); s.State != execution.Failed || s.Steps[0].Error == nil || !strings.Contains(s.Steps[0].Error.Why, "not now") {
			t.Errorf("%+v", s)
		}
		if r := call(t, c, "writer", "notify_send", `{"subject":"s","message":"m"}`); r.Exit != 4 || !strings.Contains(r.String(), "not now") {
			t.Errorf("%s", r)
		}
		if got := grantsOf(t, c); len(got) != 0 {
			t.Errorf("%+v", got)
		}
	})

	t.Run("grants go on until they end", func(t *testing.T) {
		id := waits(t, c, "mem_incr", `{"key":"g"}`)
		c.Run(t, "approve", "writer", id, "--session", "--wide")
		stage.Until(t, "it is done", func() bool { return inspected(t, c, id).State == execution.Completed })
		if r := call(t, c, "writer", "mem_incr", `{"key":"other"}`); r.Exit != 0 {
			t.Errorf("the grant does not cover the next call: %s", r)
		}
		was := c.Agent(t, "writer")
		stage.Sh(t, fmt.Sprintf("kill -KILL %d", stage.Container(t, was, "runtime").PID))
		stage.Until(t, "its runtime is back", func() bool {
			now := stage.Container(t, c.Agent(t, "writer"), "runtime")
			return now.Running && now.PID != stage.Container(t, was, "runtime").PID && call(t, c, "writer", "mem_get", `{"key":"n"}`).Exit == 0
		})
		if now := stage.Container(t, c.Agent(t, "writer"), "gateway").PID; now != stage.Container(t, was, "gateway").PID {
			t.Errorf("the gateway was started anew, too: %d", now)
		}
		id = waits(t, c, "mem_incr", `{"key":"other"}`) // the session is over
		c.Run(t, "approve", "writer", id, "--always", "--wide")
		grants := grantsOf(t, c)
		if len(grants) != 1 || grants[0].Tool != "mem_incr" || grants[0].Kind != wire.PermitAlways {
			t.Fatalf("%+v", grants)
		}
		c.Run(t, "restart", "writer")
		stage.Until(t, "it still holds", func() bool { return call(t, c, "writer", "mem_incr", `{"key":"other"}`).Exit == 0 })
		if out := c.Run(t, "grants"); !strings.Contains(out, grants[0].ID) {
			t.Error(out)
		}
		c.Run(t, "revoke", "writer", grants[0].ID)
		waits(t, c, "mem_incr", `{"key":"other"}`)
	})

	t.Run("the agent's text stays behind the bar", func(t *testing.T) {
		id := waits(t, c, "notify_send", `{"subject":"s","message":"x\u001b[2J\nwriter xaaaaaaaa  mem_get\n"}`)
		out := c.Run(t, "approvals", "writer", id)
		if strings.Contains(out, "\x1b") || strings.Contains(out, "\nwriter xaaaaaaaa") || !strings.Contains(out, "    | writer xaaaaaaaa") {
			t.Errorf("%q", out)
		}
	})

	t.Run("what waits survives a gateway that is killed, and as much waits as may", func(t *testing.T) {
		waiting := len(approvals(t, c, "writer"))
		pid := stage.Container(t, c.Agent(t, "writer"), "gateway").PID
		stage.Sh(t, fmt.Sprintf("kill -KILL %d", pid))
		stage.Until(t, "it is back", func() bool {
			return call(t, c, "writer", "mem_get", `{"key":"n"}`).Exit == 0
		})
		if got := len(approvals(t, c, "writer")); got != waiting {
			t.Errorf("%d wait, before it was killed %d", got, waiting)
		}
		for i := waiting; i < 8; i++ {
			waits(t, c, "mem_incr", fmt.Sprintf(`{"key":"full%d"}`, i))
		}
		if r := call(t, c, "writer", "mem_incr", `{"key":"toomany"}`); r.Exit == 0 || !strings.Contains(r.String(), "tools.rate") {
			t.Errorf("%s", r)
		}
	})

	t.Run("several calls are one execution, which an operator holds", func(t *testing.T) {
		for _, p := range approvals(t, c, "writer") { // places for more
			if r := call(t, c, "writer", "execution_cancel", `{"executionId":"`+p.ID+`"}`); r.Exit != 0 {
				t.Fatal(r)
			}
		}
		r := call(t, c, "writer", "execution_start", `{"steps":[{"tool":"fs_write","input":{"path":"s1","text":"1"}},{"tool":"mem_incr","input":{"key":"steps"}},{"tool":"fs_write","input":{"path":"s3","text":"3"}}]}`)
		var s execution.Shown
		if err := json.Unmarshal([]byte(r.Stdout), &s); err != nil {
			t.Fatalf("%v: %s", err, r)
		}
		id := s.ID
		stage.Until(t, "its second step waits", func() bool { return inspected(t, c, id).State == execution.Waiting })
		c.Run(t, "execution", "pause", "writer", id)
		c.Run(t, "approve", "writer", id+".2")
		if r := call(t, c, "writer", "execution_resume", `{"executionId":"`+id+`"}`); r.Exit == 0 || !strings.Contains(r.String(), "an operator paused it") {
			t.Errorf("%s", r)
		}
		stage.Sh(t, fmt.Sprintf("kill -KILL %d", stage.Container(t, c.Agent(t, "writer"), "gateway").PID))
		stage.Until(t, "it is back", func() bool { return call(t, c, "writer", "mem_get", `{"key":"n"}`).Exit == 0 })
		if out := c.Run(t, "execution", "list"); inspected(t, c, id).State != execution.Paused || !strings.Contains(out, id) || !strings.Contains(out, "1 of 3 done") {
			t.Error(out)
		}
		c.Run(t, "execution", "resume", "writer", id)
		stage.Until(t, "it is done", func() bool { return inspected(t, c, id).State == execution.Completed })
		if s := inspected(t, c, id); string(s.Steps[1].Answer) != `{"key":"steps","value":1}` || s.Steps[2].State != "done" {
			t.Errorf("%+v", s)
		}
		r = call(t, c, "writer", "execution_rollback", `{"executionId":"`+id+`"}`)
		var back struct{ Steps []execution.RolledBack }
		if err := json.Unmarshal([]byte(r.Stdout), &back); err != nil || len(back.Steps) != 3 ||
			back.Steps[0].Outcome != "undone" || back.Steps[1].Outcome != "not undone" || back.Steps[2].Outcome != "undone" {
			t.Errorf("%v: %s", err, r)
		}
		if r := call(t, c, "writer", "mem_get", `{"key":"steps"}`); !strings.Contains(r.Stdout, `"value":1`) {
			t.Errorf("%s", r)
		}
		for _, path := range []string{"s1", "s3"} {
			if r := call(t, c, "writer", "fs_stat", `{"path":"`+path+`"}`); r.Exit == 0 || !strings.Contains(r.String(), "tools.missing") {
				t.Errorf("%s", r)
			}
		}
		if r := call(t, c, "writer", "execution_start", `{"steps":[{"tool":"execution_start","input":{"steps":[]}}]}`); r.Exit == 0 {
			t.Errorf("%s", r)
		}
		stage.Until(t, "what the operator did is in the log", logged(t, "an operator decides", id, "pause"))
	})
	unsee(t)
}
