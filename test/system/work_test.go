package system

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

func jsonOf[T any](t *testing.T, c stage.CLI, args ...string) T {
	t.Helper()
	var v T
	out := c.Run(t, append(args, "--json")...)
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return v
}

func denied(t *testing.T, c stage.CLI, agent string, is func(wire.Denial) bool) bool {
	t.Helper()
	for _, a := range jsonOf[wire.DenialsResult](t, c, "denials", agent).Agents {
		for _, d := range a.Denials {
			if a.Agent == agent && is(d) {
				return true
			}
		}
	}
	return false
}

func TestDenialsAreSeenExplainedAndSuggested(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		stage.Sh(t, "echo '127.0.0.1 inner.example' >> /etc/hosts")
		write(t, c.Dir, strings.Replace(pair, "egress: ['listed.example:8080']", "egress: ['listed.example:8080', 'inner.example:80']", 1))
		c.Run(t, "up")
		for _, url := range []string{"http://unlisted.example:8080/", "http://unlisted.example:8080/", "http://listed.example:9/", "http://inner.example:80/", "http://unlisted.example:53/"} {
			c.Try(t, "exec", "writer", "--", "wget", "-q", "-O", "-", url)
		}
		t.Run("by the gateway, once with a count", func(t *testing.T) {
			if !denied(t, c, "writer", func(d wire.Denial) bool {
				return d.Target == "unlisted.example:8080" && d.Reason.Code == deny.NotListed && strings.Contains(d.Reason.Mend, `add "unlisted.example:8080" to agents.writer.egress`)
			}) {
				t.Error(c.Run(t, "denials"))
			}
			if !denied(t, c, "writer", func(d wire.Denial) bool { return d.Target == "listed.example:9" && d.Reason.Code == deny.PortNotListed }) {
				t.Error(c.Run(t, "denials"))
			}
		})
		t.Run("by the warden, when a listed name leads to a special range", func(t *testing.T) {
			if !denied(t, c, "writer", func(d wire.Denial) bool {
				return d.Target == "inner.example:80" && (d.Reason.Code == deny.SpecialRange || d.Reason.Code == deny.OwnAddress) && strings.Contains(strings.Join(d.By, " "), "warden")
			}) {
				t.Error(c.Run(t, "denials", "writer", "--json"))
			}
		})
		t.Run("by the kernel, when the dialer's id sends what is not pinned", func(t *testing.T) {
			id := stage.Container(t, c.Agent(t, "writer"), "dialer").HostID
			stage.Sh(t, fmt.Sprintf("! setpriv --reuid %d --clear-groups busybox nc -w 2 203.0.113.11 8080 </dev/null", id))
			r := jsonOf[wire.DenialsResult](t, c, "denials", "writer")
			if r.Agents[0].Witness.RefusedPackets == 0 || r.Agents[0].Witness.PinsDenied == 0 {
				t.Errorf("%+v", r.Agents[0].Witness)
			}
		})
		t.Run("other agents have none of it", func(t *testing.T) {
			if denied(t, c, "reviewer", func(d wire.Denial) bool { return strings.Contains(d.Target, "inner.example") }) {
				t.Error(c.Run(t, "denials", "reviewer"))
			}
		})
		t.Run("why names the layer, the rule and the change", func(t *testing.T) {
			for _, k := range []struct{ what, verdict, layer, text string }{
				{"listed.example:8080", wire.WhyAllowed, "egress", "is listed at"},
				{"LISTED.example.:8080", wire.WhyAllowed, "egress", "is listed at"},
				{"unlisted.example:443", wire.WhyDenied, "egress", `add "unlisted.example:443" to agents.writer.egress`},
				{"inner.example:80", wire.WhyDenied, "egress", "agents.writer.hosts"},
				{"127.0.0.1:22", wire.WhyDenied, "egress", "host:22"},
				{"/workspace/x", wire.WhyAllowed, "pod", "writable"},
				{"/workspace/../etc/shadow", wire.WhyDepends, "pod", "not written"},
				{"/etc/hosts", wire.WhyDepends, "pod", "read-only"},
				{"ptrace", wire.WhyDenied, "pod", "EPERM"},
				{"read", wire.WhyAllowed, "pod", "allow-list"},
				{"socket", wire.WhyDepends, "pod", "arguments"},
			} {
				r := jsonOf[wire.WhyResult](t, c, "why", "writer", k.what)
				if r.Verdict != k.verdict || string(r.Layer) != k.layer || !strings.Contains(r.Rule+r.Mend, k.text) {
					t.Errorf("%s: %+v", k.what, r)
				}
			}
			for _, bad := range []string{"nonsense", "a:b", "x:99999"} {
				if r := c.Try(t, "why", "writer", bad); r.Exit == 0 {
					t.Errorf("%s: %s", bad, r)
				}
			}
		})
		t.Run("what is suggested allows it, and nothing else", func(t *testing.T) {
			out := c.Run(t, "egress", "suggest", "writer")
			if !strings.Contains(out, `- "unlisted.example:8080"`) || !strings.Contains(out, `- "listed.example:9"`) || strings.Contains(out, `- "unlisted.example:53"`) ||
				strings.Contains(out, `- "inner`) || strings.Contains(out, `- "*`) {
				t.Error(out)
			}
			write(t, c.Dir, strings.Replace(pair, "egress: ['listed.example:8080']", "egress: ['listed.example:8080', \"unlisted.example:8080\"]", 1))
			c.Run(t, "up")
			if r := jsonOf[wire.WhyResult](t, c, "why", "writer", "unlisted.example:8080"); r.Code == deny.NotListed {
				t.Errorf("%+v", r)
			}
			if out := c.Run(t, "egress", "suggest", "writer"); strings.Contains(out, "unlisted.example:8080") {
				t.Error(out)
			}
		})
		c.Run(t, "down")
	})
}
