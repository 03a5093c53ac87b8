package evidence

import (
	"path/filepath"

	"bulkhead/internal/deny"
	"bulkhead/internal/evidence/attempt"
	"bulkhead/internal/layout"
)

// auditAttacks are on the record of what was done.
func auditAttacks() []Attack {
	return []Attack{
		hostFiles(Attack{
			ID: "audit.log", Title: "change or cut the record of what was done", Tries: "open audit's log, its key and what root witnessed for appending, and cut them to their length", Attempt: "file.change",
			Layer: deny.LayerAccount, Reference: "MITRE ATT&CK T1070; CWE-117", None: noServer(layout.AuditName),
			Aim: func(from, _ Agent, _ World) attempt.Request {
				audit := from.host().Service(layout.AuditName)
				return attempt.Request{Paths: []string{
					filepath.Join(audit.Data(), "log.jsonl"), filepath.Join(audit.Data(), "key"), filepath.Join(audit.State, "witness.json"),
				}}
			},
			Controls: rootsToWrite(),
		}),
		{
			ID: "audit.spool", Title: "take back what it did before audit has it", Tries: "open its own gateway's store, in which records wait, and cut it to its length", Attempt: "file.change",
			Layer: deny.LayerAccount, From: notGateway, At: AtNobody, Reference: "MITRE ATT&CK T1070.001", OnlyThere: true, None: noStore,
			Aim: func(from, _ Agent, _ World) attempt.Request {
				return attempt.Request{Paths: []string{filepath.Join(from.Place.Data(), gatewayStore)}}
			},
			Controls: append(anothers(), Control{Mechanism: landlock, Off: off(user, mountNS), Witness: looks("EACCES")}),
			Also:     looks("EROFS", "EPERM"),
		},
		serverSocket("audit.socket", layout.AuditName, "write records as another agent, or say that audit has its own", "MITRE ATT&CK T1565.001; unix(7)"),
		unproven("audit.token", layout.AuditName, "write records without the gateway's token", "CWE-306", func(a Agent) string { return a.Audit }),
		{
			ID: "audit.forge", Title: "have a record of another agent taken, or taken twice", Tries: "append a record under the other's name at its own socket, before it proved who it is and with a token that is nobody's",
			Attempt: "server.append", Layer: deny.LayerTools, From: byGateway, At: AtOthers, Reference: "CWE-290; CWE-294",
			Aim: func(from, at Agent, _ World) attempt.Request {
				return attempt.Request{Paths: []string{from.Audit}, Names: []string{at.Name}}
			},
			Absent:       func(from, _ Agent) (who, why string) { return withoutServer(from, from.Audit, layout.AuditName) },
			Uncontrolled: "audit writes whose socket a record came in on, and takes each number once, by its code and by no mechanism of a Spec that could be switched off; internal/audit shows it, with the right token as well",
			Also:         looks(string(deny.BadToken)),
		},
		{
			ID: "audit.operator", Title: "have audit say or admit what root alone may ask", Tries: "greet as root does at its own socket, and ask for the log and for a new member", Attempt: "server.operator",
			Layer: deny.LayerTools, From: byGateway, At: AtNobody, Reference: "CWE-269",
			Aim: func(from, _ Agent, _ World) attempt.Request {
				return attempt.Request{Paths: []string{from.Audit}}
			},
			Absent:       func(from, _ Agent) (who, why string) { return withoutServer(from, from.Audit, layout.AuditName) },
			Uncontrolled: "which verbs a socket has is the server's code and no mechanism of a Spec that could be switched off; internal/hub shows that root's has them",
			Also:         looks("closed", string(deny.BadToken)),
		},
	}
}

// withoutServer is [Attack.Absent] of what needs one of the host's servers.
func withoutServer(a Agent, socket, name string) (who, why string) {
	if socket == "" {
		return a.Name, noServer(name)
	}
	return "", ""
}

// noServer is why attacks on a server are left out.
func noServer(name string) string { return "it has no " + name }

// serverSocket is on the socket that one of the host's servers has for another
// agent's gateway.
func serverSocket(id, name, title, reference string) Attack {
	return Attack{
		ID: id, Title: title, Tries: "connect to the socket that " + name + " has for the other agent", Attempt: "socket.connect",
		Layer: deny.LayerAccount, From: everywhere, At: AtOthers, Reference: reference, OnlyThere: true, None: noServer(name),
		Aim: func(_, at Agent, _ World) attempt.Request {
			return attempt.Request{Paths: []string{at.Place.ServiceSocket(name)}}
		},
		Controls: anothers(),
	}
}

// unproven is on its own socket of one of the host's servers, without the token
// that the warden gave to the gateway.
func unproven(id, name, title, reference string, at func(Agent) string) Attack {
	return Attack{
		ID: id, Title: title, Tries: "authenticate at its own socket with no token and with one that is nobody's", Attempt: "server.token",
		Layer: deny.LayerTools, From: byGateway, At: AtNobody, Reference: reference,
		Aim: func(from, _ Agent, _ World) attempt.Request {
			return attempt.Request{Paths: []string{at(from)}, Names: []string{name}}
		},
		Absent:       func(from, _ Agent) (who, why string) { return withoutServer(from, at(from), name) },
		Uncontrolled: "the token's check is no mechanism of a Spec that could be switched off; that the right token opens the same socket is shown by every gateway that runs, and by test/system",
		Also:         looks(string(deny.BadToken)),
	}
}
