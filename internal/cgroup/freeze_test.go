package cgroup

import "testing"

func TestStateIsReadBehindAnyName(t *testing.T) {
	for stat, want := range map[string]bool{
		"12 (sleep) T 1 12":     true,
		"12 (sleep) t 1 12":     true,
		"12 (sleep) Z 1 12":     true,
		"12 (sleep) R 1 12":     false,
		"12 (sleep) S 1 12":     false,
		"12 (sleep) D 1 12":     false,
		"12 (a) T (b) R 1 12":   false,
		"12 (a) R (b)) T 1 12":  true,
		"12 (sleep)":            false,
		"":                      false,
		"12 (sleep) ":           false,
		"12 (evil) T 1) S 1 12": false,
	} {
		if got := haltedState(stat); got != want {
			t.Errorf("%q: %v", stat, got)
		}
	}
}

func FuzzHaltedState(f *testing.F) {
	f.Add("12 (sleep) T 1 12")
	f.Fuzz(func(t *testing.T, s string) {
		// Only what follows the last bracket counts.
		if haltedState(s) != haltedState("1 (x"+s) {
			t.Errorf("%q is read differently behind a name", s)
		}
	})
}
