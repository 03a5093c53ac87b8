package evidence

import (
	"bulkhead/internal/deny"
	"bulkhead/internal/evidence/attempt"
)

// inward are addresses to which a listed name must not lead: its owner could
// make any agent speak to what trusts its neighbours. The probe knows loopback
// and link-local by itself.
func inward(w World) []string {
	if w.Own == "" {
		return nil
	}
	return []string{w.Own}
}

// rebindingAttacks are on listed names whose owner changes where they lead.
func rebindingAttacks() []Attack {
	refusal := looks(string(deny.SpecialRange), string(deny.OwnAddress))
	return []Attack{
		{
			ID: "dialer.rebind", Title: "be led inward by the owner of a listed name", Tries: "ask the dialer for listed names again and again while DNS changes its answer to loopback, link-local or this host, and look where the socket leads",
			Attempt: "dialer.rebind", Layer: deny.LayerEgress, From: byGateway, At: AtNobody, Reference: "CWE-350, DNS rebinding; CVE-2022-4096",
			Aim: func(from, _ Agent, w World) attempt.Request {
				return attempt.Request{Dialer: from.Dialer, Names: from.Resolved, Addresses: inward(w), Take: w.Changing}
			},
			Absent: func(from, _ Agent) (who, why string) {
				switch {
				case from.Upstream != "":
					return from.Name, "its upstream proxy resolves its names"
				case len(from.Resolved) == 0:
					return from.Name, "its manifest lists no name for which DNS is asked"
				}
				return "", ""
			},
			Controls: []Control{{Mechanism: guard, Off: off(landlock), Witness: refusal, From: FromGateway}},
			// In a live agent nobody changes the answers: where the names lead is
			// looked at, or nothing answers there.
			Also: append(looks("absent", string(deny.NameUnresolved), string(deny.Unreachable), string(deny.TooMany)), refusal...),
		},
		{
			ID: "tool.fetch", Title: "have a tool fetch from inside", Tries: "net_http_get of loopback, link-local, private and oddly spelled addresses, and of the cloud's metadata", Attempt: "tool.fetch",
			Layer: deny.LayerEgress, From: byRuntime, At: AtNobody, Reference: "CWE-918; OWASP LLM06:2025",
			Aim: func(from, _ Agent, w World) attempt.Request {
				return attempt.Request{Proxy: from.Proxy, Names: []string{
					"http://" + w.Loopback + "/", "http://localhost:" + w.Loopback[lastColon(w.Loopback)+1:] + "/", "http://[::1]/", "http://169.254.169.254/latest/meta-data/",
					"http://10.0.0.1/", "http://[::ffff:169.254.169.254]/", "http://0x7f000001/", "http://" + evil[:lastColon(evil)] + "/",
				}}
			},
			Absent: func(from, _ Agent) (who, why string) {
				if !from.Fetches {
					return from.Name, "it has no net_http_get"
				}
				return "", ""
			},
			Uncontrolled: "the same guard decides as in dialer.rebind and dialer.loopback, whose controls show it; internal/primitive/net has a name that changes its address",
			Also: looks(string(deny.NotListed), string(deny.PortNotListed), string(deny.SpecialRange), string(deny.OwnAddress), string(deny.BadTarget),
				string(deny.ToolInvalid), string(deny.ToolUnsafe)),
		},
	}
}
