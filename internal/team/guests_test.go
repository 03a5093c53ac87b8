package team

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

const guestManifest = `apiVersion: bulkhead/v1
team: pair
front:
  listen: 127.0.0.1:8484
  guests: %s
agents:
  writer: {image: pi, mode: session}
`

const wholeCeiling = `{adminTokenFile: /etc/bulkhead/admin.token, max: 1000, awake: 8, idle: 30s, egress: [api.example.com:443, "*.cdn.example.com:443", {to: any.example.com:443, sni: any}], tools: {allow: [mem, fs_read, fs_write, net], ratePerMinute: 50, memory: 4Mi, storage: 16Mi}, limits: {connections: 16}}`

func ceiling(t testing.TB, text string) *Guests {
	t.Helper()
	m, err := Parse("bulkhead.yaml", fmt.Appendf(nil, guestManifest, text))
	if err != nil {
		t.Fatal(err)
	}
	return m.Guests()
}

func TestTheCeilingOfGuestsIsStated(t *testing.T) {
	g := ceiling(t, wholeCeiling)
	if g.Max != 1000 || g.Awake != 8 || g.Idle != 30*time.Second || g.Connections != 16 || len(g.Egress) != 3 || g.Tools.MemoryBytes != 4<<20 || g.Token.Path != "/etc/bulkhead/admin.token" {
		t.Errorf("%+v", g)
	}
	g = ceiling(t, "{adminTokenFile: /t, max: 1, tools: {allow: [mem], memory: 1Mi, storage: 1Mi}}")
	if g.Awake != defaultAwake || g.Idle != defaultIdle || g.Connections != defaultConnections || g.Tools.RatePerMinute != 100 || len(g.Egress) != 0 {
		t.Errorf("%+v", g)
	}
	if m, err := Parse("bulkhead.yaml", []byte(strings.Replace(guestManifest, "  guests: %s\n", "", 1))); err != nil || m.Guests() != nil {
		t.Errorf("guests without a ceiling: %v", err)
	}
	for text, want := range map[string]string{
		"{max: 1, tools: {allow: [mem], memory: 1Mi, storage: 1Mi}}":                                            "adminTokenFile is missing",
		"{adminTokenFile: /t, tools: {allow: [mem], memory: 1Mi, storage: 1Mi}}":                                "max is missing",
		"{adminTokenFile: /t, max: 1}":                                                                          "tools is missing",
		"{adminTokenFile: /t, max: 1, tools: {memory: 1Mi, storage: 1Mi}}":                                      "does not state allow",
		"{adminTokenFile: /t, max: 1, tools: {allow: [mem], storage: 1Mi}}":                                     "does not state memory",
		"{adminTokenFile: /t, max: 1, tools: {allow: [mem], memory: 1Mi}}":                                      "does not state storage",
		"{adminTokenFile: /t, max: 0, tools: {allow: [mem], memory: 1Mi, storage: 1Mi}}":                        "front.guests.max",
		"{adminTokenFile: /t, max: 4097, tools: {allow: [mem], memory: 1Mi, storage: 1Mi}}":                     "front.guests.max",
		"{adminTokenFile: t, max: 1, tools: {allow: [mem], memory: 1Mi, storage: 1Mi}}":                         "front.guests.adminTokenFile",
		"{adminTokenFile: /t, max: 1, idle: 1s, tools: {allow: [mem], memory: 1Mi, storage: 1Mi}}":              "front.guests.idle",
		"{adminTokenFile: /t, max: 1, tools: {allow: [proc], code: {image: x}, memory: 1Mi, storage: 1Mi}}":     "no code tools",
		"{adminTokenFile: /t, max: 1, egress: ['*'], tools: {allow: [mem], memory: 1Mi, storage: 1Mi}}":         "would allow everything",
		"{adminTokenFile: /t, max: 1, limits: {memory: 1Gi}, tools: {allow: [mem], memory: 1Mi, storage: 1Mi}}": "memory",
		"{adminTokenFile: /t, max: 1, tools: {allow: [mem], memory: 1Mi, storage: 1Mi}, admin: true}":           "admin",
	} {
		_, err := Parse("bulkhead.yaml", fmt.Appendf(nil, guestManifest, text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Each request and the part of a fault that it is refused with; empty: taken.
var guestRequests = map[string]string{
	`{"name": "app1"}`: "",
	`{"name": "app1", "tools": {"allow": ["mem"], "memory": "1Mi", "storage": "1Mi", "ratePerMinute": 5}, "egress": ["api.example.com:443"], "limits": {"connections": 2}, "expiresIn": 3600}`: "",
	`{"name": "app1", "egress": ["x.cdn.example.com:443"]}`:                     "",
	`{"name": "app1", "egress": ["*.x.cdn.example.com:443"]}`:                   "",
	`{"name": "app1", "egress": ["*.cdn.example.com:443"]}`:                     "",
	`{"name": "app1", "egress": ["any.example.com:443"]}`:                       "",
	`{"name": "app1", "egress": [{"to": "any.example.com:443", "sni": "any"}]}`: "",
	`{"name": "app1", "tools": {"allow": ["mem_get", "fs_read", "net"]}}`:       "",
	`{"name": "app1", "newToken": true}`:                                        "",
	`{}`:                                                                        "name is missing",
	`{"name": "APP"}`:                                                           "cannot be an agent's name",
	`{"name": "../x"}`:                                                          "cannot be an agent's name",
	`{"name": "app1", "nam": 1}`:                                                "nam",
	`{"name": "app1", "name": "app2"}`:                                          "name",
	`{"name": "app1"} {}`:                                                       "not JSON",
	"name: app1":                                                                "not JSON",
	``:                                                                          "not JSON",
	`[]`:                                                                        "request",
	`{"name": "app1", "image": "pi"}`:                                           "image",
	`{"name": "app1", "command": ["sh"]}`:                                       "command",
	`{"name": "app1", "mounts": []}`:                                            "mounts",
	`{"name": "app1", "team": "other"}`:                                         "team",
	`{"name": "app1", "expiresIn": 0}`:                                          "expiresIn",
	`{"name": "app1", "expiresIn": 1e9}`:                                        "expiresIn",
	`{"name": "app1", "egress": ["*"]}`:                                         "would allow everything",
	`{"name": "app1", "egress": ["npm"]}`:                                       "presets are read in manifests only",
	`{"name": "app1", "egress": ["evil.example:443"]}`:                          "evil.example:443 is not within what guests may be given; to mend: ask for less; or raise front.guests.egress",
	`{"name": "app1", "egress": ["api.example.com:80"]}`:                        "api.example.com:80 is not within",
	`{"name": "app1", "egress": ["cdn.example.com:443"]}`:                       "cdn.example.com:443 is not within",
	`{"name": "app1", "egress": ["*.example.com:443"]}`:                         "*.example.com:443 is not within",
	`{"name": "app1", "egress": ["evilcdn.example.com:443"]}`:                   "is not within",
	`{"name": "app1", "egress": ["203.0.113.7:443"]}`:                           "203.0.113.7:443 is not within",
	`{"name": "app1", "egress": ["host:443"]}`:                                  "host:443 is not within",
	`{"name": "app1", "egress": [{"to": "api.example.com:443", "sni": "any"}]}`: "api.example.com:443 is not within",
	`{"name": "app1", "tools": {"allow": ["db"]}}`:                              "db is not within",
	`{"name": "app1", "tools": {"allow": ["fs"]}}`:                              "fs is not within",
	`{"name": "app1", "tools": {"allow": ["proc"], "code": {"image": "x"}}}`:    "no code tools",
	`{"name": "app1", "tools": {"allow": ["msg"]}}`:                             "msg",
	`{"name": "app1", "tools": {"ratePerMinute": 51}}`:                          "tools.ratePerMinute: 51 is more than the 50",
	`{"name": "app1", "tools": {"memory": "5Mi"}}`:                              "tools.memory: 5242880 is more",
	`{"name": "app1", "tools": {"storage": "17Mi"}}`:                            "tools.storage: 17825792 is more",
	`{"name": "app1", "limits": {"connections": 17}}`:                           "connections",
	`{"name": "app1", "limits": {"memory": "1Gi"}}`:                             "memory",
	`{"name": "app1", "tools": {"webhooks": ["https://hooks.example.org/x"]}}`:  "leads to a host that is not listed",
}

func TestARequestForAGuestIsReadAsAManifestIs(t *testing.T) {
	g := ceiling(t, wholeCeiling)
	for body, want := range guestRequests {
		out, err := g.ParseGuest([]byte(body))
		var faults Faults
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", body, err)
		case want != "" && (!errors.As(err, &faults) || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", body, err, want)
		case want == "" && (out.Agent.Tools.MemoryBytes == 0 || out.Agent.Limits.Connections == 0 || len(g.Exceeded(out.Agent)) > 0):
			t.Errorf("%s: %+v", body, out.Agent)
		}
	}
}

// A guest that was made under a higher ceiling is more than a lower one.
func TestALowerCeilingIsExceeded(t *testing.T) {
	out, err := ceiling(t, wholeCeiling).ParseGuest([]byte(`{"name": "app1", "egress": ["api.example.com:443"]}`))
	if err != nil {
		t.Fatal(err)
	}
	low := ceiling(t, "{adminTokenFile: /t, max: 1, tools: {allow: [mem], ratePerMinute: 1, memory: 1Mi, storage: 1Mi}, limits: {connections: 1}}")
	if f := low.Exceeded(out.Agent); len(f) != 8 { // a destination, three of four allowed, and four numbers
		t.Errorf("%v", f)
	}
}

func FuzzParseGuest(f *testing.F) {
	for body := range guestRequests {
		f.Add([]byte(body))
	}
	g := ceiling(f, wholeCeiling)
	f.Fuzz(func(t *testing.T, body []byte) {
		out, err := g.ParseGuest(body)
		if err != nil {
			return
		}
		if !name().MatchString(out.Agent.Name) || len(g.Exceeded(out.Agent)) > 0 || out.Agent.Image+out.Agent.Rootfs != "" || len(out.Agent.Mounts)+len(out.Agent.Command) > 0 || out.Agent.Tools.CodeImage != "" {
			t.Fatalf("%q makes %+v", body, out.Agent)
		}
	})
}
