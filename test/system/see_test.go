package system

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/engine"
	"bulkhead/internal/prove"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
)

// sees starts `bulkhead watch ARGS --json` into a file and gives what looks for a
// line there that has all words.
func sees(t *testing.T, c stage.CLI, name string, args ...string) (has func(words ...string) func() bool) {
	t.Helper()
	file := "/srv/seen-" + name
	stage.Sh(t, "cd "+c.Dir+"; : >"+file+"; "+c.Bin+"/bulkhead watch "+strings.Join(args, " ")+" --json >"+file+" 2>&1 & echo $! >"+file+".pid; disown")
	return func(words ...string) func() bool {
		return func() bool {
			for line := range strings.Lines(stage.Sh(t, "cat "+file)) {
				all := true
				for _, w := range words {
					all = all && strings.Contains(line, w)
				}
				if all {
					return true
				}
			}
			return false
		}
	}
}

// unsee ends what sees started.
func unsee(t *testing.T) {
	t.Helper()
	stage.Sh(t, "for f in /srv/seen-*.pid; do kill -INT $(cat $f) || true; done")
}

const wardenLogFile = "/var/lib/bulkhead/log/warden.log"

// logged says whether a line of the warden's log has all words.
func logged(t *testing.T, words ...string) func() bool {
	return func() bool {
		for line := range strings.Lines(stage.Sh(t, "cat "+wardenLogFile)) {
			all := true
			for _, w := range words {
				all = all && strings.Contains(line, w)
			}
			if all {
				return true
			}
		}
		return false
	}
}

func call(t *testing.T, c stage.CLI, agent, tool, input string) stage.Result {
	t.Helper()
	return c.Try(t, "exec", agent, "--", "bulkhead", "tool", "call", tool, input)
}

func TestAnOperatorSeesCallsAndMessages(t *testing.T) {
	talking(t, engines, func(t *testing.T, c stage.CLI) {
		write(t, c.Dir, strings.ReplaceAll(readManifest(t, c), "    mode: session\n", "    mode: session\n    tools: {allow: [mem, notify]}\n"))
		c.Run(t, "up")
		adapterPID(t, c)
		call(t, c, "lead", "mem_set", `{"key":"before","value":"SECRET-VALUE"}`)
		all, one := sees(t, c, "all"), sees(t, c, "worker", "worker")
		// Whatever comes before the watch listens is not promised: so until it is seen.
		i := 0
		stage.Until(t, "a call is shown, by whom and how long it took", func() bool {
			i++
			call(t, c, "lead", "mem_set", fmt.Sprintf(`{"key":"k%d","value":"SECRET-VALUE"}`, i))
			return all(`"agent":"lead"`, `"kind":"tool"`, `"allowed"`, `"target":"mem_set"`, `"micros":`, `"input":`)()
		})
		stage.Until(t, "so is one that reads", func() bool {
			call(t, c, "worker", "mem_list", `{}`)
			return one(`"agent":"worker"`, `"kind":"tool"`, `"target":"mem_list"`)()
		})
		n := 0
		stage.Until(t, "a message is shown by both names", func() bool {
			n++
			sent(t, c, "lead", "--to", "worker", "--type", "question", fmt.Sprintf(`"SECRET-BODY %d"`, n))
			return all(`"agent":"lead"`, `"kind":"message"`, `"allowed"`, `"target":"to worker"`, "question")() && one(`"target":"to worker"`)()
		})
		msg(t, c, "worker", "send", "--to", "nobody", "--type", "question", `"x"`)
		stage.Until(t, "a message that was refused is shown to who watches its sender", one(`"agent":"worker"`, `"kind":"message"`, `"denied"`))
		for _, secret := range []string{"SECRET-VALUE", "SECRET-BODY"} {
			if all(secret)() || one(secret)() {
				t.Errorf("%s is shown", secret)
			}
		}
		if one(`"target":"mem_set"`)() {
			t.Error("the watch of one agent shows another's calls")
		}
		history := sees(t, c, "history", "lead", "--since", "1h")
		stage.Until(t, "calls from before the watch are shown when they are asked for", history(`"agent":"lead"`, `"target":"mem_set"`, `"key":"before"`))
		if all(`"key":"before"`)() {
			t.Error("they are shown without that")
		}
		if out := stage.Sh(t, "cat "+logOf(t, c, "lead")); strings.Contains(out, `mem_set`) {
			t.Error("allowed calls fill the gateway's log")
		}
		stage.Until(t, "the watch goes on with the next gateway", func() bool {
			c.Run(t, "restart", "lead")
			call(t, c, "lead", "mem_set", `{"key":"after","value":1}`)
			return all(`"agent":"lead"`, `"target":"mem_set"`, `"key":"after"`)()
		})
		unsee(t)
	})
}

// logOf is the gateway's log.
func logOf(t *testing.T, _ stage.CLI, agent string) string {
	t.Helper()
	return strings.TrimSpace(stage.Sh(t, "find /var/lib/bulkhead -path '*/"+agent+"/*' -name gateway.log"))
}

func TestWhatAPersonShouldHearOfIsNotOnlyInALog(t *testing.T) {
	talking(t, engines, func(t *testing.T, c stage.CLI) {
		write(t, c.Dir, strings.Replace(readManifest(t, c), "    mode: session\n", "    mode: session\n    tools: {allow: [notify]}\n", 1))
		c.Run(t, "up")
		pid := adapterPID(t, c)
		t.Run("a notice reaches the warden's log, status and notices", func(t *testing.T) {
			i := 0
			stage.Until(t, "the warden hears it", func() bool {
				i++
				if r := call(t, c, "lead", "notify_send", fmt.Sprintf(`{"subject":"help","message":"the tests fail %d"}`, i)); r.Exit != 0 {
					t.Fatal(r)
				}
				return logged(t, `"agent":"lead"`, "help: the tests fail")()
			})
			got := jsonOf[struct {
				Notices []struct{ Agent, Text string }
			}](t, c, "notices")
			if len(got.Notices) != i || got.Notices[0].Agent != "lead" || got.Notices[0].Text != "help: the tests fail 1" {
				t.Errorf("%+v, want %d", got, i)
			}
			if n := c.Agent(t, "lead").Notices; n == nil || n.Count == 0 {
				t.Errorf("%+v", n)
			}
			if out := c.Run(t, "status"); !strings.Contains(out, "bulkhead notices lead") {
				t.Error(out)
			}
			if out := c.Run(t, "notices", "worker"); !strings.Contains(out, "No notices") {
				t.Error(out)
			}
		})
		t.Run("a message that nobody could keep is in status, metrics, denials and the warden's log", func(t *testing.T) {
			data := filepath.Dir(strings.TrimSpace(stage.Sh(t, "find /var/lib/bulkhead -path '*/lead/*' -name outbox.log")))
			stage.Sh(t, fmt.Sprintf("kill -STOP %d; dd if=/dev/zero of=%s/fill bs=64k 2>/dev/null || true", pid, data))
			if r := msg(t, c, "lead", "send", "--to", "worker", "--type", "question", `"`+strings.Repeat("x", 100_000)+`"`); r.Exit == 0 {
				t.Fatalf("it was taken: %s", r)
			}
			stage.Until(t, "the warden says so", logged(t, `"agent":"lead"`, "messages of an agent are lost"))
			stage.Until(t, "status says so, and how many were refused", func() bool { // the gateway tells them one after the other
				o := c.Agent(t, "lead").Outbox
				return o != nil && o.Lost != nil && o.Lost.Count == 1 && o.Refused == 1
			})
			if out := c.Run(t, "status"); !strings.Contains(out, "lead: 1 messages are LOST") {
				t.Error(out)
			}
			if !denied(t, c, "lead", func(d wire.Denial) bool { return d.Target == "outbox" && d.Reason.Code == deny.MessageUnavailable }) {
				t.Error(c.Run(t, "denials", "lead"))
			}
			stage.Sh(t, fmt.Sprintf("rm -f %s/fill; kill -CONT %d", data, pid))
			adapterPID(t, c)
			if out := c.Run(t, "metrics"); !strings.Contains(out, `bulkhead_messages_lost_total{team="talk",agent="lead"} 1`) {
				t.Error(out)
			}
		})
	})
}

func TestWhatAnOperatorDoesInsideIsOnRecord(t *testing.T) {
	eachEngine(t, func(t *testing.T, _ engine.Kind, c stage.CLI) {
		write(t, c.Dir, strings.Replace(readManifest(t, c), "    role: writes\n", "    role: writes\n    ports: [8080]\n", 1))
		c.Run(t, "up")
		has := sees(t, c, "acts")
		stage.Until(t, "a command is shown when it begins", func() bool {
			c.Try(t, "exec", "writer", "--", "sh", "-c", "exit 5", "HUSH")
			return has(`"agent":"writer"`, `"kind":"exec"`, `"started"`, `"target":"sh"`, "exec in runtime, 3 arguments", "user id 0")()
		})
		stage.Until(t, "and how it ended", has(`"kind":"exec"`, `"allowed"`, `"target":"sh"`, "exit 5"))
		c.Try(t, "exec", "writer", "--", "/no/such/program")
		stage.Until(t, "and that it could not begin", has(`"kind":"exec"`, `"failed"`, `"target":"program"`))
		c.Try(t, "run", "writer", "--", "sh", "-c", "exit 6")
		stage.Until(t, "a one-off container's too", has(`"kind":"exec"`, `"allowed"`, "run in a one-off container", "exit 6"))
		for _, k := range []struct{ signal, seconds, how string }{{"INT", "600", "interrupt"}, {"KILL", "601", "the operator left"}} {
			stage.Sh(t, "cd "+c.Dir+"; "+c.Bin+"/bulkhead exec writer -- sh -c 'echo up; exec sleep "+k.seconds+"' </dev/null >/srv/up 2>&1 & echo $! >/srv/sleeper; disown")
			// A signal that comes before the command line knows that it runs calls the start off.
			stage.Until(t, "it runs, and who began it knows", func() bool { return stage.Sh(t, "cat /srv/up || true") == "up\n" })
			stage.Sh(t, "kill -"+k.signal+" $(cat /srv/sleeper)")
			stage.Until(t, "how a command ended that was not let end: "+k.how, has(`"kind":"exec"`, `"allowed"`, `"target":"sh"`, "ended: ", k.how))
		}
		c.Try(t, "ws", "push", "writer", c.Dir)
		stage.Until(t, "a workspace", has(`"kind":"exec"`, `"target":"workspace"`, "ws push"))
		stage.Sh(t, "cd "+c.Dir+"; "+c.Bin+"/bulkhead exec writer -- sh -c 'httpd -p 127.0.0.1:8080 -h /tmp' ; "+
			"("+c.Bin+"/bulkhead forward writer 8080 --listen 127.0.0.1:7000 & p=$!; i=0; while [ $i -lt 3 ]; do sleep 1; busybox wget -q -O - http://127.0.0.1:7000/ || true; i=$((i+1)); done; kill -INT $p) >/dev/null 2>&1")
		stage.Until(t, "a port", has(`"kind":"exec"`, `"target":"port 8080"`, "forward"))
		stage.Until(t, "the warden's log has them", logged(t, "an operator acts inside", `"agent":"writer"`, `"target":"sh"`, `"uid":0`, "exit 5"))
		if logged(t, "HUSH")() || has("HUSH")() {
			t.Error("an argument is on record")
		}
		unsee(t)
		c.Run(t, "down")
	})
}

func TestRaisedLimitsAreReported(t *testing.T) {
	eachEngine(t, func(t *testing.T, _ engine.Kind, c stage.CLI) {
		write(t, c.Dir, strings.Replace(readManifest(t, c), "    role: writes\n", "    role: writes\n    limits: {noFile: 2048, core: 1Mi}\n", 1))
		c.Run(t, "up")
		if out := c.Run(t, "exec", "writer", "--", "sh", "-c", "ulimit -Hn; ulimit -Hc; ulimit -n"); out != "2048\n2048\n2048\n" {
			t.Errorf("%q", out) // -c counts 512 bytes
		}
		if out := c.Run(t, "exec", "reviewer", "--", "sh", "-c", "ulimit -Hn; ulimit -Hc"); out != "1024\n0\n" {
			t.Errorf("%q", out)
		}
		if r := c.Agent(t, "writer").Raised; r == nil || r.NoFile != 2048 || r.CoreBytes != 1<<20 {
			t.Errorf("%+v", r)
		}
		if r := c.Agent(t, "reviewer").Raised; r != nil {
			t.Errorf("%+v", r)
		}
		if out := c.Run(t, "status"); !strings.Contains(out, "writer: open files 2048") || strings.Contains(out, "reviewer: open files") {
			t.Error(out)
		}
		_, report := proven(t, c)
		read := func(agent string) (s prove.Statement) {
			for _, s := range report.Statements {
				if s.ID == "limits" && s.Agent == agent {
					return s
				}
			}
			t.Fatalf("%s has no such statement", agent)
			return s
		}
		for agent, want := range map[string]string{"writer": "open files: 2048, core file in bytes: 1048576", "reviewer": "open files: 1024, core file in bytes: 0"} {
			if s := read(agent); !s.Holds || !strings.Contains(strings.Join(s.Read, "\n"), want) {
				t.Errorf("%+v", s)
			}
		}
		c.Run(t, "down")
	})
}
