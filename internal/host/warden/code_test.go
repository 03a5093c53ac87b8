package warden

import (
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
)

func TestTheManifestBoundsAPieceOfCode(t *testing.T) {
	for _, c := range []struct {
		code                  string
		memory, pids, gateway int64
	}{
		{"{image: base}", 512 << 20, 64, 256 << 20},
		{"{image: base, memory: 64Mi, pids: 16, output: 1Ki}", 64 << 20, 16, 256 << 20},
		{"{image: base, output: 2Mi}", 512 << 20, 64, (256 + codeOutputs) << 20},
	} {
		m, err := team.Parse("bulkhead.yaml", []byte("apiVersion: bulkhead/v1\nteam: pair\nagents:\n  writer: {image: base, mode: session, tools: {allow: [proc], code: "+c.code+"}}\n"))
		if err != nil {
			t.Fatal(err)
		}
		a := &host.Agent{Place: layout.Default().Agent("pair", "writer"), Want: m.Agents[0], IDs: layout.IDs{Account: 1, Base: 100000, Dialer: 2}}
		if s := codeSpec(layout.Default(), a); s.Limits.MemoryBytes != c.memory || s.Limits.PIDs != c.pids {
			t.Errorf("%s: %+v", c.code, s.Limits)
		}
		if s := gatewaySpec(a, "/programs"); s.Limits.MemoryBytes != c.gateway {
			t.Errorf("%s: the gateway may take %d", c.code, s.Limits.MemoryBytes)
		}
	}
}
