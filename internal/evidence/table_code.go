package evidence

import (
	"path/filepath"

	"bulkhead/internal/deny"
	"bulkhead/internal/evidence/attempt"
)

// codeAttacks are on code that gateways have run: by it, on the agent whose it
// is, and on the way to it. All that is attacked from everywhere is attacked
// from there as well.
func codeAttacks() []Attack {
	own := func(id, attemptName, title, tries, reference string, paths func(Agent) []string) Attack {
		return Attack{
			ID: id, Title: title, Tries: tries, Attempt: attemptName, Layer: deny.LayerPod, From: byCode, At: AtNobody, Reference: reference, OnlyThere: true,
			Aim:      func(from, _ Agent, _ World) attempt.Request { return attempt.Request{Paths: paths(from)} },
			Controls: at(FromCode, anothers()...),
		}
	}
	sibling := func(id, attemptName, title, tries, reference string, controls ...Control) Attack {
		return Attack{
			ID: id, Title: title, Tries: tries, Attempt: attemptName, Layer: deny.LayerPod, From: byCode, At: AtNobody, Reference: reference,
			Aim:      func(from, _ Agent, _ World) attempt.Request { return attempt.Request{PIDs: from.Siblings} },
			Controls: at(FromCode, controls...), Also: looks("absent"),
		}
	}
	return []Attack{
		own("code.files", "file.read", "read its own agent's files", "list the home, workspace, data, sockets and logs of the agent whose code it is", "CWE-653",
			func(a Agent) []string { return a.Secrets() }),
		own("code.sockets", "socket.connect", "speak as its own agent", "connect to the gateway, launcher and shim sockets of the agent whose code it is, and to the one that runs code", "CWE-441; unix(7)",
			func(a Agent) []string {
				return append(a.Sockets(), a.Place.ProcSocket(), a.Place.AdapterSocket())
			}),
		{
			ID: "code.socket_of", Title: "run code as another agent", Tries: "connect to the socket by which the other's gateway has code run", Attempt: "socket.connect",
			Layer: deny.LayerAccount, From: everywhere, At: AtOthers, Reference: "CWE-94; unix(7)", OnlyThere: true, None: "it has no code run",
			Aim: func(_, at Agent, _ World) attempt.Request {
				return attempt.Request{Paths: []string{at.Place.ProcSocket()}}
			},
			Controls: anothers(),
		},
		sibling("code.see", "process.see", "watch the processes of the agent whose code it is", "scan /proc for foreign ids and for the host's numbers of its agent's processes", "pid_namespaces(7)",
			Control{Mechanism: pidNS, Off: off(user, userNS), Witness: looks("absent", "ENOENT")}),
		sibling("code.signal", "process.signal", "end the agent whose code it is, its launcher or its siblings", "signal 0 to the host's numbers of its agent's processes", "kill(2)",
			Control{Mechanism: pidNS, Off: off(user, landlock), Witness: looks("ESRCH")},
			Control{Mechanism: user, Off: off(pidNS, landlock), Witness: looks("EPERM")},
			Control{Mechanism: landlock, Off: off(pidNS, user), Witness: looks("EPERM")}),
		sibling("code.ptrace", "process.ptrace", "take over the agent whose code it is", "PTRACE_SEIZE of the host's numbers of its agent's processes", "ptrace(2)",
			Control{Mechanism: user, Off: off(pidNS, userNS, seccomp, landlock), Witness: looks("EPERM")},
			Control{Mechanism: pidNS, Off: off(user, userNS, seccomp, landlock), Witness: looks("ESRCH")},
			Control{Mechanism: seccomp, Off: off(user, userNS, pidNS, landlock), Witness: filtered},
			Control{Mechanism: landlock, Off: off(user, userNS, pidNS, seccomp), Witness: looks("EPERM")}),
		sibling("code.memory", "process.memory", "read the token and the secrets of the agent whose code it is", "open /proc/PID/mem of its agent's processes, and process_vm_readv", "process_vm_readv(2)",
			Control{Mechanism: user, Off: off(pidNS, userNS, seccomp, landlock), Witness: looks("EPERM", "EACCES")},
			Control{Mechanism: pidNS, Off: off(user, userNS, seccomp, landlock), Witness: looks("ENOENT", "ESRCH")}),
	}
}

// at puts the decoys of controls in another position.
func at(p Position, list ...Control) []Control {
	for i := range list {
		list[i].From = p
	}
	return list
}

// within says whether a path lies in one of a list.
func within(path string, list []string) bool {
	for _, l := range list {
		if rel, err := filepath.Rel(l, path); err == nil && filepath.IsLocal(rel) {
			return true
		}
	}
	return false
}
