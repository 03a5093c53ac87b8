package system

import (
	"encoding/json"
	"slices"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/evidence"
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
			if a.Layer == deny.LayerMessages {
				continue // this team has none: TestVerifyAttacksTheAdapter
			}
			for _, p := range a.From {
				if p == evidence.FromCode || p == evidence.FromServer {
					continue // this team has none: TestVerifyAttacksServersCodeAndWhatIsKept
				}
				for _, agent := range []string{"writer", "reviewer"} {
					if !slices.ContainsFunc(report.Rows, func(x evidence.Row) bool {
						return x.Attack == a.ID && x.Position == p && x.Agent == agent
					}) {
						t.Errorf("%s was not made from %s of %s", a.ID, p, agent)
					}
				}
			}
		}
		if report.Controls.Bit < 60 {
			t.Errorf("only %d controls bit", report.Controls.Bit)
		}
		running(t, c) // the attacks broke nothing
		t.Logf("%d rows denied, %d controls bit", report.Denied, report.Controls.Bit)
		c.Run(t, "down")
		stage.Until(t, "the warden has ended", func() bool { return c.Try(t, "status").Exit != 0 })
		for _, d := range stage.Differ(before, stage.Picture(t)) {
			t.Error(d)
		}
	})
}
