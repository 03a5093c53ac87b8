package agents

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/adapter"
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
	done := func() string { return execIn(t, c, "service", "sh", "-c", "cat /workspace/pushed 2>/dev/null || true") }
	model()
	write("first")
	patient(t, c, "the turn that the first message starts", func() bool { return strings.Contains(done(), "first") })
	patient(t, c, "the first message is acknowledged", func() bool { q := queue(t, c); return q.Queued+q.Leased == 0 })
	if !slices.ContainsFunc(model(), func(r request) bool { return r.Path == "/v1/chat/completions" && r.Tool == "exec" }) {
		t.Error("the model was not asked by OpenClaw's turn")
	}
	if !crash {
		return
	}
	pids := strings.Fields(stage.Sh(t, "pgrep -f '^openclaw' || true"))
	t.Log(pids, stage.Sh(t, "ps axo pid,args | grep -i claw | cut -c1-200"))
	_ = unix.SIGSTOP
}
