package system

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/evidence"
	"bulkhead/internal/layout"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// verify runs the command and parses its report.
func verify(t *testing.T, c stage.CLI, args ...string) (stage.Result, evidence.Report) {
	t.Helper()
	r := c.Try(t, append([]string{"verify", "--json"}, args...)...)
	var report evidence.Report
	if err := json.Unmarshal([]byte(r.Stdout), &report); err != nil {
		t.Fatalf("no report: %v\n%s", err, r)
	}
	return r, report
}

// isLeftOut says whether a report names an attack among those that the team has
// nothing for.
func isLeftOut(r evidence.Report, id string) bool {
	return slices.ContainsFunc(r.LeftOut, func(l evidence.LeftOut) bool { return slices.Contains(l.Attacks, id) })
}

// TestVerifyAttacksARunningTeam attacks from all three positions of both
// agents, through the real shim, gateway, dialer and launcher, and runs every
// control.
func TestVerifyAttacksARunningTeam(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		before := stage.Picture(t)
		c.Run(t, "up")
		running(t, c)
		r, report := verify(t, c)
		if r.Exit != 0 || !report.OK() {
			t.Errorf("verify ends with %d:\n%s", r.Exit, report.Text())
		}
		for _, a := range evidence.Attacks() {
			for _, p := range a.From {
				if p == evidence.FromCode || p == evidence.FromServer {
					continue // this team has none: TestVerifyAttacksServersCodeAndWhatIsKept
				}
				for _, agent := range []string{"writer", "reviewer"} {
					made := slices.ContainsFunc(report.Rows, func(x evidence.Row) bool {
						return x.Attack == a.ID && x.Position == p && x.Agent == agent
					})
					if !made && !isLeftOut(report, a.ID) {
						t.Errorf("%s was not made from %s of %s", a.ID, p, agent)
					}
				}
			}
		}
		// What this team has nothing of is said once, and no row is lost in it.
		for _, id := range []string{"front.port", "audit.token", "message.forge", "code.files", "topics.publish", "tool.fetch", "vault.tokens"} {
			if !isLeftOut(report, id) || slices.ContainsFunc(report.Rows, func(x evidence.Row) bool { return x.Attack == id }) {
				t.Errorf("%s should be left out, and said to be", id)
			}
		}
		for _, id := range []string{"file.other", "net.unlisted", "dialer.unlisted", "control.warden", "front.forged"} {
			if isLeftOut(report, id) {
				t.Errorf("%s is left out", id)
			}
		}
		for _, row := range report.Rows {
			if row.Verdict == evidence.NotRun {
				t.Logf("not run: %s from %s: %s", row.Attack, row.Position, row.Evidence)
				if strings.Contains(row.Evidence, "none of") || strings.HasPrefix(row.Evidence, "the team has no") {
					t.Errorf("%+v says nothing", row)
				}
			}
		}
		if report.Controls.Bit < 60 {
			t.Errorf("only %d controls bit", report.Controls.Bit)
		}
		running(t, c) // the attacks broke nothing
		// What the manifest gives and is not there is not left out: it fails.
		pin := layout.Default().Agent("pair", "writer").PinSocket()
		if err := os.Rename(pin, pin+".away"); err != nil {
			t.Fatal(err)
		}
		if r, report := verify(t, c, "--no-controls"); r.Exit != 1 || report.Unproven == 0 || report.Succeeded != 0 {
			t.Errorf("a socket of the manifest's is missing, and verify ends with %d:\n%s", r.Exit, report.Text())
		}
		if err := os.Rename(pin+".away", pin); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d rows denied, %d controls bit", report.Denied, report.Controls.Bit)
		c.Run(t, "down")
		stage.Leaves(t, before)
	})
}
