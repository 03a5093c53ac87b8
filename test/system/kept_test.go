package system

import (
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/evidence"
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
  tools: {allow: [mem]}
agents:
  lead:
    rootfs: /srv/rootfs
    mode: session
    messages: {to: [worker]}
    tools: {allow: [mem, net, proc], code: {image: shell}}
    egress: ['rebind.example:8080']
    mounts: [{host: /srv/known/lead, path: /srv/notes}]
  worker:
    rootfs: /srv/rootfs
    mode: session
    messages: {to: [lead]}
    mounts: [{host: /srv/known/worker, path: /srv/notes}]
`

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
				for _, agent := range []string{"lead", "worker"} {
					here := func(x evidence.Row) bool { return x.Attack == a.ID && x.Position == p && x.Agent == agent }
					i := slices.IndexFunc(report.Rows, here)
					switch {
					case p == evidence.FromCode && agent == "worker": // it runs no code
						if i >= 0 {
							t.Errorf("%+v", report.Rows[i])
						}
					case i < 0:
						t.Errorf("%s was not made from %s of %s", a.ID, p, agent)
					case a.ID == "tool.fetch" && agent == "worker", a.ID == "code.socket_of" && agent == "lead": // the worker has neither
						if report.Rows[i].Verdict != evidence.NotRun {
							t.Errorf("%+v", report.Rows[i])
						}
					case report.Rows[i].Verdict != evidence.Denied:
						t.Errorf("%+v", report.Rows[i])
					}
				}
			}
		}
		for _, id := range []string{"kernel.unshare", "net.unlisted", "file.other", "process.signal", "mount.tmpfs"} {
			if !slices.ContainsFunc(report.Rows, func(x evidence.Row) bool {
				return x.Attack == id && x.Position == evidence.FromCode && x.Verdict == evidence.Denied
			}) {
				t.Errorf("%s was not denied to code", id)
			}
		}
		t.Logf("%d rows denied, %d not run, in %.1f s", report.Denied, report.NotRun, report.Seconds.Attacks)
		c.Run(t, "audit", "verify")
		c.Run(t, "down", "--purge")
	})
}
