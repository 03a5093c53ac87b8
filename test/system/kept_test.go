package system

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/evidence"
	"bulkhead/internal/layout"
	"bulkhead/internal/prove"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// kept is a team with everything that an agent can have beside itself: audit,
// front, code, tools, messages, something to read, and a name for DNS.
const kept = `apiVersion: bulkhead/v1
team: kept
audit: true
front: {listen: "127.0.0.1:8484"}
defaults:
  limits: {memory: 128Mi, pids: 64}
  tools: {allow: [mem, vec, fs, db, events], ratePerMinute: 1000}
agents:
  lead:
    rootfs: /srv/rootfs
    mode: session
    messages: {to: [worker]}
    tools: {allow: [mem, vec, fs, db, events, net, proc], code: {image: shell}}
    egress: ['rebind.example:8080']
    mounts: [{host: /srv/known/lead, path: /srv/notes}]
  worker:
    rootfs: /srv/rootfs
    mode: session
    messages: {to: [lead]}
    mounts: [{host: /srv/known/worker, path: /srv/notes}]
`

// keptServers are those of that team.
var keptServers = []string{layout.AuditName, layout.ControlName, layout.FrontName, layout.AdapterName}

// withKept brings that team up.
func withKept(t *testing.T, bin string) stage.CLI {
	t.Helper()
	c := host(t, bin)
	stage.Rootfs(t, "/var/lib/bulkhead/images/shell/rootfs")
	stage.Sh(t, `for a in lead worker; do mkdir -p /srv/known/$a; echo known > /srv/known/$a/note.md; done; mkdir -p /srv/rootfs/srv/notes`)
	write(t, c.Dir, kept)
	c.Run(t, "up")
	return c
}

// TestVerifyAttacksServersCodeAndWhatIsKept makes the attacks that the team of
// TestVerifyAttacksARunningTeam does not have the means for.
func TestVerifyAttacksServersCodeAndWhatIsKept(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := withKept(t, bin)
		c.Run(t, "token", "issue", "lead")
		r, report := verify(t, c, "--no-controls")
		if r.Exit != 0 || report.Succeeded != 0 || report.Unproven != 0 {
			t.Errorf("verify ends with %d:\n%s", r.Exit, report.Text())
		}
		for _, a := range evidence.Attacks() {
			group, _, _ := strings.Cut(a.ID, ".")
			if !slices.Contains([]string{"vault", "knowledge", "audit", "control", "front", "code", "tool"}, group) {
				continue
			}
			for _, p := range a.From {
				agents := []string{"lead", "worker"}
				if p == evidence.FromServer {
					agents = keptServers
				}
				for _, agent := range agents {
					here := func(x evidence.Row) bool { return x.Attack == a.ID && x.Position == p && x.Agent == agent }
					i := slices.IndexFunc(report.Rows, here)
					switch {
					case p == evidence.FromCode && agent == "worker": // it runs no code
						if i >= 0 {
							t.Errorf("%+v", report.Rows[i])
						}
					case a.ID == "tool.redirect", a.ID == "code.socket_of" && agent == "lead", // the worker has none
						agent == "worker" && slices.Contains([]string{"tool.fetch", "tool.resolve", "tool.smuggle", "tool.tasks_of", "tool.kill_of"}, a.ID):
						if i >= 0 || !isLeftOut(report, a.ID) {
							t.Errorf("%s of %s is not left out", a.ID, agent)
						}
					case i < 0:
						t.Errorf("%s was not made from %s of %s", a.ID, p, agent)
					case report.Rows[i].Verdict != evidence.Denied:
						t.Errorf("%+v", report.Rows[i])
					}
				}
			}
		}
		for _, id := range []string{"kernel.unshare", "net.unlisted", "file.other", "process.signal", "mount.tmpfs"} {
			for _, p := range []evidence.Position{evidence.FromCode, evidence.FromServer} {
				if !slices.ContainsFunc(report.Rows, func(x evidence.Row) bool { return x.Attack == id && x.Position == p && x.Verdict == evidence.Denied }) {
					t.Errorf("%s was not denied to %s", id, p)
				}
			}
		}
		t.Logf("%d rows denied, %d not run, in %.1f s", report.Denied, report.NotRun, report.Seconds.Attacks)
		c.Run(t, "audit", "verify")
		proveServers(t, c)
		findTokens(t, c)
		c.Run(t, "down", "--purge")
	})
}

// proveServers opens walls of the host's servers by hand, each of which prove sees.
func proveServers(t *testing.T, c stage.CLI) {
	t.Helper()
	r, report := proven(t, c)
	if r.Exit != 0 {
		t.Fatalf("prove: %v\n%s", broken(report), report.Text())
	}
	for _, name := range keptServers {
		for _, id := range []string{"egress.agent", "syscalls", "privileges", "namespaces", "limits", "mounts", "modes", "sockets", "network", "ids", "writable", "shared"} {
			if !slices.ContainsFunc(report.Statements, func(s prove.Statement) bool { return s.Agent == name && s.ID == id && s.Holds }) {
				t.Errorf("prove says nothing of %s of %s", id, name)
			}
		}
	}
	for _, s := range report.Statements {
		if s.Agent == layout.FrontName && (s.ID == "network" || s.ID == "egress.agent") {
			t.Log(s.ID, s.Says, s.Read)
		}
	}
	h := layout.Default()
	member := h.Agent("kept", "worker").ServiceSocket(layout.AuditName)
	for _, tc := range []struct{ open, close, want string }{
		{"chmod 755 " + h.Service(layout.AuditName).Data(), "chmod 700 " + h.Service(layout.AuditName).Data(), "audit modes"},
		{"chmod 644 " + h.Service(layout.AuditName).Data() + "/log.jsonl", "chmod 600 " + h.Service(layout.AuditName).Data() + "/log.jsonl", "audit modes"},
		{"chmod 711 " + h.Service(layout.ControlName).Data() + "/keys", "chmod 700 " + h.Service(layout.ControlName).Data() + "/keys", "control modes"},
		{"chmod 666 " + h.Service(layout.ControlName).OperatorSocket(), "chmod 600 " + h.Service(layout.ControlName).OperatorSocket(), "control sockets"},
		{"chmod 666 " + member, "chmod 660 " + member, "audit sockets"},
		{"chmod 640 " + h.Service(layout.FrontName).Tokens(), "chmod 600 " + h.Service(layout.FrontName).Tokens(), "front modes"},
	} {
		stage.Sh(t, tc.open)
		_, report := proven(t, c)
		stage.Sh(t, tc.close)
		if got := broken(report); !slices.Contains(got, tc.want) {
			t.Errorf("%s: broken is %v, want %s", tc.open, got, tc.want)
		}
	}
	if r, report := proven(t, c); r.Exit != 0 {
		t.Errorf("something stayed broken: %v", broken(report))
	}
}

// findTokens leaves a token of the worker's where the lead could read it, and wants
// verify to find it there.
func findTokens(t *testing.T, c stage.CLI) {
	t.Helper()
	var book struct{ Tokens map[string]string }
	raw, err := os.ReadFile(layout.Default().Agent("kept", layout.AdapterName).AdapterTokens())
	if err == nil {
		err = json.Unmarshal(raw, &book)
	}
	token := book.Tokens["worker"]
	if err != nil || token == "" {
		t.Fatalf("the worker has no token at the adapter: %v", err)
	}
	of := strings.TrimSpace(c.Run(t, "exec", "worker", "--", "cat", "/run/bulkhead-token"))
	found := func(attack string) {
		t.Helper()
		r, report := verify(t, c, "--no-controls", "lead")
		if r.Exit != 1 || !slices.ContainsFunc(report.Rows, func(x evidence.Row) bool {
			return x.Attack == attack && x.Position == evidence.FromRuntime && x.Verdict == evidence.Succeeded
		}) {
			t.Errorf("%s does not find what was left:\n%s", attack, report.Text())
		}
		if strings.Contains(r.Stdout, token) || strings.Contains(r.Stdout, of) {
			t.Error("the report has a token in it")
		}
	}
	c.Run(t, "exec", "lead", "--", "sh", "-c", `printf '{"token":"%s"}' `+token+` > $HOME/.forgotten`)
	found("token.files")
	c.Run(t, "exec", "lead", "--", "sh", "-c", "rm $HOME/.forgotten")
	if _, line := backgroundLine(t, c, true, "exec", "lead", "--", "env", "TOKEN="+of, "sh", "-c", "echo running; exec sleep 1000"); line != "running\n" {
		t.Fatalf("%q", line)
	}
	found("token.processes")
}
