package evidence

import (
	"path/filepath"

	"bulkhead/internal/deny"
	"bulkhead/internal/evidence/attempt"
	"bulkhead/internal/layout"
)

// gatewayStore is the file in which a gateway keeps memory and records, in its
// data folder (internal/store).
const gatewayStore = "system.db"

// What it means that nothing of a kind is there.
const (
	noStore   = "its gateway keeps nothing: it has no tools"
	noServers = "it has none of the host's servers, and no messages"
)

// anothers are the controls of what is open to the target's own id alone.
func anothers() []Control {
	return []Control{
		{Mechanism: user, Off: off(mountNS, landlock), Witness: looks("EACCES")},
		{Mechanism: mountNS, Off: off(user, landlock), Witness: looks("ENOENT")},
	}
}

// roots are the controls of what is open to root alone.
func roots() []Control {
	return []Control{
		{Mechanism: mountNS, Off: off(userNS, caps, landlock), Witness: looks("ENOENT")},
		{Mechanism: userNS, Off: off(mountNS, caps, landlock), Witness: looks("EACCES")},
		{Mechanism: caps, Off: off(mountNS, userNS, landlock), Witness: looks("EACCES")},
	}
}

// rootsToWrite are roots for what would be written.
func rootsToWrite() []Control {
	return append(roots(), Control{Mechanism: landlock, Off: off(mountNS, userNS, caps), Witness: looks("EACCES")})
}

// hostFiles are those of root and of the host's servers, of which a host has
// some.
func hostFiles(a Attack) Attack {
	a.From, a.At, a.OnlyThere = everywhere, AtNobody, true
	a.Also = append(a.Also, "EPERM", "EROFS", "EACCES", "ENOENT")
	return a
}

// vaultAttacks are on secrets: tokens, keys, and what a gateway keeps for its
// agent. There are no vaults yet; what there is lies behind accounts.
func vaultAttacks() []Attack {
	return []Attack{
		hostFiles(Attack{
			ID: "vault.tokens", Title: "speak as any gateway", Tries: "open the tokens of all gateways towards the adapter and the host's servers", Attempt: "open.read",
			Layer: deny.LayerAccount, Reference: "CWE-522", None: noServers,
			Aim: func(from, _ Agent, _ World) attempt.Request {
				q := attempt.Request{Paths: []string{from.adapter().AdapterTokens()}}
				for _, name := range layout.ServiceNames() {
					q.Paths = append(q.Paths, from.host().Service(name).Tokens())
				}
				return q
			},
			Controls: roots(),
		}),
		hostFiles(Attack{
			ID: "vault.keys", Title: "sign tokens, records and evidence", Tries: "open the keys of control, of audit and of evidence", Attempt: "open.read",
			Layer: deny.LayerAccount, Reference: "CWE-320; MITRE ATT&CK T1552.004", None: "it has neither control nor audit, and no evidence was signed",
			Aim: func(from, _ Agent, _ World) attempt.Request {
				h := from.host()
				return attempt.Request{Paths: []string{
					filepath.Join(h.Service(layout.ControlName).Data(), "keys"), filepath.Join(h.Service(layout.AuditName).Data(), "key"), h.EvidenceKeys(),
				}}
			},
			Controls: roots(),
		}),
		{
			ID: "vault.token_of", Title: "use another agent's tools", Tries: "open the token of its tools through the root of its processes", Attempt: "process.file",
			Layer: deny.LayerAccount, From: everywhere, At: AtOthers, Reference: "proc_pid_root(5); CWE-522",
			Aim: func(_, at Agent, _ World) attempt.Request {
				return attempt.Request{PIDs: at.PIDs, Paths: []string{at.TokenFile}}
			},
			Controls: []Control{ // as for process.root
				{Mechanism: user, Off: off(pidNS, userNS, seccomp, landlock), Witness: looks("EACCES", "EPERM")},
				{Mechanism: pidNS, Off: off(user, userNS, seccomp, landlock), Witness: looks("ENOENT")},
				{Mechanism: landlock, Off: off(user, userNS, seccomp, pidNS), Witness: looks("EACCES", "EPERM")},
			},
			Also: looks("absent"), // the number is one of the attacker's own processes, in its own PID namespace
		},
		{
			ID: "vault.kept", Title: "read what its gateway keeps from it", Tries: "open its own gateway's data folder and the store in it", Attempt: "file.read",
			Layer: deny.LayerAccount, From: notGateway, At: AtNobody, Reference: "CWE-522", OnlyThere: true,
			Aim: func(from, _ Agent, _ World) attempt.Request {
				return attempt.Request{Paths: []string{from.Place.Data(), filepath.Join(from.Place.Data(), gatewayStore)}}
			},
			Controls: anothers(),
		},
		{
			ID: "vault.sockets", Title: "go round its own gateway", Tries: "connect to its gateway's dialer, pin, code, adapter, audit, topics and front sockets, and to root's", Attempt: "socket.connect",
			Layer: deny.LayerAccount, From: notGateway, At: AtNobody, Reference: "CWE-441; unix(7)", OnlyThere: true,
			Aim: func(from, _ Agent, _ World) attempt.Request {
				p := from.Place
				return attempt.Request{Paths: []string{
					p.DialerSocket(), p.PinSocket(), p.ProcSocket(), p.AdapterSocket(), p.ServiceSocket(layout.AuditName), p.ServiceSocket(layout.TopicsName), p.ServiceSocket(layout.FrontName),
					p.LauncherSocket(), p.GrantsSocket(), p.ShimSocket("gateway"),
				}}
			},
			Controls: anothers(),
		},
		{
			ID: "vault.store", Title: "change another agent's memory", Tries: "open the store of its gateway for writing, and cut it to its length", Attempt: "file.change",
			Layer: deny.LayerAccount, From: everywhere, At: AtOthers, Reference: "MITRE ATLAS AML.T0080, poisoned memory", OnlyThere: true, None: noStore,
			Aim: func(_, at Agent, _ World) attempt.Request {
				return attempt.Request{Paths: []string{filepath.Join(at.Place.Data(), gatewayStore)}}
			},
			Controls: append(anothers(), Control{Mechanism: landlock, Off: off(user, mountNS), Witness: looks("EACCES")}),
			Also:     looks("EROFS", "EPERM"),
		},
	}
}
