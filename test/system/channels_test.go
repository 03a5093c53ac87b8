package system

import (
	"encoding/json"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/adapter"
	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
)

// board is talk with a channel that the lead alone is in.
func board() string {
	return strings.Replace(talk, "channels: [all-agents]", "channels: [all-agents, board]", 1)
}

// decided waits for what became of a request, as an agent hears it.
func decided(t *testing.T, c stage.CLI, agent string) adapter.ChannelDecision {
	t.Helper()
	var d adapter.ChannelDecision
	got := received(t, c, agent, "--wait", "10s", "--ack", "--channel", adapter.Direct(adapter.System, agent))
	if len(got) != 1 || got[0].Type != adapter.ChannelDecided || got[0].From != adapter.System || json.Unmarshal(got[0].Body, &d) != nil {
		t.Fatalf("%s hears %+v", agent, got)
	}
	return d
}

func TestTheOrchestratorAsksAndAnOperatorDecidesWhoIsInAChannel(t *testing.T) {
	talking(t, engines, func(t *testing.T, c stage.CLI) {
		engineLine := ""
		for line := range strings.Lines(readManifest(t, c)) {
			if strings.HasPrefix(line, "  engine: ") {
				engineLine = line
			}
		}
		manifest := strings.Replace(board(), "defaults:\n", "defaults:\n"+engineLine, 1)
		write(t, c.Dir, manifest)
		c.Run(t, "up")
		toBoard := func(agent, body string) stage.Result {
			return msg(t, c, agent, "send", "--channel", "board", "--type", "note", body)
		}
		refused := func(what string, r stage.Result, says string) {
			t.Helper()
			if r.Exit != wire.ExitRefused || !strings.Contains(r.Stderr, says) {
				t.Errorf("%s: %s", what, r)
			}
		}
		if r := toBoard("lead", `"of old"`); r.Exit != 0 {
			t.Fatal(r)
		}
		refused("a receive from a channel that is not its own", msg(t, c, "worker", "receive", "--channel", "board"), "worker is no member")
		refused("a request by who may not ask", msg(t, c, "worker", "request", "--join", "worker", "--reason", "mine", "board"), "only the orchestrator, lead, may ask")
		if r := msg(t, c, "lead", "request", "--join", "nobody", "--reason", "x", "board"); r.Exit != wire.ExitBadInput {
			t.Error(r)
		}
		ask := func(args ...string) (q adapter.MembershipRequest) {
			t.Helper()
			r := msg(t, c, "lead", append([]string{"request"}, args...)...)
			if r.Exit != 0 || json.Unmarshal([]byte(r.Stdout), &q) != nil {
				t.Fatal(r)
			}
			return q
		}
		// The same twice, over REST and as a tool: one request.
		first := ask("--join", "worker", "--reason", "it builds \x1b[31mthe board", "board")
		if q := ask("--join", "worker", "--reason", "again", "board"); q.ID != first.ID || !q.Duplicate {
			t.Errorf("%+v", q)
		}
		if r := c.Try(t, "exec", "lead", "--", "/.bulkhead/bulkhead-shim", "tool", "call", "msg_channel_request", `{"channel":"board","agent":"worker","change":"join","reason":"as a tool"}`); r.Exit != 0 || !strings.Contains(r.Stdout, `"duplicate":true`) {
			t.Errorf("the tool: %s", r)
		}
		if out := c.Run(t, "msg", "requests"); !strings.Contains(out, "worker joins board") || !strings.Contains(out, "it builds") || strings.Contains(out, "\x1b[31m") {
			t.Errorf("%q", out)
		}
		stage.Until(t, "the operator is told of it", func() bool { return strings.Contains(c.Run(t, "notices"), "request 1") })
		refused("before anybody decided", toBoard("worker", "1"), "no member of the channel board")
		if out := c.Run(t, "why", "worker", "message:board"); !strings.Contains(out, "no member") {
			t.Error(out)
		}

		if out := c.Run(t, "msg", "approve", "1"); !strings.Contains(out, "approved: worker joins board") {
			t.Error(out)
		}
		if d := decided(t, c, "lead"); d.Decision != adapter.RequestApproved || d.Request != 1 {
			t.Errorf("%+v", d)
		}
		if d := decided(t, c, "worker"); d.From != 2 || d.Agent != "worker" {
			t.Errorf("%+v", d)
		}
		inForce := func() {
			t.Helper()
			if r := toBoard("lead", `"to the worker"`); r.Exit != 0 {
				t.Error(r)
			}
			if got := received(t, c, "worker", "--channel", "board", "--wait", "10s", "--max", "10", "--ack"); len(got) != 1 || string(got[0].Body) != `"to the worker"` {
				t.Errorf("%+v", got)
			}
			if r := toBoard("worker", `"from the worker"`); r.Exit != 0 {
				t.Error(r)
			}
			if r := msg(t, c, "worker", "replay", "board"); r.Exit != 0 || strings.Contains(r.Stdout, "of old") || !strings.Contains(r.Stdout, "to the worker") {
				t.Errorf("read again: %s", r)
			}
			if out := c.Run(t, "msg", "channels"); !strings.Contains(out, "worker joins (request 1) from #2 on") {
				t.Error(out)
			}
			if out := c.Run(t, "why", "worker", "message:board"); !strings.Contains(out, "an operator approved that it joins the channel (request 1)") {
				t.Error(out)
			}
		}
		inForce()
		if err := unix.Kill(adapterPID(t, c), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		stage.Until(t, "the adapter is back, and both gateways with it", func() bool {
			return msg(t, c, "worker", "channels").Exit == 0 && msg(t, c, "lead", "channels").Exit == 0
		})
		inForce()
		c.Run(t, "restart", layout.AdapterName)
		c.Run(t, "up") // the same manifest: it stays
		stage.Until(t, "both gateways have the adapter", func() bool {
			return msg(t, c, "worker", "channels").Exit == 0 && msg(t, c, "lead", "channels").Exit == 0
		})
		inForce()
		for _, row := range []string{"lead", "worker", layout.AdapterName} {
			if a := c.Agent(t, row); a.State != "running" {
				t.Errorf("%s is %s: %s", row, a.State, a.Why)
			}
		}

		// A refusal changes nothing, and says why.
		ask("--leave", "worker", "--reason", "for a while", "all-agents")
		c.Run(t, "msg", "refuse", "2", "--reason", "it is needed there")
		if d := decided(t, c, "lead"); d.Decision != adapter.RequestRefused || d.Why != "it is needed there" {
			t.Errorf("%+v", d)
		}
		sent(t, c, "worker", "--channel", "all-agents", "--type", "note", "1")
		ask("--leave", "worker", "--reason", "for good", "all-agents")
		c.Run(t, "msg", "approve", "3")
		refused("after it left", msg(t, c, "worker", "send", "--channel", "all-agents", "--type", "note", "1"), "approved request 3")
		refused("what is said there now", msg(t, c, "worker", "replay", "all-agents"), "approved request 3")
		if out := c.Run(t, "why", "worker", "message:all-agents"); !strings.Contains(out, "(request 3)") {
			t.Error(out)
		}
		if r := c.Try(t, "msg", "approve", "2"); r.Exit != wire.ExitBadInput || !strings.Contains(r.Stderr, "refused already") {
			t.Error(r)
		}

		// The manifest wins.
		write(t, c.Dir, strings.Replace(manifest, "channels: [all-agents]\n    messages: {to: [lead]}", "channels: [all-agents, board]\n    messages: {to: [lead]}", 1))
		if out := c.Run(t, "plan"); !strings.Contains(out, "what an operator approved is dropped: worker joins board (request 1)") || strings.Contains(out, "request 3") {
			t.Error(out)
		}
		if out := c.Run(t, "up"); !strings.Contains(out, "is dropped: worker joins board (request 1)") {
			t.Error(out)
		}
		if r := msg(t, c, "worker", "replay", "board"); r.Exit != 0 || !strings.Contains(r.Stdout, "of old") {
			t.Errorf("a member by the manifest reads all of it: %s", r)
		}
		if out := c.Run(t, "msg", "channels"); strings.Contains(out, "request 1") || !strings.Contains(out, "worker leaves (request 3)") {
			t.Error(out)
		}
		stage.Until(t, "decisions and requests are on record", func() bool {
			log := c.Run(t, "logs", layout.AdapterName)
			return strings.Contains(log, "request 1: worker joins board, approved by an operator") && strings.Contains(log, "request 2: worker leaves all-agents, refused by an operator") &&
				strings.Contains(log, "an approved change beside it is dropped")
		})
		if out := c.Run(t, "denials", "--json"); !strings.Contains(out, `"channel request"`) {
			t.Error(out)
		}
	})
}

func TestWhatFoundNoPlaceIsReplayedAndWhatIsGoneIsTold(t *testing.T) {
	talking(t, engines, func(t *testing.T, c stage.CLI) {
		pending := func(args ...string) (got struct {
			Deliveries []adapter.Delivery
			Replayed   []adapter.Message
		},
		) {
			t.Helper()
			r := msg(t, c, "worker", append([]string{"receive", "--channel", "@lead+worker"}, args...)...)
			if r.Exit != 0 || json.Unmarshal([]byte(r.Stdout), &got) != nil {
				t.Fatal(r)
			}
			return got
		}
		batch := `n=$0; while [ $n -le $1 ]; do ` + shimMsg + ` msg send --to worker --type count "$n" > /dev/null || exit 1; n=$((n+1)); done`
		const over, between = 3, 2
		c.Run(t, "exec", "lead", "--", "sh", "-c", batch, "1", strconv.Itoa(adapter.QueueSize+over))
		first := pending("--wait", "10s", "--lease", "1h")
		if len(first.Deliveries) != 1 || first.Deliveries[0].Sequence != over+1 || len(first.Replayed) != over || first.Replayed[0].Sequence != 1 || string(first.Replayed[2].Body) != "3" {
			t.Fatalf("%+v", first)
		}
		// While that one is leased, those after it make room: a gap inside of the next answer.
		for range between {
			sent(t, c, "lead", "--to", "worker", "--type", "count", "0")
		}
		// Whoever is killed: it comes until the delivery is acknowledged, and then no more.
		if r := msg(t, c, "worker", "refuse", "--delay", "1ms", first.Deliveries[0].Lease); r.Exit != 0 {
			t.Fatal(r)
		}
		if err := unix.Kill(adapterPID(t, c), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		c.Run(t, "restart", "worker")
		stage.Until(t, "its gateway has the adapter", func() bool { return msg(t, c, "worker", "channels").Exit == 0 })
		again := pending("--wait", "10s", "--max", "10", "--ack")
		if len(again.Deliveries) != 10 || again.Deliveries[0].Sequence != over+1 || again.Deliveries[1].Sequence != over+between+2 || len(again.Replayed) != over+between || again.Replayed[over].Sequence != over+2 {
			t.Fatalf("%+v", again)
		}
		if next := pending("--ack"); len(next.Deliveries) != 1 || next.Deliveries[0].Sequence != over+between+11 || len(next.Replayed) > 0 {
			t.Errorf("%+v", next)
		}
		if out := c.Run(t, "dlq", "list", "worker", "--json"); strings.Count(out, `"recipient"`) != over+between {
			t.Errorf("a replay changed the dead letters: %s", out)
		}
		if a := c.Agent(t, "worker"); a.Gaps != nil {
			t.Errorf("a gap that was filled is told: %+v", a.Gaps)
		}
		if out := c.Run(t, "why", "worker", "message:all-agents"); !strings.Contains(out, "is a member") {
			t.Error(out)
		}

		// The store is put back to a copy of before: what came since is gone.
		copied := filepath.Join(t.TempDir(), "talk.db")
		c.Run(t, "msg", "backup", copied)
		for len(pending("--max", "100", "--ack").Deliveries) > 0 {
		}
		sent(t, c, "lead", "--to", "worker", "--type", "note", `"of which the copy knows nothing"`)
		if got := pending("--wait", "10s", "--ack"); len(got.Deliveries) != 1 {
			t.Fatalf("%+v", got)
		}
		stage.Until(t, "the gateway has written down what was seen", func() bool {
			return strings.Contains(stage.Sh(t, "cat $(find /var/lib/bulkhead -path '*/worker/*' -name seen.json)"), `"@lead+worker":{"sequence":`+strconv.Itoa(adapter.QueueSize+over+between+1))
		})
		c.Run(t, "down")
		stage.Sh(t, "cd /var/lib/bulkhead/teams/talk/agents/comm_adapter/data; cat "+copied+" > messages.db; rm -f messages.db-wal messages.db-shm")
		c.Run(t, "up")
		stage.Until(t, "status says what is missing", func() bool {
			a := c.Agent(t, "worker")
			return a.Gaps != nil && a.Gaps.Count == 1
		})
		if out := c.Run(t, "status"); !strings.Contains(out, "worker: messages to it are MISSING in 1 places of channels") {
			t.Error(out)
		}
		if out := c.Run(t, "denials", "worker", "--json"); !strings.Contains(out, "put back to an earlier state") {
			t.Error(out)
		}
		if out := c.Run(t, "metrics"); !strings.Contains(out, `bulkhead_message_gaps_total{team="talk",agent="worker"} 1`) {
			t.Error(out)
		}
		if a := c.Agent(t, "lead"); a.Gaps != nil {
			t.Errorf("the lead missed nothing: %+v", a.Gaps)
		}
	})
}
