package team

import (
	"slices"
	"strings"
	"testing"
)

const withPresets = `apiVersion: bulkhead/v1
team: pair
defaults: {egress: [npm]}
agents:
  writer:
    image: pi
    mode: session
    egress: [go, "registry.example:443", {to: "proxy.example:443", sni: any}, "api.example.com:443"]
  reviewer: {image: pi, mode: session}
`

func TestPresetsAreValidOfflineAndExpandedWithTheirOrigin(t *testing.T) {
	offline, err := Parse("m.yaml", []byte(withPresets))
	if err != nil || !slices.Equal(offline.Presets, []string{"go", "npm"}) || len(offline.Agent("writer").Egress) != 3 || len(offline.Agent("reviewer").Egress) != 0 {
		t.Fatalf("%+v, %v", offline, err)
	}
	m, err := ParseWith("m.yaml", []byte(withPresets), Expansions{"npm": {"registry.example:443", "scope.example:4873"}, "go": {"proxy.example:443", "scope.example:4873"}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range m.Agent("writer").Egress {
		got = append(got, d.Target()+" "+string(d.SNI))
	}
	slices.Sort(got)
	if want := "api.example.com:443 exact, proxy.example:443 any, registry.example:443 exact, scope.example:4873 exact"; strings.Join(got, ", ") != want {
		t.Errorf("%s, want %s", strings.Join(got, ", "), want)
	}
	if r := m.Agent("reviewer").Egress; len(r) != 2 || !strings.Contains(r[1].Position, "m.yaml:3:") || !strings.Contains(r[1].Position, "preset npm") {
		t.Errorf("%+v", r)
	}
	fixed := withPresets + "    hosts: {registry.corp.example: 10.1.2.3}\n"
	fixed = strings.Replace(fixed, "reviewer: {image: pi, mode: session}", "reviewer:\n    image: pi\n    mode: session", 1)
	if _, err := Parse("m.yaml", []byte(fixed)); err != nil {
		t.Errorf("a fixed address of what may be a preset's host: %v", err)
	}
	for host, good := range map[string]bool{"registry.corp.example:443": true, "other.example:443": false} {
		if _, err := ParseWith("m.yaml", []byte(fixed), Expansions{"npm": {host}, "go": {"proxy.example:443"}}); (err == nil) != good {
			t.Errorf("a fixed address when npm is %s: %v", host, err)
		}
	}
	for name, with := range map[string]Expansions{
		"not expanded":        {"npm": {"registry.example:443"}},
		"nothing is expanded": nil,
		"a wildcard":          {"npm": {"*.example.com:443"}, "go": {"proxy.example:443"}},
		"no destination":      {"npm": {"nonsense"}, "go": {"proxy.example:443"}},
		"DNS":                 {"npm": {"dns.example:53"}, "go": {"proxy.example:443"}},
	} {
		if _, err := ParseWith("m.yaml", []byte(withPresets), with); err == nil || !strings.Contains(err.Error(), "preset") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Parse("m.yaml", []byte(strings.Replace(withPresets, "[npm]", "[{to: npm, sni: any}]", 1))); err == nil {
		t.Error("sni with a preset is taken")
	}
	if _, err := Parse("m.yaml", []byte(strings.Replace(withPresets, "[npm]", "[npn]", 1))); err == nil || !strings.Contains(err.Error(), "did you mean npm?") {
		t.Errorf("a word that is no preset, but like one: %v", err)
	}
}
