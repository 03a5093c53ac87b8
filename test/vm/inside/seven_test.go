//go:build vm

package inside

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/evidence"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
)

// seven is the intended team: six agents and the adapter. One is Podman's, so
// that what is done to all is done to both engines.
var seven = `apiVersion: bulkhead/v1
team: seven
orchestrator: orchestrator
defaults:
  limits: {memory: 64Mi, cpu: 1, pids: 48, disk: 32Mi}
agents:
` + one("orchestrator", "pm") + one("pm", "engineering") + one("engineering", "pm") +
	one("qa_validation", "pm") + strings.Replace(one("research_design", "pm"), "engine: cell", "engine: podman", 1) + one("growth_gtm", "pm")

func one(name, to string) string {
	return "  " + name + ": {engine: cell, rootfs: /srv/vm/rootfs, mode: service, command: [/bin/sh, -c, 'exec sleep 100000'], " +
		"channels: [all], messages: {to: [" + to + "]}}\n"
}

var sevenNames = []string{"orchestrator", "pm", "engineering", "qa_validation", "research_design", "growth_gtm", "comm_adapter"}

// pictureFile keeps what the host was before the package came.
const pictureFile = "/srv/vm/picture.json"

func sevenCLI() stage.CLI { return stage.CLI{Bin: "/usr/bin", Dir: "/srv/vm/team"} }

// allRun fails the test unless all seven come to run with every layer in force.
func allRun(t *testing.T, c stage.CLI) {
	t.Helper()
	for _, name := range sevenNames {
		stage.Until(t, name+" runs", func() bool { return c.Agent(t, name).State == "running" })
		for _, l := range c.Agent(t, name).Layers {
			if !l.InForce {
				t.Errorf("%s: layer %s is not in force: %s", name, l.Layer, l.Witness)
			}
		}
	}
}

func TestSevenFromThePackage(t *testing.T) {
	stage.Rootfs(t, "/srv/vm/rootfs")
	if err := os.MkdirAll("/srv/vm/team", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/srv/vm/team/bulkhead.yaml", []byte(seven), 0o600); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(stage.Picture(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(pictureFile, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	stage.Sh(t, "dpkg --install /srv/package/bulkhead.deb && systemctl enable --now bulkhead-warden")
	c := sevenCLI()
	stage.Until(t, "the warden answers", func() bool { return c.Try(t, "status").Exit != wire.ExitNoWarden })
	began := time.Now()
	c.Run(t, "up")
	t.Logf("up took %s", time.Since(began).Round(time.Millisecond))
	allRun(t, c)

	began = time.Now()
	r := c.Try(t, "verify", "--json")
	var rep evidence.Report
	if err := json.NewDecoder(bytes.NewBufferString(r.Stdout)).Decode(&rep); err != nil {
		t.Fatalf("%v\n%s", err, r)
	}
	t.Logf("verify took %s: %d attacks, %d denied, %d succeeded, %d not run; %d controls, %d bit, %d not run", time.Since(began).Round(time.Millisecond),
		rep.Attacks, rep.Denied, rep.Succeeded, rep.NotRun, rep.Controls.Run, rep.Controls.Bit, rep.Controls.NotRun)
	if r.Exit != wire.ExitOK || rep.Denied == 0 || rep.Succeeded != 0 || rep.Controls.Bit == 0 {
		t.Errorf("verify: exit %d\n%s", r.Exit, r.Stderr)
	}
	for _, row := range rep.Rows {
		if row.Verdict != evidence.Denied && row.Verdict != evidence.NotRun {
			t.Errorf("%+v", row)
		}
	}
	for _, row := range rep.Controls.Rows {
		if !row.Bit && row.NotRun == "" {
			t.Errorf("a control that did not bite: %+v", row)
		}
	}
	began = time.Now()
	if r := c.Try(t, "prove"); r.Exit != wire.ExitOK {
		t.Errorf("prove: %s", r)
	}
	t.Logf("prove took %s", time.Since(began).Round(time.Millisecond))

	// Acknowledged, and not yet received: it must outlive the host's restart.
	c.Run(t, "exec", "orchestrator", "--", "/.bulkhead/bulkhead-shim", "msg", "send", "--to", "pm", "--type", "notification", "--text", "before the restart")
}

func TestSevenAfterTheRestart(t *testing.T) {
	c := sevenCLI()
	stage.Until(t, "the warden answers", func() bool { return c.Try(t, "status").Exit != wire.ExitNoWarden })
	allRun(t, c)
	if got := c.Run(t, "exec", "pm", "--", "/.bulkhead/bulkhead-shim", "msg", "receive", "--wait", "10s"); !strings.Contains(got, "before the restart") {
		t.Errorf("pm received %q", got)
	}
	if r := c.Try(t, "prove"); r.Exit != wire.ExitOK {
		t.Errorf("prove: %s", r)
	}
	c.Run(t, "panic", "--why", "a test")
	for _, name := range sevenNames[:6] {
		if a := c.Agent(t, name); a.State != "fenced" || strings.Contains(a.Why, "but") {
			t.Errorf("%s is %s: %s", name, a.State, a.Why)
		}
	}
	c.Run(t, append([]string{"release"}, sevenNames[:6]...)...)
	allRun(t, c)

	c.Run(t, "down", "--purge")
	stage.Sh(t, "dpkg --purge bulkhead; systemctl daemon-reload")
	if out := stage.Sh(t, "ls -A /var/lib/bulkhead/teams /run/bulkhead 2>/dev/null || true"); out != "" {
		t.Errorf("left after the package was purged:\n%s", out)
	}
	raw, err := os.ReadFile(pictureFile)
	if err != nil {
		t.Fatal(err)
	}
	var before map[string]string
	if err := json.Unmarshal(raw, &before); err != nil {
		t.Fatal(err)
	}
	after := stage.Picture(t)
	for _, boots := range []string{"mounts", "processes", "sysctls", "cgroups"} { // differ from one boot to the next by themselves
		delete(before, boots)
		delete(after, boots)
	}
	for _, d := range stage.Differ(before, after) {
		t.Error(d)
	}
	if out := stage.Sh(t, "{ grep -e bulkhead -e /srv/vm /proc/self/mountinfo; ps -eo args --no-headers | grep '[b]ulkhead-'; find /sys/fs/cgroup -name '*bulkhead*'; grep cgroup2 /proc/self/mountinfo | grep -v nsdelegate; } || true"); out != "" {
		t.Errorf("left on the host:\n%s", out)
	}
}
