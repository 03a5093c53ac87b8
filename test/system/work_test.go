package system

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

func jsonOf[T any](t *testing.T, c stage.CLI, args ...string) T {
	t.Helper()
	var v T
	out := c.Run(t, append(args, "--json")...)
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return v
}

func denied(t *testing.T, c stage.CLI, agent string, is func(wire.Denial) bool) bool {
	t.Helper()
	for _, a := range jsonOf[wire.DenialsResult](t, c, "denials", agent).Agents {
		for _, d := range a.Denials {
			if a.Agent == agent && is(d) {
				return true
			}
		}
	}
	return false
}

func TestDenialsAreSeenExplainedAndSuggested(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		stage.Sh(t, "echo '127.0.0.1 inner.example' >> /etc/hosts")
		write(t, c.Dir, strings.Replace(pair, "egress: ['listed.example:8080']", "egress: ['listed.example:8080', 'inner.example:80']\n    tools: {allow: [mem]}", 1))
		c.Run(t, "up")
		c.Try(t, "exec", "writer", "--", "bulkhead", "tool", "call", "fs_read", `{"path":"x"}`)
		c.Try(t, "exec", "writer", "--", "bulkhead", "tool", "call", "mem_get", `{"key":"there is none"}`)
		for _, url := range []string{"http://unlisted.example:8080/", "http://unlisted.example:8080/", "http://listed.example:9/", "http://inner.example:80/", "http://unlisted.example:53/"} {
			c.Try(t, "exec", "writer", "--", "wget", "-q", "-O", "-", url)
		}
		t.Run("by the gateway, once with a count", func(t *testing.T) {
			if !denied(t, c, "writer", func(d wire.Denial) bool {
				return d.Target == "unlisted.example:8080" && d.Reason.Code == deny.NotListed && strings.Contains(d.Reason.Mend, `add "unlisted.example:8080" to agents.writer.egress`)
			}) {
				t.Error(c.Run(t, "denials"))
			}
			if !denied(t, c, "writer", func(d wire.Denial) bool { return d.Target == "listed.example:9" && d.Reason.Code == deny.PortNotListed }) {
				t.Error(c.Run(t, "denials"))
			}
		})
		t.Run("by the table of tools, but not that a key is missing", func(t *testing.T) {
			if !denied(t, c, "writer", func(d wire.Denial) bool { return d.Target == "fs_read" && d.Reason.Code == deny.ToolNotAllowed }) ||
				denied(t, c, "writer", func(d wire.Denial) bool { return d.Target == "mem_get" }) {
				t.Error(c.Run(t, "denials"))
			}
		})
		t.Run("by the warden, when a listed name leads to a special range", func(t *testing.T) {
			if !denied(t, c, "writer", func(d wire.Denial) bool {
				return d.Target == "inner.example:80" && (d.Reason.Code == deny.SpecialRange || d.Reason.Code == deny.OwnAddress) && strings.Contains(strings.Join(d.By, " "), "warden")
			}) {
				t.Error(c.Run(t, "denials", "writer", "--json"))
			}
		})
		t.Run("by the kernel, when the dialer's id sends what is not pinned", func(t *testing.T) {
			id := stage.Container(t, c.Agent(t, "writer"), "dialer").HostID
			stage.Sh(t, fmt.Sprintf("! setpriv --reuid %d --clear-groups busybox nc -w 2 203.0.113.11 8080 </dev/null", id))
			r := jsonOf[wire.DenialsResult](t, c, "denials", "writer")
			if r.Agents[0].Witness.RefusedPackets == 0 || r.Agents[0].Witness.PinsDenied == 0 {
				t.Errorf("%+v", r.Agents[0].Witness)
			}
		})
		t.Run("other agents have none of it", func(t *testing.T) {
			if denied(t, c, "reviewer", func(d wire.Denial) bool { return strings.Contains(d.Target, "inner.example") }) {
				t.Error(c.Run(t, "denials", "reviewer"))
			}
		})
		t.Run("why names the layer, the rule and the change", func(t *testing.T) {
			for _, k := range []struct{ what, verdict, layer, text string }{
				{"listed.example:8080", wire.WhyAllowed, "egress", "is listed at"},
				{"LISTED.example.:8080", wire.WhyAllowed, "egress", "is listed at"},
				{"unlisted.example:443", wire.WhyDenied, "egress", `add "unlisted.example:443" to agents.writer.egress`},
				{"inner.example:80", wire.WhyDenied, "egress", "agents.writer.hosts"},
				{"127.0.0.1:22", wire.WhyDenied, "egress", "host:22"},
				{"/workspace/x", wire.WhyAllowed, "pod", "writable"},
				{"/workspace/../etc/shadow", wire.WhyDepends, "pod", "not written"},
				{"/etc/hosts", wire.WhyDepends, "pod", "read-only"},
				{"ptrace", wire.WhyDenied, "pod", "EPERM"},
				{"read", wire.WhyAllowed, "pod", "allow-list"},
				{"socket", wire.WhyDepends, "pod", "arguments"},
				{"message:reviewer", wire.WhyDenied, "messages", "add reviewer to agents.writer.messages.to"},
				{"message:443", wire.WhyDenied, "egress", `add "message:443" to agents.writer.egress`},
				{"secret:API_KEY", wire.WhyDenied, "vault", "delivers no secrets"},
				{"limit:memory", wire.WhyDepends, "pod", "agents.writer.limits.memory"},
				{"limit:connections", wire.WhyDepends, "egress", "512"},
			} {
				r := jsonOf[wire.WhyResult](t, c, "why", "writer", k.what)
				if r.Verdict != k.verdict || string(r.Layer) != k.layer || !strings.Contains(r.Rule+r.Mend, k.text) {
					t.Errorf("%s: %+v", k.what, r)
				}
			}
			for _, bad := range []string{"nonsense", "a:b", "x:99999", "message:", "limit:speed"} {
				if r := c.Try(t, "why", "writer", bad); r.Exit == 0 {
					t.Errorf("%s: %s", bad, r)
				}
			}
		})
		t.Run("what is suggested allows it, and nothing else", func(t *testing.T) {
			out := c.Run(t, "egress", "suggest", "writer")
			if !strings.Contains(out, `- "unlisted.example:8080"`) || !strings.Contains(out, `- "listed.example:9"`) || strings.Contains(out, `- "unlisted.example:53"`) ||
				strings.Contains(out, `- "inner`) || strings.Contains(out, `- "*`) {
				t.Error(out)
			}
			write(t, c.Dir, strings.Replace(pair, "egress: ['listed.example:8080']", "egress: ['listed.example:8080', \"unlisted.example:8080\"]", 1))
			c.Run(t, "up")
			if r := jsonOf[wire.WhyResult](t, c, "why", "writer", "unlisted.example:8080"); r.Code == deny.NotListed {
				t.Errorf("%+v", r)
			}
			if out := c.Run(t, "egress", "suggest", "writer"); strings.Contains(out, "unlisted.example:8080") {
				t.Error(out)
			}
		})
		c.Run(t, "down")
	})
}

// echo sends back what it gets, until the test ends.
func echo(t *testing.T, address string) {
	t.Helper()
	ln, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
			work.Go(func() { _, _ = io.Copy(c, c) })
		}
	})
	t.Cleanup(func() { _ = ln.Close(); work.Wait() })
}

func TestATemporaryDestination(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		stage.Sh(t, `
for p in 8081 8082 8083; do busybox httpd -p 203.0.113.10:$p -h /srv/www; done`)
		echo(t, "203.0.113.11:9000")
		c.Run(t, "up")
		get := func(port int) bool {
			r := c.Try(t, "exec", "writer", "--", "wget", "-q", "-O", "-", fmt.Sprintf("http://listed.example:%d/", port))
			return r.Exit == 0 && r.Stdout == "hello from outside\n"
		}
		kernelHas := func(port int) bool {
			return strings.Contains(stage.Sh(t, "nft list table inet bulkhead"), fmt.Sprintf(". %d timeout", port))
		}
		if get(8081) {
			t.Fatal("it is reached before it is allowed")
		}
		t.Run("is reached once the command has ended well", func(t *testing.T) {
			r := jsonOf[wire.AllowResult](t, c, "allow", "writer", "listed.example:8081", "--for", "1h")
			if len(r.Pinned) != 1 || r.Pinned[0].String() != "203.0.113.10:8081" || !kernelHas(8081) {
				t.Errorf("%+v\n%s", r, stage.Sh(t, "nft list table inet bulkhead"))
			}
			if !get(8081) {
				t.Error(c.Run(t, "denials", "writer"))
			}
			if get(8082) {
				t.Error("another port is open as well")
			}
			if r := c.Try(t, "exec", "reviewer", "--", "wget", "-q", "-O", "-", "http://listed.example:8081/"); r.Exit == 0 {
				t.Error("another agent has it as well")
			}
		})
		t.Run("is shown by status, plan, list and why", func(t *testing.T) {
			for _, args := range [][]string{{"status"}, {"plan"}, {"allow", "--list"}, {"why", "writer", "listed.example:8081"}} {
				if out := c.Run(t, args...); !strings.Contains(out, "listed.example:8081") || args[0] == "why" && !strings.Contains(out, "temporary") {
					t.Errorf("%v: %s", args, out)
				}
			}
		})
		t.Run("survives the warden and a restart of the agent", func(t *testing.T) {
			pid := stage.Sh(t, "pgrep -x bulkhead-warden")
			stage.Sh(t, "kill -9 "+pid)
			c.Run(t, "up")
			if !get(8081) {
				t.Error("gone with the warden")
			}
			c.Run(t, "restart", "writer")
			if !get(8081) {
				t.Error("gone with the agent's processes")
			}
		})
		t.Run("ends by itself, in kernel and gateway", func(t *testing.T) {
			c.Run(t, "allow", "writer", "listed.example:8082", "--for", "2s")
			if !get(8082) || !kernelHas(8082) {
				t.Error("not reached")
			}
			stage.Until(t, "it is over", func() bool { return !get(8082) && !kernelHas(8082) })
			if out := c.Run(t, "allow", "--list"); strings.Contains(out, "8082") {
				t.Error(out)
			}
			stage.Until(t, "the denial is recorded", func() bool {
				return denied(t, c, "writer", func(d wire.Denial) bool { return d.Target == "listed.example:8082" })
			})
		})
		t.Run("ends by itself while no warden runs", func(t *testing.T) {
			c.Run(t, "allow", "writer", "listed.example:8082", "--for", "4s")
			if !get(8082) {
				t.Error("not reached")
			}
			stage.Sh(t, "kill -9 $(pgrep -x bulkhead-warden)")
			if !kernelHas(8082) {
				t.Error("the kernel needs the warden to go on")
			}
			stage.Until(t, "it is over", func() bool { return !kernelHas(8082) })
			c.Run(t, "up")
			if get(8082) {
				t.Error("still open")
			}
		})
		t.Run("once is once", func(t *testing.T) {
			c.Run(t, "allow", "writer", "listed.example:8083", "--once")
			if !get(8083) {
				t.Error("not reached")
			}
			if get(8083) {
				t.Error("reached twice")
			}
			if out := c.Run(t, "allow", "--list"); !strings.Contains(out, "once (used)") {
				t.Error(out)
			}
		})
		t.Run("revoking cuts what is open", func(t *testing.T) {
			c.Run(t, "allow", "writer", "203.0.113.11:9000", "--for", "1h")
			c.Run(t, "exec", "writer", "--", "setsid", "sh", "-c", `(printf 'CONNECT 203.0.113.11:9000 HTTP/1.1\r\nHost: 203.0.113.11:9000\r\n\r\n'
while sleep 0.1; do echo tick || exit; done) | nc 127.0.0.1 3128 > /workspace/echo 2>&1 &`)
			ticks := func() string { return c.Run(t, "exec", "writer", "--", "grep", "-c", "tick", "/workspace/echo") }
			stage.Until(t, "the tunnel carries data", func() bool {
				return c.Try(t, "exec", "writer", "--", "grep", "-q", "tick", "/workspace/echo").Exit == 0
			})
			c.Run(t, "revoke", "writer", "203.0.113.11:9000")
			had := ticks()
			stage.Sh(t, "sleep 1")
			if now := ticks(); now != had {
				t.Errorf("%s ticks at the revocation, %s a second later", had, now)
			}
			c.Run(t, "revoke", "writer", "--all")
			if get(8081) {
				t.Error("still open after revoke --all")
			}
		})
		t.Run("what makes no sense is refused and changes nothing", func(t *testing.T) {
			for _, args := range [][]string{
				{"allow", "writer", "*.example.com:443", "--for", "1h"},
				{"allow", "writer", "dns.example:53", "--for", "1h"},
				{"allow", "writer", "listed.example:8080", "--for", "1h"}, // in the manifest
				{"allow", "writer", "listed.example:8081", "--for", "1000h"},
				{"allow", "writer", "listed.example:8081"},
				{"allow", "nobody", "listed.example:8081", "--for", "1h"},
				{"allow", "writer", "unresolvable.invalid:443", "--for", "1h"},
				{"revoke", "writer", "never.example:443"},
			} {
				if r := c.Try(t, args...); r.Exit == 0 || !strings.Contains(r.Stderr, "to mend") {
					t.Errorf("%v: %s", args, r)
				}
			}
			if out := c.Run(t, "allow", "--list"); !strings.Contains(out, "Nothing is allowed") {
				t.Error(out)
			}
			c.Run(t, "stop", "writer")
			if r := c.Try(t, "allow", "writer", "listed.example:8081", "--for", "1h"); r.Exit == 0 {
				t.Errorf("allowed for an agent that does not run: %s", r)
			}
			c.Run(t, "up")
		})
		t.Run("down ends it", func(t *testing.T) {
			c.Run(t, "allow", "writer", "listed.example:8081", "--for", "1h")
			c.Run(t, "down")
			c.Run(t, "up")
			if get(8081) {
				t.Error("still open")
			}
		})
		c.Run(t, "down")
	})
}

func TestWatchShowsWhatHappensAsItHappens(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		c.Run(t, "up")
		stage.Sh(t, "cd "+c.Dir+"; for f in all writer; do a=; [ $f = all ] || a=$f; "+c.Bin+"/bulkhead watch $a --json >/srv/watch-$f 2>&1 & echo $! >/srv/pid-$f; disown; done; sleep 1")
		has := func(file string, words ...string) func() bool {
			return func() bool {
				for line := range strings.Lines(stage.Sh(t, "cat /srv/watch-"+file)) {
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
		c.Try(t, "exec", "writer", "--", "wget", "-q", "-O", "-", "http://unlisted.example:8080/")
		c.Run(t, "exec", "writer", "--", "wget", "-q", "-O", "-", "http://listed.example:8080/")
		stage.Until(t, "a denial is shown", has("all", `"agent":"writer"`, `"denied"`, "unlisted.example:8080"))
		stage.Until(t, "a decision is shown", has("writer", `"agent":"writer"`, `"allowed"`, "listed.example:8080"))
		c.Run(t, "restart", "reviewer")
		stage.Until(t, "a restart is shown", has("all", `"agent":"reviewer"`, "stopped"))
		stage.Until(t, "a start is shown", has("all", `"agent":"reviewer"`, "ready"))
		stage.Sh(t, fmt.Sprintf("kill -9 %d", stage.Container(t, c.Agent(t, "writer"), "runtime").PID))
		stage.Until(t, "an end is shown", has("writer", `"lifecycle"`, "runtime ended"))
		stage.Until(t, "its restart is shown", has("writer", `"lifecycle"`, "restarting"))
		stage.Sh(t, "nft delete table inet bulkhead")
		stage.Until(t, "a repair is shown", has("writer", `"repair"`, "inet bulkhead"))
		stage.Sh(t, "kill -9 $(pgrep -x bulkhead-warden)")
		c.Run(t, "up")
		stage.Until(t, "the watch goes on with the next warden", func() bool {
			c.Run(t, "restart", "writer")
			return has("writer", `"lifecycle"`, "stopped")()
		})
		if has("writer", `"reviewer"`)() {
			t.Error("the watch of one agent shows another")
		}
		for _, f := range []string{"all", "writer"} {
			stage.Sh(t, "kill -INT $(cat /srv/pid-"+f+")")
		}
		stage.Until(t, "an interrupt ends it", func() bool { return stage.Sh(t, "pgrep -fc 'bulkhead watc[h]' || true") == "0\n" })
		c.Run(t, "down")
	})
}

func TestAPortOfAnAgentIsReachedByItsOperator(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		serves := strings.Replace(pair, "'echo hello from writer; exec sleep 100000'", "'mkdir /tmp/w; echo from inside > /tmp/w/index.html; for p in 8080 9999; do httpd -p 127.0.0.1:$p -h /tmp/w; done; exec sleep 100000'", 1)
		serves = strings.Replace(serves, "    role: writes\n", "    role: writes\n    ports: [8080, 8081]\n", 1)
		write(t, c.Dir, serves)
		c.Run(t, "up")
		start := func(args string) {
			stage.Sh(t, "cd "+c.Dir+"; : >/srv/forward; "+c.Bin+"/bulkhead forward "+args+" >/srv/forward 2>&1 & echo $! >/srv/pid; disown")
			stage.Until(t, "it listens", func() bool { return strings.Contains(stage.Sh(t, "cat /srv/forward"), "of writer") })
		}
		stop := func() {
			stage.Sh(t, "kill -INT $(cat /srv/pid); while kill -0 $(cat /srv/pid) 2>/dev/null; do sleep 0.05; done")
		}
		at := func() string { return strings.Fields(stage.Sh(t, "cat /srv/forward"))[0] }

		start("writer 8080")
		own := at()
		if !strings.HasPrefix(own, "127.") || strings.HasPrefix(own, "127.0.0.1:") {
			t.Errorf("the agent has no address of its own: %s", own)
		}
		if got := stage.Sh(t, "busybox wget -q -O - http://"+own+"/"); got != "from inside\n" {
			t.Errorf("%q", got)
		}
		// While it runs, nobody inside has gained anything.
		for _, agent := range []string{"writer", "reviewer"} {
			host, _, _ := strings.Cut(own, ":")
			if r := c.Try(t, "exec", agent, "--", "sh", "-c", "nc -w 2 "+host+" 8080 </dev/null"); r.Exit == 0 && agent == "reviewer" {
				t.Errorf("%s reaches the operator's listener: %s", agent, r)
			}
		}
		stop()
		if out := stage.Sh(t, "busybox wget -q -O - http://"+own+"/ 2>&1 || true"); !strings.Contains(out, "Connection refused") {
			t.Errorf("it goes on after its command: %q", out)
		}
		start("writer 8080 --listen 127.0.0.1:7000")
		if got := stage.Sh(t, "busybox wget -q -O - http://127.0.0.1:7000/"); got != "from inside\n" {
			t.Errorf("%q", got)
		}
		stop()
		start("writer 8081") // listed, but nothing listens there
		if out := stage.Sh(t, "exec 3<>/dev/tcp/"+strings.Replace(at(), ":", "/", 1)+"; cat <&3"); out != "" {
			t.Errorf("%q", out)
		}
		if out := stage.Sh(t, "sleep 1; cat /srv/forward"); !strings.Contains(out, "nothing inside answers") {
			t.Errorf("it does not say that nothing answers: %q", out)
		}
		stop()
		for _, args := range [][]string{{"writer", "9999"}, {"writer", "3128"}, {"reviewer", "8080"}} {
			r := c.Try(t, "forward", args[0], args[1])
			if r.Exit != wire.ExitBadInput || !strings.Contains(r.Stderr, "agents."+args[0]+".ports") {
				t.Errorf("%v: %s", args, r)
			}
		}
		c.Run(t, "stop", "writer")
		if r := c.Try(t, "forward", "writer", "8080"); r.Exit == 0 {
			t.Errorf("%s", r)
		}
		c.Run(t, "down")
	})
}

func TestFilesGoInAndOutOfAWorkspace(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		stage.Sh(t, "mkdir -p /srv/team/project/src; echo one > /srv/team/project/src/a; useradd -m person; chown -R person /srv/team/project")
		write(t, c.Dir, strings.Replace(pair, "    role: writes\n", "    role: writes\n    workspace: ./project\n", 1))
		c.Run(t, "up")
		if out := c.Run(t, "ws", "diff", "writer", "project"); !strings.Contains(out, "No file differs") {
			t.Error(out)
		}
		c.Run(t, "exec", "writer", "--", "sh", "-c", `cd /workspace; echo two > src/a; echo new > src/b; chmod +x src/b; mkdir .git; echo evil > .git/config
ln -s /etc/shadow shadow; ln -s / root; mkfifo pipe; printf 'x' > "$(printf 'e\033[2Jvil')"`)
		out := c.Run(t, "ws", "diff", "writer", "project")
		for _, w := range []string{"changed", "src/a", "src/b", "left out: .git", "left out: shadow: a link", "left out: pipe"} {
			if !strings.Contains(out, w) {
				t.Errorf("diff lacks %q:\n%s", w, out)
			}
		}
		if strings.Contains(out, "\x1b") {
			t.Errorf("controls reach the terminal: %q", out)
		}
		as := func(args string) string {
			return stage.Sh(t, "cd "+c.Dir+"; SUDO_UID=$(id -u person) "+c.Bin+"/bulkhead "+args+" 2>&1")
		}
		as("ws pull writer project")
		if got := stage.Sh(t, "cd /srv/team/project; cat src/a src/b; stat -c '%U %a' src/a src/b; ls -A"); !strings.HasPrefix(got, "two\nnew\nperson 644\nperson 755\n") ||
			strings.Contains(got, ".git") || strings.Contains(got, "shadow") || strings.Contains(got, "pipe") {
			t.Errorf("%q", got)
		}
		// The person cannot write there, though the command is root.
		if out := stage.Sh(t, "mkdir /srv/roots; cd "+c.Dir+"; SUDO_UID=$(id -u person) "+c.Bin+"/bulkhead ws pull writer /srv/roots 2>&1 || true; ls -A /srv/roots | wc -l"); !strings.HasSuffix(out, "\n0\n") || !strings.Contains(out, "permission denied") {
			t.Errorf("%q", out)
		}
		stage.Sh(t, "echo three > /srv/team/project/src/a; echo in > /srv/team/project/c; ln -s /etc/passwd /srv/team/project/l")
		c.Run(t, "exec", "writer", "--", "sh", "-c", "cd /workspace; rm -r src; ln -s /home/agent src")
		if r := c.Try(t, "ws", "push", "writer", "project"); r.Exit == 0 || !strings.Contains(r.Stderr, "src is not a folder") {
			t.Errorf("pushed through a link: %s", r)
		}
		c.Run(t, "exec", "writer", "--", "rm", "/workspace/src")
		c.Run(t, "ws", "push", "writer", "project")
		if got := c.Run(t, "exec", "writer", "--", "sh", "-c", "cd /workspace; cat src/a c; stat -c %u src/a c src; ls l 2>&1; echo mine > src/a; ls -A /home/agent"); !strings.HasPrefix(got, "three\nin\n1000\n1000\n1000\n") || !strings.Contains(got, "No such file") {
			t.Errorf("%q", got)
		}
		if r := c.Try(t, "ws", "pull", "writer", "project/c"); r.Exit == 0 {
			t.Errorf("%s", r)
		}
		c.Run(t, "down")
	})
}

func TestPresetsFollowTheClientsOfTheHost(t *testing.T) {
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skipf("npm, whose configuration is asked, is not installed: %v", err)
	}
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		registry := func(url string) {
			stage.Sh(t, "useradd -m person 2>/dev/null || true; unset npm_config_registry NPM_CONFIG_REGISTRY; echo registry="+url+" > ~person/.npmrc; chown person ~person/.npmrc")
		}
		as := func(args string) string {
			return stage.Sh(t, "cd "+c.Dir+"; unset npm_config_registry NPM_CONFIG_REGISTRY; SUDO_UID=$(id -u person) "+c.Bin+"/bulkhead "+args+" 2>&1")
		}
		registry("http://npm.corp.example:4873/")
		write(t, c.Dir, strings.Replace(pair, "egress: ['listed.example:8080']", "egress: ['listed.example:8080', npm, github]", 1))
		if out := as("plan"); !strings.Contains(out, "npm: npm.corp.example:4873") || !strings.Contains(out, "github: api.github.com:443") {
			t.Error(out)
		}
		as("up")
		listed := func(target string) bool {
			return jsonOf[wire.WhyResult](t, c, "why", "writer", target).Code != deny.NotListed
		}
		if !listed("npm.corp.example:4873") || !listed("api.github.com:443") || listed("npm.other.example:443") {
			t.Error(c.Run(t, "why", "writer", "npm.corp.example:4873"))
		}
		registry("https://npm.other.example/")
		stage.Sh(t, "kill -9 $(pgrep -x bulkhead-warden); "+c.Bin+"/bulkhead-warden >/dev/null 2>&1 & disown; sleep 0.1")
		stage.Until(t, "the next warden answers", func() bool { return c.Try(t, "status").Exit == 0 })
		if !listed("npm.corp.example:4873") || listed("npm.other.example:443") {
			t.Error("what a preset stands for changed without up")
		}
		if out := as("plan"); !strings.Contains(out, "egress: + npm.other.example:443") || !strings.Contains(out, "egress: - npm.corp.example:4873") {
			t.Error(out)
		}
		as("up")
		if listed("npm.corp.example:4873") || !listed("npm.other.example:443") {
			t.Error("up does not follow the client's configuration")
		}
		registry("file:///nowhere")
		if out := stage.Sh(t, "cd "+c.Dir+"; SUDO_UID=$(id -u person) "+c.Bin+"/bulkhead up 2>&1 || echo refused"); !strings.Contains(out, "preset npm") || !strings.HasSuffix(out, "refused\n") {
			t.Error(out)
		}
		c.Run(t, "down")
	})
}
