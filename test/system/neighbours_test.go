package system

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/evidence"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// Two teams on one host: agents of the one are attacked from those of the other,
// and never attacked from when the other's walls are looked at.
func TestVerifyAimsAtAgentsOfOtherTeams(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		c.Run(t, "up")
		other := filepath.Join(c.Dir, "other.yaml")
		if err := os.WriteFile(other, []byte(strings.Replace(pair, "team: pair", "team: other", 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		c.Run(t, "up", "-f", other)
		r, report := verify(t, c, "--team", "pair", "--no-controls")
		if r.Exit != 0 || !report.OK() {
			t.Fatalf("verify ends with %d:\n%s\n%s", r.Exit, report.Text(), r.Stderr)
		}
		aimed := map[string]int{}
		for _, row := range report.Rows {
			if strings.Contains(row.Agent, "/") {
				t.Errorf("attacked from an agent of another team: %+v", row)
			}
			if team, _, foreign := strings.Cut(row.Target, "/"); foreign {
				aimed[row.Target]++
				if team != "other" || row.Verdict != evidence.Denied {
					t.Errorf("%+v", row)
				}
			}
		}
		for _, agent := range []string{"other/writer", "other/reviewer"} {
			if aimed[agent] < 50 {
				t.Errorf("%d attacks aim at %s", aimed[agent], agent)
			}
		}
		c.Run(t, "down", "--team", "other", "--purge")
		c.Run(t, "down", "--purge")
	})
}
