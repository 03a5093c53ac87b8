package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/deny"
	"bulkhead/internal/engine"
	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// talk is a team of two that may write to one another.
const talk = `apiVersion: bulkhead/v1
team: talk
orchestrator: lead
defaults:
  limits: {memory: 96Mi, pids: 64}
agents:
  lead:
    rootfs: /srv/rootfs
    mode: session
    channels: [all-agents]
    messages: {to: [worker], critical: [escalation]}
  worker:
    rootfs: /srv/rootfs
    mode: session
    channels: [all-agents]
    messages: {to: [lead]}
`

// talking runs f with the team up, under each engine.
func talking(t *testing.T, engines []engine.Kind, f func(t *testing.T, c stage.CLI)) {
	t.Helper()
	for _, kind := range engines {
		t.Run(string(kind), func(t *testing.T) {
			if kind == engine.Podman {
				needPodman(t)
			}
			bin := stage.Build(t)
			throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
				c := host(t, bin)
				write(t, c.Dir, strings.Replace(talk, "defaults:\n", "defaults:\n  engine: "+string(kind)+"\n", 1))
				before := stage.Picture(t)
				c.Run(t, "up")
				f(t, c)
				c.Run(t, "down", "--purge")
				stage.Leaves(t, before)
			})
		})
	}
}

const onlyCell, shimMsg = 0, "/.bulkhead/bulkhead-shim"

// msg runs `bulkhead-shim msg` in an agent's runtime.
func msg(t *testing.T, c stage.CLI, agent string, args ...string) stage.Result {
	t.Helper()
	return c.Try(t, append([]string{"exec", agent, "--", shimMsg, "msg"}, args...)...)
}

func sent(t *testing.T, c stage.CLI, agent string, args ...string) adapter.SendResult {
	t.Helper()
	r := msg(t, c, agent, append([]string{"send"}, args...)...)
	var s adapter.SendResult
	if err := json.Unmarshal([]byte(r.Stdout), &s); r.Exit != 0 || err != nil {
		t.Fatalf("send %v: %v %s", args, err, r)
	}
	return s
}

func received(t *testing.T, c stage.CLI, agent string, args ...string) []adapter.Delivery {
	t.Helper()
	r := msg(t, c, agent, append([]string{"receive"}, args...)...)
	var got protocol.Deliveries
	if err := json.Unmarshal([]byte(r.Stdout), &got); r.Exit != 0 || err != nil {
		t.Fatalf("receive %v: %v %s", args, err, r)
	}
	return got.Deliveries
}

// adapterPID is the adapter's process, when it runs with every layer in force.
func adapterPID(t *testing.T, c stage.CLI) int {
	t.Helper()
	pid := 0
	stage.Until(t, "the adapter runs", func() bool {
		a := c.Agent(t, layout.AdapterName)
		pid = a.Containers[0].PID
		return a.State == "running" && pid > 1
	})
	return pid
}

func TestAgentsTalkThroughTheAdapter(t *testing.T) {
	talking(t, engines, func(t *testing.T, c stage.CLI) {
		first := sent(t, c, "lead", "--to", "worker", "--type", "task_assignment", `{"do":"it"}`)
		if first.Channel != "@lead+worker" || first.Sequence != 1 {
			t.Errorf("%+v", first)
		}
		got := received(t, c, "worker", "--wait", "10s")
		if len(got) != 1 || got[0].From != "lead" || got[0].Sequence != 1 || string(got[0].Body) != `{"do":"it"}` {
			t.Fatalf("%+v", got)
		}
		if r := msg(t, c, "worker", "ack", got[0].Lease); r.Exit != 0 {
			t.Error(r)
		}
		if answer := sent(t, c, "worker", "--to", "lead", "--type", "result", "--reply-to", "1", `"done"`); answer.Sequence != 2 {
			t.Errorf("%+v", answer)
		}
		sent(t, c, "lead", "--channel", "all-agents", "--type", "hello", "1")
		for _, k := range []struct {
			name string
			args []string
			exit int
			code string
		}{
			{"to whom it may not", []string{"--to", "nobody", "--type", "x", "1"}, wire.ExitRefused, "agents.worker.messages.to"},
			{"a critical type that it may not", []string{"--to", "lead", "--type", "escalation", "1"}, wire.ExitRefused, "agents.worker.messages.critical"},
			{"a channel that it did not join", []string{"--channel", "board", "--type", "x", "1"}, wire.ExitRefused, "board"},
			{"no type", []string{"--to", "lead", "1"}, wire.ExitBadInput, "type"},
		} {
			if r := msg(t, c, "worker", append([]string{"send"}, k.args...)...); r.Exit != k.exit || !strings.Contains(r.Stderr, k.code) {
				t.Errorf("%s: want exit %d and %q: %s", k.name, k.exit, k.code, r)
			}
		}
		if out := c.Run(t, "msg", "tail", "--all"); strings.Count(out, "\n") != 3 {
			t.Error(out)
		}
		// What was refused is found by the operator as well.
		stage.Until(t, "the refused sends are recorded", func() bool {
			out := c.Run(t, "denials", "--json")
			return strings.Contains(out, `"to nobody"`) && strings.Contains(out, `"channel board"`) && strings.Contains(out, "messages.invalid")
		})
		before := adapterPID(t, c)
		if r := c.Try(t, "stop", layout.AdapterName); r.Exit != wire.ExitBadInput || !strings.Contains(r.Stderr, "bulkhead restart comm_adapter") {
			t.Error(r)
		}
		c.Run(t, "restart", layout.AdapterName)
		if after := adapterPID(t, c); after == before {
			t.Errorf("the adapter is still process %d", after)
		}
		sent(t, c, "lead", "--to", "worker", "--type", "note", `"after its restart"`)
		if out := c.Run(t, "msg", "threads", "@lead+worker", "2"); !strings.Contains(out, "task_assignment") || !strings.Contains(out, `re #1  "done"`) {
			t.Error(out)
		}
		for _, row := range []string{"lead", "worker", layout.AdapterName} {
			a := c.Agent(t, row)
			if a.State != "running" || !strings.Contains(fmt.Sprint(a.Layers), "messages true") {
				t.Errorf("%s is %s: %s %+v", row, a.State, a.Why, a.Layers)
			}
		}
	})
}

func TestOperatorsReplayAndDropDeadLettersAndKeepACopy(t *testing.T) {
	talking(t, engines[onlyCell:1], func(t *testing.T, c stage.CLI) {
		c.Run(t, "msg", "send", "--to", "worker", "--type", "chore", `{"n":1}`)
		for attempt := 1; attempt <= 1+adapter.MaxTries; attempt++ {
			got := received(t, c, "worker", "--wait", "20s")
			if len(got) != 1 || got[0].Attempt != attempt {
				t.Fatalf("attempt %d: %+v", attempt, got)
			}
			if r := msg(t, c, "worker", "refuse", "--delay", "10ms", "--reason", "no disk", got[0].Lease); r.Exit != 0 {
				t.Fatal(r)
			}
		}
		var dead struct {
			DeadLetters []adapter.DeadLetter `json:"dead_letters"`
		}
		if err := json.Unmarshal([]byte(c.Run(t, "dlq", "list", "worker", "--json")), &dead); err != nil || len(dead.DeadLetters) != 1 || !strings.Contains(dead.DeadLetters[0].Reason, "no disk") {
			t.Fatalf("%v %+v", err, dead)
		}
		id := strconv.FormatInt(dead.DeadLetters[0].ID, 10)
		if out := c.Run(t, "dlq", "inspect", id); !strings.Contains(out, `{"n":1}`) {
			t.Error(out)
		}
		copied := filepath.Join(t.TempDir(), "talk.db")
		c.Run(t, "msg", "backup", copied)
		if raw, err := os.ReadFile(copied); err != nil || !strings.HasPrefix(string(raw), "SQLite format 3\x00") || !strings.Contains(string(raw), `{"n":1}`) {
			t.Errorf("the copy: %d bytes, %v", len(raw), err)
		}
		if left := stage.Sh(t, "ls /var/lib/bulkhead/teams/talk/agents/comm_adapter/data | grep -c backup || true"); strings.TrimSpace(left) != "0" {
			t.Error("the adapter's folder holds a copy")
		}
		c.Run(t, "dlq", "replay", id)
		if got := received(t, c, "worker", "--wait", "10s", "--ack"); len(got) != 1 || string(got[0].Body) != `{"n":1}` {
			t.Errorf("%+v", got)
		}
		if out := c.Run(t, "dlq", "list", "worker"); out != "no dead letters\n" {
			t.Error(out)
		}
		// Beside the chore and the notice of its death to the orchestrator.
		c.Run(t, "msg", "send", "--to", "worker", `"before the repair"`)
		if out := c.Run(t, "msg", "repair"); !strings.Contains(out, "3 messages, 3 deliveries") || !strings.Contains(out, "is kept as") {
			t.Error(out)
		}
		stage.Until(t, "its gateway has found the adapter again", func() bool { return msg(t, c, "worker", "channels").Exit == 0 })
		if got := received(t, c, "worker", "--wait", "10s", "--ack"); len(got) != 1 || string(got[0].Body) != `"before the repair"` {
			t.Errorf("%+v", got)
		}
		if out := c.Run(t, "metrics"); !strings.Contains(out, `{agent="worker"}`) {
			t.Error(out)
		}
	})
}

// A wrong peer is one that lacks one of the three: socket, id, token.
func TestOnlyAnAgentsOwnGatewaySpeaksAsIt(t *testing.T) {
	talking(t, engines[onlyCell:1], func(t *testing.T, c stage.CLI) {
		h := layout.Default()
		var tokens struct {
			Tokens map[string]string `json:"tokens"`
		}
		raw, err := os.ReadFile(h.Agent("talk", layout.AdapterName).AdapterTokens())
		if err == nil {
			err = json.Unmarshal(raw, &tokens)
		}
		if err != nil || tokens.Tokens["lead"] == "" || tokens.Tokens["lead"] == tokens.Tokens["worker"] {
			t.Fatalf("%v %v", err, tokens)
		}
		lead, worker := c.Agent(t, "lead"), c.Agent(t, "worker")
		gateway := func(a wire.AgentStatus) uint32 { return stage.Container(t, a, "gateway").HostID }
		account, err := strconv.ParseUint(strings.TrimSpace(stage.Sh(t, "id -u "+lead.Account)), 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		socket := func(agent string) string { return h.Agent("talk", agent).AdapterSocket() }
		for _, k := range []struct {
			name          string
			id            uint32
			socket, token string
			want          string // an errno, a deny.Code, or "ok"
		}{
			{"its own gateway", gateway(lead), "lead", "lead", "ok"},
			{"its own gateway with another's token", gateway(lead), "lead", "worker", string(deny.BadToken)},
			{"its own gateway without a token", gateway(lead), "lead", "", string(deny.BadToken)},
			{"another's gateway with the right token", gateway(worker), "lead", "lead", "EACCES"},
			{"another's gateway with its own token", gateway(worker), "lead", "worker", "EACCES"},
			{"the runtime", stage.Container(t, lead, "runtime").HostID, "lead", "lead", "EACCES"},
			{"the bare account", uint32(account), "lead", "lead", "EACCES"},
			{"the overflow id", 65534, "lead", "lead", "EACCES"},
			{"the dialer", stage.Container(t, lead, "dialer").HostID, "lead", "lead", "EACCES"},
			// Past the socket's mode, as if somebody had opened it: the id is checked.
			{"root with the right token", 0, "lead", "lead", closed},
		} {
			if got := speak(t, socket(k.socket), k.id, tokens.Tokens[k.token]); got != k.want {
				t.Errorf("%s: %s, want %s", k.name, got, k.want)
			}
		}
		t.Run("with the socket open to all, the id alone still refuses", func(t *testing.T) {
			if err := os.Chmod(socket("lead"), 0o777); err != nil {
				t.Fatal(err)
			}
			for _, id := range []uint32{gateway(worker), stage.Container(t, lead, "runtime").HostID, uint32(account), 65534} {
				if got := speak(t, socket("lead"), id, tokens.Tokens["lead"]); got != closed {
					t.Errorf("id %d: %s", id, got)
				}
			}
			if a := c.Agent(t, "lead"); a.State == "running" {
				t.Error("status says that all is well while the socket is open to everybody")
			}
			if err := os.Chmod(socket("lead"), 0o660); err != nil {
				t.Fatal(err)
			}
		})
		t.Run("refusals are recorded", func(t *testing.T) {
			log := c.Run(t, "logs", layout.AdapterName)
			for _, code := range []deny.Code{deny.BadToken, deny.BadPeer} {
				if !strings.Contains(log, string(code)) {
					t.Errorf("no %s in %s", code, log)
				}
			}
		})
		t.Run("root alone reaches the operator's socket", func(t *testing.T) {
			if got := speak(t, h.Agent("talk", layout.AdapterName).OperatorSocket(), gateway(lead), ""); got != "EACCES" {
				t.Error(got)
			}
		})
	})
}

// closed is how an adapter answers whom it does not hear: with nothing.
const closed = "closed"

// speak connects as id and authenticates, and says how that ended.
func speak(t *testing.T, socket string, id uint32, token string) string {
	t.Helper()
	fd, err := connectAs(socket, id)
	var no unix.Errno
	if errors.As(err, &no) {
		return unix.ErrnoName(no)
	}
	f := os.NewFile(uintptr(fd), "adapter")
	nc, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		t.Fatal(err)
	}
	conn := wire.New(nc.(*net.UnixConn))
	defer func() { _ = conn.Close() }()
	_ = conn.Unix().SetDeadline(time.Now().Add(10 * time.Second))
	err = conn.Send(0, wire.VerbHello, wire.Hello{Protocol: protocol.Name, Version: protocol.Version})
	if err == nil {
		err = conn.Send(1, protocol.VerbAuth, protocol.Auth{Token: token})
	}
	for err == nil {
		var m wire.Message
		if m, _, err = conn.Recv(); err != nil {
			break
		}
		switch m.Verb {
		case protocol.VerbOK:
			return "ok"
		case protocol.VerbDenied:
			var r deny.Reason
			if err := json.Unmarshal(m.Body, &r); err != nil {
				t.Fatal(err)
			}
			return string(r.Code)
		}
	}
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, io.EOF) {
		return closed
	}
	return err.Error()
}

func TestNothingIsLostWhenTheAdapterIsKilledWhileAgentsSend(t *testing.T) {
	talking(t, engines[onlyCell:1], func(t *testing.T, c stage.CLI) {
		const each = 40
		script := func(to string) string {
			return fmt.Sprintf(`i=0; while [ $i -lt %d ]; do %s msg send --to %s --type count "$i" > /dev/null || { echo "lost $i"; exit 1; }; i=$((i+1)); done; echo all`, each, shimMsg, to)
		}
		var senders sync.WaitGroup
		said := map[string]stage.Result{}
		var mu sync.Mutex
		for from, to := range map[string]string{"lead": "worker", "worker": "lead"} {
			senders.Go(func() {
				r := c.Try(t, "exec", from, "--", "sh", "-c", script(to))
				mu.Lock()
				defer mu.Unlock()
				said[from] = r
			})
		}
		killed := make(chan int)
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			n := 0
			defer func() { killed <- n }()
			for ctx.Err() == nil {
				out, err := exec.CommandContext(ctx, filepath.Join(c.Bin, "bulkhead"), "status", "--json").Output()
				var st wire.StatusResult
				if err != nil || json.Unmarshal(out, &st) != nil {
					continue
				}
				for _, a := range st.Teams[0].Agents {
					if a.Agent == layout.AdapterName && a.Containers[0].Running && unix.Kill(a.Containers[0].PID, unix.SIGKILL) == nil {
						n++
					}
				}
				select {
				case <-ctx.Done():
				case <-time.After(700 * time.Millisecond):
				}
			}
		}()
		senders.Wait()
		stop()
		if n := <-killed; n == 0 {
			t.Error("the adapter was never killed")
		} else {
			t.Logf("killed %d times", n)
		}
		for from, r := range said {
			if r.Exit != 0 || strings.TrimSpace(r.Stdout) != "all" {
				t.Errorf("%s: %s", from, r)
			}
		}
		adapterPID(t, c)
		for _, agent := range []string{"lead", "worker"} {
			stage.Until(t, "its gateway has found the adapter again", func() bool { return msg(t, c, agent, "channels").Exit == 0 })
			seen := map[string]int{}
			var last uint64
			for end := time.Now().Add(2 * time.Minute); len(seen) < each && time.Now().Before(end); {
				for _, d := range received(t, c, agent, "--wait", "5s", "--max", "50", "--ack") {
					seen[string(d.Body)]++
					if d.Sequence <= last && d.Attempt == 1 {
						t.Errorf("%s got %d after %d", agent, d.Sequence, last)
					}
					last = d.Sequence
				}
			}
			for i := range each {
				if seen[strconv.Itoa(i)] == 0 {
					t.Errorf("%s: message %d was acknowledged to its sender and never came", agent, i)
				}
			}
		}
	})
}

func TestTheAdapterIsAdoptedToldAndKept(t *testing.T) {
	talking(t, engines[onlyCell:1], func(t *testing.T, c stage.CLI) {
		pid := adapterPID(t, c)
		runtimes := func() string {
			return fmt.Sprint(stage.Container(t, c.Agent(t, "lead"), "runtime").PID, stage.Container(t, c.Agent(t, "worker"), "runtime").PID,
				stage.Container(t, c.Agent(t, "lead"), "gateway").PID, stage.Container(t, c.Agent(t, "worker"), "gateway").PID)
		}
		was := runtimes()
		t.Run("a killed warden's successor adopts it, and agents talk meanwhile", func(t *testing.T) {
			c.Run(t, "exec", "lead", "--", "sh", "-c",
				`setsid sh -c 'until [ -e /tmp/now ]; do sleep 0.1; done; sleep 1; `+shimMsg+` msg send --to worker --type note --text "without a warden"' > /tmp/said 2>&1 &`)
			c.Run(t, "exec", "lead", "--", "touch", "/tmp/now")
			kill9(t, wardens(t)...)
			time.Sleep(3 * time.Second) // a while without a warden; whether it was long enough does not matter
			c.Run(t, "up")
			if now := adapterPID(t, c); now != pid || runtimes() != was {
				t.Errorf("adapter %d -> %d, agents %s -> %s", pid, now, was, runtimes())
			}
			stage.Until(t, "the message has come", func() bool { return strings.Contains(c.Run(t, "msg", "tail", "--all"), "without a warden") })
		})
		t.Run("a changed policy restarts nobody", func(t *testing.T) {
			if r := msg(t, c, "worker", "send", "--to", "lead", "--type", "escalation", "1"); r.Exit != wire.ExitRefused {
				t.Error(r)
			}
			write(t, c.Dir, strings.Replace(readManifest(t, c), "to: [lead]", "to: [lead], critical: [escalation]", 1))
			if out := c.Run(t, "up"); !strings.Contains(out, "messages.critical: + escalation") {
				t.Error(out)
			}
			sent(t, c, "worker", "--to", "lead", "--type", "escalation", "1")
			if now := adapterPID(t, c); now != pid || runtimes() != was {
				t.Errorf("adapter %d -> %d, agents %s -> %s", pid, now, was, runtimes())
			}
		})
		t.Run("an agent that comes gets a socket, and the others go on", func(t *testing.T) {
			write(t, c.Dir, readManifest(t, c)+"  third: {rootfs: /srv/rootfs, mode: session, channels: [all-agents]}\n")
			c.Run(t, "up")
			if runtimes() != was {
				t.Error("the others were restarted")
			}
			sent(t, c, "third", "--channel", "all-agents", "--type", "hello", "1")
		})
		t.Run("an agent that goes leaves what waits for it to the operator", func(t *testing.T) {
			c.Run(t, "msg", "send", "--to", "third", `"for the third"`)
			write(t, c.Dir, strings.Split(readManifest(t, c), "  third:")[0])
			c.Run(t, "up")
			if out := c.Run(t, "msg", "tail", "--all"); !strings.Contains(out, "for the third") {
				t.Error(out)
			}
		})
		t.Run("down keeps what it holds, up brings it back", func(t *testing.T) {
			c.Run(t, "down")
			stage.Ended(t)
			c.Run(t, "up")
			if out := c.Run(t, "msg", "tail", "--all"); !strings.Contains(out, "without a warden") {
				t.Error(out)
			}
		})
		t.Run("a team without messages has none", func(t *testing.T) {
			quiet := strings.NewReplacer("    channels: [all-agents]\n", "", "    messages: {to: [worker], critical: [escalation]}\n", "", "    messages: {to: [lead], critical: [escalation]}\n", "").Replace(readManifest(t, c))
			write(t, c.Dir, quiet)
			if out := c.Run(t, "up"); !strings.Contains(out, "the team has no adapter any more") {
				t.Error(out)
			}
			for _, tm := range c.Status(t).Teams {
				for _, a := range tm.Agents {
					if a.Agent == layout.AdapterName || a.State != "running" {
						t.Errorf("%s is %s: %s", a.Agent, a.State, a.Why)
					}
				}
			}
			if r := c.Try(t, "msg", "queues"); r.Exit != wire.ExitBadInput || !strings.Contains(r.Stderr, "has no messages") {
				t.Error(r)
			}
		})
	})
}

func readManifest(t *testing.T, c stage.CLI) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(c.Dir, "bulkhead.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestVerifyAttacksTheAdapter(t *testing.T) {
	talking(t, engines[onlyCell:1], func(t *testing.T, c stage.CLI) {
		var report struct {
			Succeeded int `json:"succeeded"`
			Rows      []struct {
				Attack, Position, Verdict, Evidence string
			} `json:"rows"`
		}
		r := c.Try(t, "verify", "--no-controls", "--json")
		if err := json.Unmarshal([]byte(r.Stdout), &report); err != nil || report.Succeeded != 0 {
			t.Fatalf("%v %s", err, r)
		}
		denied := map[string]int{}
		for _, row := range report.Rows {
			if !strings.HasPrefix(row.Attack, "message.") {
				continue
			}
			if row.Verdict != "denied" {
				t.Errorf("%+v", row)
			}
			denied[row.Attack+" from "+row.Position]++
		}
		for _, want := range []string{
			"message.socket from runtime", "message.socket from gateway", "message.socket from account", "message.token from gateway",
			"message.forge from runtime", "message.foreign from runtime",
		} {
			if denied[want] != 2 {
				t.Errorf("%s: %d rows, want one for each agent", want, denied[want])
			}
		}
	})
}
