package evidence

import (
	"slices"

	"bulkhead/internal/deny"
	"bulkhead/internal/evidence/attempt"
	"bulkhead/internal/layout"
)

// controlAttacks are on control, which issues tokens, on front, which takes
// them, and on root's own sockets.
func controlAttacks() []Attack {
	loopback := func(port string) []string {
		return []string{"127.0.0.1:" + port, "localhost:" + port, "[::1]:" + port}
	}
	listens := func(from, _ Agent) (who, why string) {
		return withoutServer(from, from.Listens, layout.FrontName)
	}
	door := func(from Agent) []string {
		all := append([]string{from.Listens}, loopback(from.Listens[lastColon(from.Listens)+1:])...)
		slices.Sort(all)
		return slices.Compact(all)
	}
	refusal := looks(string(deny.NotListed), string(deny.PortNotListed), string(deny.SpecialRange), string(deny.OwnAddress), string(deny.BadTarget))
	return []Attack{
		hostFiles(Attack{
			ID: "control.socket", Title: "have a token made, a gateway admitted, a record forgotten", Tries: "connect to root's sockets of control, audit, topics, front and the adapter", Attempt: "socket.connect",
			Layer: deny.LayerAccount, Reference: "CWE-269; unix(7)", None: noServers,
			Aim: func(from, _ Agent, _ World) attempt.Request {
				q := attempt.Request{}
				for _, name := range layout.ServiceNames() {
					q.Paths = append(q.Paths, from.host().Service(name).OperatorSocket())
				}
				q.Paths = append(q.Paths, from.adapter().OperatorSocket())
				return q
			},
			Controls: roots(),
		}),
		hostFiles(Attack{
			ID: "control.warden", Title: "be the operator", Tries: "connect to the warden's socket", Attempt: "socket.connect",
			Layer: deny.LayerAccount, Reference: "CWE-269; unix(7)",
			Aim: func(from, _ Agent, _ World) attempt.Request {
				return attempt.Request{Paths: []string{from.host().WardenSocket()}}
			},
			Controls: roots(),
		}),
		hostFiles(Attack{
			ID: "control.book", Title: "make revoked tokens count again", Tries: "open control's list of tokens, and its keys, for writing", Attempt: "file.change",
			Layer: deny.LayerAccount, Reference: "CWE-613; MITRE ATT&CK T1556", None: noServer(layout.ControlName),
			Aim: func(from, _ Agent, _ World) attempt.Request {
				return attempt.Request{Paths: []string{from.host().Service(layout.ControlName).Data() + "/tokens.jsonl"}}
			},
			Controls: rootsToWrite(),
		}),
		{
			ID: "front.port", Title: "come in by the door for programs of the host", Tries: "a TCP connection, straight, to where its team's front listens", Attempt: "net.tcp",
			Layer: deny.LayerEgress, From: everywhere, At: AtNobody, Reference: "CVE-2020-15257; CWE-918", Absent: listens,
			Aim: func(from, _ Agent, _ World) attempt.Request {
				return attempt.Request{Addresses: []string{from.Listens}}
			},
			Controls: []Control{
				{Mechanism: rules, Off: off(netNS, landlock), Witness: rejected},
				{Mechanism: netNS, Off: off(rules, landlock), Witness: nowhere},
				{Mechanism: landlock, Off: off(rules, netNS), Witness: looks("EACCES"), From: FromGateway},
			},
		},
		{
			ID: "front.dialer", Title: "come in by the door for programs of the host, through its dialer", Tries: "ask the dialer for front's address, by number and by name", Attempt: "dialer.dial",
			Layer: deny.LayerEgress, From: byGateway, At: AtNobody, Reference: "CWE-918", Absent: listens,
			Aim: func(from, _ Agent, _ World) attempt.Request {
				return attempt.Request{Dialer: from.Dialer, Names: door(from)}
			},
			Controls: []Control{{Mechanism: guard, Off: off(landlock), Witness: refusal, From: FromGateway}},
		},
		{
			ID: "front.proxy", Title: "come in by the door for programs of the host, through its proxy", Tries: "CONNECT to front's address, by number and by name", Attempt: "proxy.connect",
			Layer: deny.LayerEgress, From: byRuntime, At: AtNobody, Reference: "CWE-918", Absent: listens,
			Aim: func(from, _ Agent, _ World) attempt.Request {
				return attempt.Request{Proxy: from.Proxy, Names: door(from)}
			},
			Uncontrolled: "the same guard decides as in front.dialer, whose control shows it",
			Also:         append(looks("HTTP 400"), refusal...),
		},
		serverSocket("front.socket", layout.FrontName, "answer requests that are for another agent", "CWE-300; unix(7)"),
		unproven("front.token", layout.FrontName, "answer front's requests without the gateway's token", "CWE-306", func(a Agent) string { return a.Front }),
		{
			ID: "front.forged", Title: "call tools with a token that control did not sign", Tries: "call its own gateway with no token, with nobody's, and with tokens for itself and for the other that are signed by nobody, with zeros, by a key of no name and by one in the header",
			Attempt: "gateway.forged", Layer: deny.LayerTools, From: byRuntime, At: AtOthers, Reference: "RFC 8725, 2.1 and 3.1; CVE-2015-9235",
			Aim: func(from, at Agent, _ World) attempt.Request {
				return attempt.Request{Proxy: from.Proxy, Names: []string{from.Place.Team, from.Name, at.Name}}
			},
			Uncontrolled: "the check of tokens is no mechanism of a Spec that could be switched off; test/system shows that control's are taken, and internal/identity/token has every fault by itself",
			Also:         looks(string(deny.BadToken)),
		},
		{
			ID: "front.admin", Title: "make an agent of its own", Tries: "ask its own gateway for /admin/agents, with its own token and with guesses", Attempt: "gateway.admin",
			Layer: deny.LayerTools, From: byRuntime, At: AtNobody, Reference: "CWE-306; OWASP API5:2023",
			Aim:          func(from, _ Agent, _ World) attempt.Request { return attempt.Request{Proxy: from.Proxy} },
			Uncontrolled: "that a gateway has no such path is its code and no mechanism of a Spec that could be switched off; test/system shows that front has it",
			Also:         looks("HTTP 404", "HTTP 405", string(deny.BadToken), string(deny.NotListed), string(deny.MessageInvalid), string(deny.MessageNotAllowed), string(deny.ToolInvalid)),
		},
	}
}
