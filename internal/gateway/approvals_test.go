package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/execution"
	"bulkhead/internal/team"
	"bulkhead/internal/tooltoken"
	"bulkhead/internal/wire"
)

// operator asks a gateway what the warden asks for one.
func operator(socket, verb string, req, into any) error {
	u, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	c := wire.New(u)
	defer func() { _ = c.Close() }()
	if _, err := c.Greet(wire.GrantsProtocol, wire.GrantsVersion); err != nil {
		return err
	}
	if err := c.Send(1, verb, req); err != nil {
		return err
	}
	m, _, err := c.Recv()
	if err != nil {
		return err
	}
	if m.Verb != wire.VerbOK {
		return fmt.Errorf("%s: %s", m.Verb, m.Body)
	}
	return json.Unmarshal(m.Body, into)
}

// envelope reads a refusal.
func envelope(t *testing.T, text string) (e deny.Envelope) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return e
}

func stateOf(t *testing.T, c *http.Client, id string) execution.Shown {
	t.Helper()
	text, ok := post(c, "execution_inspect", `{"executionId":"`+id+`"}`)
	var s execution.Shown
	if err := json.Unmarshal([]byte(text), &s); err != nil || !ok {
		t.Fatalf("%s, %v", text, err)
	}
	return s
}

func crashDir(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to connect under the runtime's id")
	}
	dir, err := os.MkdirTemp("/tmp", "gateway") //nolint:usetesting // others get in, and the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil { // #nosec G302 -- the runtime's id connects
		t.Fatal(err)
	}
	return dir
}

// TestAKilledGatewayDoesNoApprovedCallTwice kills it with SIGKILL while approved
// calls are being done. Each adds 1 to a counter of its own.
func TestAKilledGatewayDoesNoApprovedCallTwice(t *testing.T) {
	dir := crashDir(t)
	socket := filepath.Join(dir, "grants.sock")
	const rounds, calls = 6, 16
	uncertain, completed, waiting := 0, 0, 0
	for round := range rounds {
		cmd, client := startKillable(t, dir, "mem_incr")
		ids := make([]string, calls)
		for i := range calls {
			text, ok := post(client, "mem_incr", fmt.Sprintf(`{"key":"r%d:%d"}`, round, i))
			e := envelope(t, text)
			if ok || e.Code != "APPROVAL_REQUIRED" || e.StatusCode != 403 || e.State != string(execution.Waiting) {
				t.Fatal(text)
			}
			ids[i] = e.ExecutionID
		}
		var kill sync.WaitGroup
		kill.Go(func() {
			time.Sleep(time.Duration(round) * 3 * time.Millisecond) // somewhere among them
			_ = cmd.Process.Kill()
		})
		approved := 0
		for _, id := range ids {
			var res wire.DecideResult
			if operator(socket, wire.VerbDecide, wire.DecideRequest{ID: id, Approve: true}, &res) != nil {
				break
			}
			approved++
		}
		kill.Wait()
		_ = cmd.Wait() // it was killed
		client.CloseIdleConnections()
		cmd, client = startKillable(t, dir, "mem_incr")
		for i, id := range ids {
			s := stateOf(t, client, id)
			for s.State == execution.Queued || s.State == execution.Running { // it was approved, and had not begun
				time.Sleep(time.Millisecond)
				s = stateOf(t, client, id)
			}
			text, ok := post(client, "mem_get", fmt.Sprintf(`{"key":"r%d:%d"}`, round, i))
			var got struct{ Value *int }
			if err := json.Unmarshal([]byte(text), &got); err != nil || !ok {
				t.Fatal(text, err)
			}
			done := 0
			if got.Value != nil {
				done = *got.Value
			}
			switch {
			case done > 1:
				t.Errorf("round %d: call %d was done %d times", round, i, done)
			case s.State == execution.Completed && done == 1:
				completed++
			case s.State == execution.Failed && s.Steps[0].Error != nil && strings.Contains(s.Steps[0].Error.Why, "may or may not"):
				uncertain++
			case s.State == execution.Waiting && done == 0 && i >= approved:
				waiting++
			default:
				t.Errorf("round %d: call %d of which %d were approved: done %d, %+v", round, i, approved, done, s)
			}
			if s.State == execution.Waiting {
				if text, ok := post(client, "execution_cancel", `{"executionId":"`+id+`"}`); !ok {
					t.Error(text)
				}
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		client.CloseIdleConnections()
	}
	t.Logf("%d completed, %d uncertain, %d waited", completed, uncertain, waiting)
	if completed == 0 {
		t.Error("none was done")
	}
}

func TestOnlyTheGrantsSocketDecides(t *testing.T) {
	dir := crashDir(t)
	cmd, client := startKillable(t, dir, "mem_incr", "fs_write")
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); client.CloseIdleConnections() }()
	text, _ := post(client, "mem_incr", `{"key":"k"}`)
	id := envelope(t, text).ExecutionID
	q := wire.DecideRequest{ID: id, Approve: true, Kind: wire.PermitAlways, Wide: true}
	// Over the runtime's socket, as a frame.
	for _, protocol := range []string{wire.GrantsProtocol, wire.GatewayProtocol} {
		for _, verb := range []string{wire.VerbDecide, wire.VerbPermits, wire.VerbApprovals, wire.VerbRevokePermit, wire.VerbExecutions, wire.VerbExecution, wire.VerbGrants, wire.VerbWatch} {
			c := wire.New(asRuntime(t, filepath.Join(dir, "gateway.sock")))
			if _, err := c.Greet(protocol, wire.GatewayVersion); err != nil {
				if protocol == wire.GatewayProtocol {
					t.Error(err)
				}
			} else if err := c.Send(1, verb, q); err != nil {
				t.Error(err)
			} else if m, _, err := c.Recv(); err == nil && m.Verb != wire.VerbError {
				t.Errorf("%s over gateway.sock is answered: %s", verb, m.Verb)
			}
			_ = c.Close()
		}
	}
	// As a tool, whatever it is called, and as a field that slips in.
	for _, name := range []string{"decide", "approve", "execution_approve", "execution_decide", "execution_resume", "agentos.execution_approve", "permits"} {
		if text, ok := post(client, name, `{"executionId":"`+id+`","approve":true,"id":"`+id+`"}`); ok {
			t.Errorf("%s: %s", name, text)
		}
	}
	if text, ok := post(client, "mem_incr", `{"key":"k","approved":true,"execution":"`+id+`"}`); ok {
		t.Error(text)
	}
	// As the runtime on the operators' own socket, which lies elsewhere on a host.
	if err := os.Chmod(filepath.Join(dir, "grants.sock"), 0o777); err != nil { // #nosec G302 -- as if it could be reached
		t.Fatal(err)
	}
	rc := wire.New(asRuntime(t, filepath.Join(dir, "grants.sock")))
	if _, err := rc.Greet(wire.GrantsProtocol, wire.GrantsVersion); err == nil {
		t.Error("the runtime's id is greeted on the operators' socket")
	}
	_ = rc.Close()
	if s := stateOf(t, client, id); s.State != execution.Waiting {
		t.Errorf("%+v", s)
	}
	// A file by a stream asks no less than one by JSON.
	put := func() int {
		r, err := http.NewRequestWithContext(context.Background(), http.MethodPut, "http://gateway/v1/files/a.txt", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+tooltoken.Of(runtimeToken))
		a, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = a.Body.Close()
		return a.StatusCode
	}
	if code := put(); code != http.StatusForbidden {
		t.Errorf("a stream is answered with %d", code)
	}
	socket := filepath.Join(dir, "grants.sock")
	var list wire.AgentApprovals
	if err := operator(socket, wire.VerbApprovals, wire.ApprovalsRequest{}, &list); err != nil || len(list.Approvals) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	text, _ = post(client, "fs_write", `{"path":"a.txt","text":"y"}`)
	var res wire.DecideResult
	if err := operator(socket, wire.VerbDecide, wire.DecideRequest{ID: envelope(t, text).ExecutionID, Approve: true, Kind: wire.PermitSession, Wide: true, By: 5}, &res); err != nil || res.Grant == nil || res.Grant.By != 5 {
		t.Fatalf("%+v, %v", res, err)
	}
	if code := put(); code != http.StatusOK {
		t.Errorf("with a grant a stream is answered with %d", code)
	}
	var permits wire.AgentPermits
	if err := operator(socket, wire.VerbRevokePermit, wire.RevokePermitRequest{ID: res.Grant.ID}, &permits); err != nil || len(permits.Grants) != 0 {
		t.Fatalf("%+v, %v", permits, err)
	}
	if code := put(); code != http.StatusForbidden {
		t.Errorf("after its revocation a stream is answered with %d", code)
	}
}

// Whatever comes over the operators' socket, the gateway answers or refuses.
func FuzzWhatIsAskedOfApprovals(f *testing.F) {
	for _, verb := range []string{wire.VerbApprovals, wire.VerbDecide, wire.VerbPermits, wire.VerbRevokePermit, wire.VerbExecutions, wire.VerbExecution} {
		f.Add(verb, []byte(`{"id":"xabcdefgh","action":"cancel","all":true}`))
		f.Add(verb, []byte(`{"id":"xabcdefgh","approve":true,"kind":"for","for":1000000000}`))
		f.Add(verb, []byte(`{"id":5}`))
	}
	b := askingTools(f)
	f.Fuzz(func(t *testing.T, verb string, body []byte) {
		if !governs(verb) {
			return
		}
		answer, err := b.govern(t.Context(), verb, body)
		if err != nil {
			if failure := failureOf(err); failure.Message == "" || failure.Exit == 0 {
				t.Fatalf("%+v", failure)
			}
			return
		}
		if _, ok := answer.(*wire.DecideResult); ok {
			t.Fatalf("%s %s was decided, and nothing waits", verb, body)
		}
		if _, err := json.Marshal(answer); err != nil {
			t.Fatal(err)
		}
	})
}

// askingTools is the tools of an agent whose mem_set is asked for.
func askingTools(t testing.TB) *toolbox {
	t.Helper()
	s, err := newServer(Config{
		Team: "t", Agent: "a", Token: runtimeToken, DialerSocket: "none", Data: t.TempDir(), Tools: &team.Tools{}, Ask: &team.Ask{Tools: []string{"mem_set"}},
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.tools.close(); _ = s.dialer.Close() })
	return s.tools
}

// TestAKilledGatewayDoesNoStepTwice kills it in the middle of executions of many steps.
func TestAKilledGatewayDoesNoStepTwice(t *testing.T) {
	dir := crashDir(t)
	const rounds, executions, steps = 5, 4, 40
	uncertain, skipped, done := 0, 0, 0
	for round := range rounds {
		cmd, client := startKillable(t, dir, "notify_send") // not among the steps
		var ids []string
		for e := range executions {
			var list []string
			for s := range steps {
				list = append(list, fmt.Sprintf(`{"tool":"mem_incr","input":{"key":"r%d:%d:%d"}}`, round, e, s))
			}
			text, ok := post(client, "execution_start", fmt.Sprintf(`{"steps":[%s],"stopOnError":%t}`, strings.Join(list, ","), e%2 == 0))
			var x execution.Shown
			if err := json.Unmarshal([]byte(text), &x); err != nil || !ok {
				t.Fatal(text)
			}
			ids = append(ids, x.ID)
		}
		time.Sleep(time.Duration(round) * 15 * time.Millisecond) // somewhere among them
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		client.CloseIdleConnections()
		cmd, client = startKillable(t, dir, "notify_send")
		for e, id := range ids {
			x := stateOf(t, client, id)
			for x.State == execution.Queued || x.State == execution.Running {
				time.Sleep(time.Millisecond)
				x = stateOf(t, client, id)
			}
			for s, step := range x.Steps {
				text, ok := post(client, "mem_get", fmt.Sprintf(`{"key":"r%d:%d:%d"}`, round, e, s))
				var got struct{ Value int }
				if err := json.Unmarshal([]byte(text), &got); err != nil || !ok {
					t.Fatal(text, err)
				}
				switch {
				case step.State == "done" && got.Value == 1:
					done++
				case step.State == "skipped" && got.Value == 0:
					skipped++
				case step.State == "failed" && got.Value <= 1 && strings.Contains(step.Error.Why, "may or may not"):
					uncertain++
				default:
					t.Errorf("round %d, execution %d, step %d: done %d times, %+v", round, e, s, got.Value, step)
				}
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		client.CloseIdleConnections()
	}
	t.Logf("%d done, %d uncertain, %d skipped", done, uncertain, skipped)
	if done == 0 {
		t.Error("none was done")
	}
}
