package shim

import (
	"slices"
	"testing"

	"bulkhead/internal/engine"
)

func TestAddedVariablesReplaceTheContainers(t *testing.T) {
	s := &shim{env: []string{"PATH=/bin", "A=1", "AB=2"}}
	if got := s.with([]string{"A=9", "C=3"}); !slices.Equal(got, []string{"PATH=/bin", "AB=2", "A=9", "C=3"}) {
		t.Error(got)
	}
}

func TestSessionOfAProcessWithAnOddName(t *testing.T) {
	for text, want := range map[string]int{"12 (a) 1 (b) S 1 12 77 0": 77, "12 (sh) R 1 12 12 34816": 12} {
		if got, ok := parseSession(text); !ok || got != want {
			t.Errorf("%q: %d %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "12 (a", "1 (a) S 1", "1 (a) S 1 2 x"} {
		if got, ok := parseSession(text); ok {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"version":1,"mode":"service","command":["x"]}`))
	f.Add([]byte(`{"version":1,"mode":"session","listeners":[{"address":"127.0.0.1:1"}],"gatewaySocket":"/x"}`))
	f.Add([]byte(`{"version":1,"mode":"task","passFiles":-1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := parseConfig(raw)
		if err != nil {
			return
		}
		if c.PassFiles < 0 || c.PassFiles > maxPassed || c.Mode != engine.ShimSession && len(c.Command) == 0 || len(c.Listeners) > 0 && c.GatewaySocket == "" {
			t.Errorf("%q was taken as %+v", raw, c)
		}
	})
}
