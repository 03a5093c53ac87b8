package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/wire"
)

// gatewayLog is what a gateway printed: decisions, repeats, and lines that are
// no records. Whoever takes the gateway over writes what he likes.
const gatewayLog = `2026-01-02T03:04:05.000000001Z stdout F {"schemaVersion":1,"time":"2026-01-02T03:04:05Z","team":"pair","agent":"writer","kind":"egress","verdict":"denied","target":"evil.example:443","count":1,"reason":{"layer":"egress","code":"egress.not_listed","what":"evil.example:443","why":"evil.example is not in the egress list of agent writer","mend":"add \"evil.example:443\" to agents.writer.egress in bulkhead.yaml"}}
2026-01-02T03:05:05.000000001Z stdout F {"schemaVersion":1,"time":"2026-01-02T03:05:05Z","team":"pair","agent":"writer","kind":"egress","verdict":"denied","target":"evil.example:443","count":41,"reason":{"layer":"egress","code":"egress.not_listed","what":"evil.example:443","why":"evil.example is not in the egress list of agent writer","mend":"add \"evil.example:443\" to agents.writer.egress in bulkhead.yaml"}}
2026-01-02T03:05:06.000000001Z stdout F {"schemaVersion":1,"time":"2026-01-02T03:05:06Z","team":"pair","agent":"writer","kind":"egress","verdict":"denied","target":"dns.example:53","count":1,"reason":{"layer":"egress","code":"egress.not_listed","what":"dns.example:53","why":"no","mend":"x"}}
2026-01-02T03:05:06.000000001Z stdout F {"schemaVersion":1,"time":"2026-01-02T03:05:06Z","team":"pair","agent":"writer","kind":"egress","verdict":"denied","target":"\u001b]0;evil\u0007*.example:443","count":1,"reason":{"layer":"egress","code":"egress.not_listed","what":"x","why":"no","mend":"x"}}
2026-01-02T03:05:06.000000001Z stdout F {"schemaVersion":1,"time":"2026-01-02T03:05:06Z","team":"pair","agent":"writer","kind":"egress","verdict":"denied","target":"*.cdn.example.com:443","count":1,"reason":{"layer":"egress","code":"egress.not_listed","what":"x","why":"no","mend":"x"}}
2026-01-02T03:05:07.000000001Z stdout F {"schemaVersion":1,"time":"2026-01-02T03:05:07Z","team":"pair","agent":"writer","kind":"egress","verdict":"allowed","target":"api.example.com:443","count":1}
2026-01-02T03:05:07.000000001Z stderr F {"schemaVersion":1,"kind":"egress","verdict":"denied"}
2026-01-02T03:05:07.000000001Z stdout F {"schemaVersion":1,"kind":
`

// workResults are added to sampleResults.
func workResults(t *testing.T) map[string]any {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gateway.log")
	if err := os.WriteFile(path, []byte(gatewayLog), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	at := time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC)
	out := sampleResults()
	out[wire.VerbLogs] = f
	out[wire.VerbDenials] = wire.DenialsResult{SchemaVersion: 1, Team: "pair", Agents: []wire.AgentDenials{{
		Agent: "writer",
		Denials: []wire.Denial{{
			Target: "meta.example:80", Count: 3, First: at, Last: at, By: []string{"warden"},
			Reason: deny.Reason{Layer: deny.LayerEgress, Code: deny.SpecialRange, What: "meta.example:80", Why: "meta.example resolves to 169.254.169.254", Mend: "name it under hosts \x1b[2J"},
		}},
		Witness: wire.DenialWitness{PinsGranted: 7, PinsDenied: 3, PinsByCode: map[deny.Code]uint64{deny.SpecialRange: 3}, RefusedPackets: 12, Since: at},
	}}}
	out[wire.VerbWhy] = wire.WhyResult{
		SchemaVersion: 1, Team: "pair", Agent: "writer", What: "evil.example:443", Kind: "destination", Verdict: wire.WhyDenied, Layer: deny.LayerEgress, Code: deny.NotListed,
		Rule: "evil.example is not in the egress list of agent writer", Mend: `add "evil.example:443" to agents.writer.egress in bulkhead.yaml`, Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.7")},
	}
	grant := wire.Grant{Target: "files.example.com:443", Until: at.Add(time.Hour), Once: true, At: at, By: 0}
	out[wire.VerbAllow] = wire.AllowResult{
		SchemaVersion: 1, Team: "pair", Agent: "writer", Grant: grant, Pinned: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.7:443")},
		Witness: "nftables: 1 addresses in the set of bh-pair-writer; the gateway took it",
	}
	used := grant
	used.Spent = true
	out[wire.VerbGrants] = wire.GrantsResult{SchemaVersion: 1, Team: "pair", Agents: []wire.AgentGrants{{Agent: "writer", Grants: []wire.Grant{grant, used}}}}
	out[wire.VerbRevoke] = wire.GrantsResult{SchemaVersion: 1, Team: "pair", Agents: []wire.AgentGrants{}}
	return out
}

func TestWhatTheCommandsOfDailyWorkShow(t *testing.T) {
	socket := answers(t, workResults(t))
	for _, c := range []struct {
		name string
		args []string
	}{
		{"denials", []string{"denials", "writer"}},
		{"allow", []string{"allow", "writer", "files.example.com:443", "--for", "1h"}},
		{"allow-list", []string{"allow", "--list"}},
		{"revoke", []string{"revoke", "writer", "files.example.com:443"}},
		{"why", []string{"why", "writer", "evil.example:443"}},
		{"egress-suggest", []string{"egress", "suggest", "writer"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, form := range []struct{ file, flag string }{
				{filepath.Join("testdata", "screens", c.name+".txt"), "--json=false"},
				{filepath.Join("..", "..", "docs", "contracts", "json", c.name+".json"), "--json"},
			} {
				out, errout, code := said(t, append(c.args, "--team", "pair", "--socket", socket, form.flag)...)
				if code != 0 {
					t.Errorf("exit code %d: %s", code, errout)
				}
				if strings.ContainsAny(out, "\x1b\a\u202e") {
					t.Errorf("controls reach the terminal: %q", out)
				}
				golden(t, form.file, out)
			}
		})
	}
}

func TestDenialsOfATimeOnly(t *testing.T) {
	socket := answers(t, workResults(t))
	out, _, code := said(t, "denials", "writer", "--since", "1h", "--team", "pair", "--socket", socket)
	if code != 0 || !strings.Contains(out, "writer: 0 things refused") {
		t.Errorf("%d, %q", code, out)
	}
	if _, errout, code := said(t, "denials", "--since", "-1h", "--team", "pair", "--socket", socket); code != wire.ExitBadInput {
		t.Errorf("%d, %q", code, errout)
	}
}

func FuzzRecordOf(f *testing.F) {
	for line := range strings.Lines(gatewayLog) {
		_, text, _ := strings.Cut(line, " stdout F ")
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if r, ok := recordOf(logLine{Stream: "stdout", Text: text}); ok && (r.Kind == "" || r.Verdict == "" || r.SchemaVersion != 1) {
			t.Errorf("%q is taken as %+v", text, r)
		}
		_, _ = manifestLine(text)
	})
}
