package stage2

import "testing"

func FuzzParsePlan(f *testing.F) {
	f.Add([]byte(`{"profile":{"role":"run","seccomp":true}}`))
	f.Add([]byte(`{}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := parsePlan(raw)
		if err == nil && p.Profile.Role == "" {
			t.Errorf("%q gives a plan without a role", raw)
		}
	})
}
