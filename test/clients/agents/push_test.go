package agents

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/adapter"
	"bulkhead/internal/layout"
	"bulkhead/test/system/stage"
)

// patient asks again until ok says yes: an agent of this size takes its time on
// a busy machine.
func patient(t *testing.T, c stage.CLI, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(4 * time.Minute); !ok(); time.Sleep(500 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not after 4 minutes: %s\n%s\n%s\n%s", what, c.Run(t, "logs", "service"), c.Run(t, "status"), c.Run(t, "msg", "tail", "--all"))
		}
	}
}

// queue is what waits for the service, or is leased by its push.
func queue(t *testing.T, c stage.CLI) (q adapter.QueueState) {
	t.Helper()
	var all struct{ Queues []adapter.QueueState }
	out := c.Run(t, "msg", "queues", "--json")
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, one := range all.Queues {
		if one.Agent == "service" {
			return one
		}
	}
	return q
}

// takesPushes writes to OpenClaw's gateway, which is ready, and expects a turn
// for each message: the script in it is what the model then asks for. With
// crash, the gateway is stopped with the second message in its hands, and killed.
func takesPushes(t *testing.T, c stage.CLI, model func() []request, crash bool) {
	t.Helper()
	write := func(word string) {
		t.Helper()
		execIn(t, c, "worker", "bulkhead", "msg", "send", "--to", "service", "--type", "task_assignment", "--text",
			"Do what follows.\nCALL exec {\"command\": \"echo "+word+" >> /workspace/pushed\"}")
	}
	// Read from outside: while the service is restarted there is nothing to run it in.
	done := func() string {
		t.Helper()
		raw, err := os.ReadFile(filepath.Join(layout.Default().Agent("openclaw", "service").Workspace(), "pushed"))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return string(raw)
	}
	model()
	write("first")
	patient(t, c, "the turn that the first message starts", func() bool { return strings.Contains(done(), "first") })
	patient(t, c, "the first message is acknowledged", func() bool { return queue(t, c).Queued == 0 })
	if !slices.ContainsFunc(model(), func(r request) bool { return r.Path == "/v1/chat/completions" && r.Tool == "exec" }) {
		t.Error("the model was not asked by OpenClaw's turn")
	}
	if !crash {
		return
	}

	// Its gateway is stopped with a message in its hands: it goes on being leased,
	// and comes again to the next one, which starts its turn.
	var pid int
	if _, err := fmt.Sscan(stage.Sh(t, "pgrep -x openclaw-gatewa"), &pid); err != nil || pid <= 1 { // comm has 15 characters
		t.Fatalf("OpenClaw's gateway is process %d, %v", pid, err)
	}
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	write("second")
	patient(t, c, "the second message is in the gateway's hands", func() bool { return queue(t, c).Leased == 1 })
	time.Sleep(2 * time.Second) // whether it is long enough does not matter
	if q := queue(t, c); q.Queued != 1 || strings.Contains(done(), "second") {
		t.Errorf("a gateway that is stopped has taken it: %+v\n%s", q, done())
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	patient(t, c, "the second message comes again", func() bool { return strings.Contains(done(), "second") })
	patient(t, c, "the second message is acknowledged", func() bool { return queue(t, c).Queued == 0 })
	// Once by what is tested; whether OpenClaw then starts at its first attempt on a
	// loaded machine is its own affair.
	if a := c.Agent(t, "service"); a.Restarts < 1 {
		t.Errorf("the service was restarted %d times\n%s", a.Restarts, c.Run(t, "logs", "service"))
	}
	if out := done(); out != "first\nsecond\n" {
		t.Errorf("turns were started for %q", out)
	}
}
