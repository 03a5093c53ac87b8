package evidence

import (
	"slices"

	"bulkhead/internal/deny"
	"bulkhead/internal/engine"
	"bulkhead/internal/evidence/attempt"
)

// Short names for the table.
const (
	user     = engine.MechUser
	userNS   = engine.MechUserNS
	mountNS  = engine.MechMountNS
	pidNS    = engine.MechPIDNS
	netNS    = engine.MechNetNS
	readOnly = engine.MechReadOnly
	seccomp  = engine.MechSeccomp
	landlock = engine.MechLandlock
	caps     = engine.MechCaps
	rules    = engine.MechNftables
	guard    = engine.MechGuard
	gateway  = engine.MechGateway
)

// off is the list of mechanisms that a control switches off.
func off(m ...engine.Mechanism) []engine.Mechanism { return m }

// looks is the list of refusals that a mechanism is known to give.
func looks(refusals ...string) []string { return refusals }

// everywhere and its siblings are positions.
var (
	everywhere = Positions()
	containers = []Position{FromRuntime, FromGateway, FromCode, FromServer}
	byGateway  = []Position{FromGateway}
	byRuntime  = []Position{FromRuntime}
	byCode     = []Position{FromCode}
	// notGateway are those from which its own gateway is a stranger.
	notGateway = []Position{FromRuntime, FromAccount, FromCode}
)

// What the seccomp filter answers: ENOSYS by default, EPERM and its kin where
// programs depend on a certain errno.
var filtered = looks("ENOSYS", "EPERM", "EAFNOSUPPORT", "EPROTONOSUPPORT")

// What nftables' reject looks like to the program that sent the packet.
var rejected = looks("ECONNREFUSED", "EHOSTUNREACH", "ENETUNREACH", "EACCES", "EPERM")

// What a namespace with nothing but its own loopback answers; EADDRNOTAVAIL is
// for IPv6, where there may be no address to send from.
var nowhere = looks("ENETUNREACH", "ECONNREFUSED", "EADDRNOTAVAIL")

// relayed is how a dialer behind an upstream proxy refuses: it passes no socket
// of the host's network that could be aimed, marked or listened on.
const relayed = string(deny.RelayedOnly)

// proxyOf is the agent's upstream proxy: nobody but its dialer may reach it.
func proxyOf(from Agent) string { return from.Upstream }

func nothing(_, _ Agent, _ World) attempt.Request { return attempt.Request{} }

// Attacks is the table. The order is that of the report.
func Attacks() []Attack {
	return slices.Concat(
		fileAttacks(), processAttacks(), foreignAttacks(), exposedAttacks(),
		networkAttacks(), socketAttacks(), egressAttacks(), nameAttacks(), messageAttacks(),
		vaultAttacks(), knowledgeAttacks(), auditAttacks(), controlAttacks(), topicAttacks(), toolAttacks(), redirectAttacks(), codeAttacks(),
		kernelAttacks(), callAttacks(), gainAttacks(), mountAttacks(), moreMountAttacks(),
	)
}

func fileAttacks() []Attack {
	return []Attack{
		{
			ID: "file.other", Title: "read another agent's files", Tries: "list its home, workspace, data, sockets and logs, by path and through /proc/1/root",
			Attempt: "file.read", Layer: deny.LayerAccount, From: everywhere, At: AtOthers,
			Reference: "path_resolution(7)", OnlyThere: true,
			Aim: func(_, at Agent, _ World) attempt.Request { return attempt.Request{Paths: at.Secrets()} },
			Controls: []Control{
				{Mechanism: user, Off: off(mountNS, landlock), Witness: looks("EACCES")},
				{Mechanism: mountNS, Off: off(user, landlock), Witness: looks("ENOENT")},
			},
		},
		{
			ID: "file.socket", Title: "speak as another agent", Tries: "connect to its gateway, dialer, pin, launcher, grants and shim sockets",
			Attempt: "socket.connect", Layer: deny.LayerAccount, From: everywhere, At: AtOthers,
			Reference: "unix(7)", OnlyThere: true,
			Aim: func(_, at Agent, _ World) attempt.Request { return attempt.Request{Paths: at.Sockets()} },
			Controls: []Control{
				{Mechanism: user, Off: off(mountNS, landlock), Witness: looks("EACCES")},
				{Mechanism: mountNS, Off: off(user, landlock), Witness: looks("ENOENT")},
			},
		},
		{
			ID: "file.root", Title: "change the container's programs", Tries: "create a file in / and in /etc",
			Attempt: "file.root", Layer: deny.LayerPod, From: everywhere, At: AtNobody,
			Reference: "CVE-2019-5736",
			Aim:       nothing,
			Controls: []Control{
				{Mechanism: readOnly, Off: off(landlock), Witness: looks("EROFS")},
				{Mechanism: landlock, Off: off(readOnly), Witness: looks("EACCES")},
			},
		},
	}
}

func processAttacks() []Attack {
	aim := func(_, at Agent, _ World) attempt.Request { return attempt.Request{PIDs: at.PIDs} }
	return []Attack{
		{
			ID: "process.see", Title: "watch another agent's processes", Tries: "scan /proc for foreign ids and for its host process numbers",
			Attempt: "process.see", Layer: deny.LayerAccount, From: everywhere, At: AtOthers, Aim: aim,
			Reference: "pid_namespaces(7)",
			Controls:  []Control{{Mechanism: pidNS, Off: off(user, userNS), Witness: looks("absent", "ENOENT")}},
		},
		{
			ID: "process.signal", Title: "end another agent's processes", Tries: "signal 0 to its host process numbers",
			Attempt: "process.signal", Layer: deny.LayerAccount, From: everywhere, At: AtOthers, Aim: aim,
			Reference: "kill(2)",
			Controls: []Control{
				{Mechanism: pidNS, Off: off(user, landlock), Witness: looks("ESRCH")},
				{Mechanism: user, Off: off(pidNS, landlock), Witness: looks("EPERM")},
				{Mechanism: landlock, Off: off(pidNS, user), Witness: looks("EPERM")},
			},
			Also: looks("absent"),
		},
		{
			ID: "process.ptrace", Title: "take over another agent's processes", Tries: "PTRACE_SEIZE of its host process numbers",
			Attempt: "process.ptrace", Layer: deny.LayerAccount, From: everywhere, At: AtOthers, Aim: aim,
			Reference: "ptrace(2)",
			Controls: []Control{
				{Mechanism: user, Off: off(pidNS, userNS, seccomp, landlock), Witness: looks("EPERM")},
				{Mechanism: pidNS, Off: off(user, userNS, seccomp, landlock), Witness: looks("ESRCH")},
				{Mechanism: seccomp, Off: off(user, userNS, pidNS, landlock), Witness: filtered},
				{Mechanism: landlock, Off: off(user, userNS, pidNS, seccomp), Witness: looks("EPERM")},
			},
			Also: looks("absent"),
		},
		{
			ID: "process.memory", Title: "read another agent's secrets from memory", Tries: "open /proc/PID/mem and process_vm_readv",
			Attempt: "process.memory", Layer: deny.LayerAccount, From: everywhere, At: AtOthers, Aim: aim,
			Reference: "process_vm_readv(2)",
			Controls: []Control{
				{Mechanism: user, Off: off(pidNS, userNS, seccomp, landlock), Witness: looks("EPERM", "EACCES")},
				{Mechanism: pidNS, Off: off(user, userNS, seccomp, landlock), Witness: looks("ENOENT", "ESRCH")},
			},
			Also: looks("ENOSYS", "absent"),
		},
		{
			ID: "process.child", Title: "use ptrace at all", Tries: "PTRACE_SEIZE of its own child",
			Attempt: "process.child", Layer: deny.LayerPod, From: everywhere, At: AtNobody, Aim: nothing,
			Reference: "CVE-2019-13272",
			Controls:  []Control{{Mechanism: seccomp, Witness: filtered}},
		},
		{
			ID: "process.init", Title: "read the token that the shim holds", Tries: "open environ, mem and maps of PID 1",
			Attempt: "process.init", Layer: deny.LayerPod, From: []Position{FromRuntime, FromGateway}, // a shim is PID 1 there
			At: AtNobody, Aim: nothing,
			Reference:    "PR_SET_DUMPABLE in prctl(2)",
			Uncontrolled: "the shim makes itself non-dumpable; that is no mechanism of a Spec that could be switched off",
			Also:         looks("EACCES", "EPERM", "ENOENT"),
		},
	}
}

func networkAttacks() []Attack {
	direct := func(id, title, reference string, to func(World) string, more ...func(Agent) string) Attack {
		return Attack{
			ID: id, Title: title, Tries: "a TCP connection, straight", Attempt: "net.tcp", Layer: deny.LayerEgress,
			From: everywhere, At: AtNobody, Reference: reference,
			Aim: func(from, _ Agent, w World) attempt.Request {
				q := attempt.Request{Addresses: []string{to(w)}}
				for _, f := range more {
					if a := f(from); a != "" {
						q.Addresses = append(q.Addresses, a)
					}
				}
				return q
			},
			Controls: []Control{
				{Mechanism: rules, Off: off(netNS, landlock), Witness: rejected},
				{Mechanism: netNS, Off: off(rules, landlock), Witness: nowhere},
				{Mechanism: landlock, Off: off(rules, netNS), Witness: looks("EACCES"), From: FromGateway},
			},
		}
	}
	dns := func(id, attemptName, how string) Attack {
		return Attack{
			ID: id, Title: "carry data out in DNS, over " + how, Tries: "a question to the host's resolvers, to 127.0.0.53 and to a literal address",
			Attempt: attemptName, Layer: deny.LayerEgress, From: everywhere, At: AtNobody,
			Reference: "MITRE ATT&CK T1071.004",
			Aim: func(_, _ Agent, w World) attempt.Request {
				return attempt.Request{Addresses: append(slices.Clone(w.Resolvers), "127.0.0.53:53", "203.0.113.53:53")}
			},
			Controls: []Control{
				{Mechanism: rules, Off: off(netNS, landlock), Witness: rejected},
				{Mechanism: netNS, Off: off(rules, landlock), Witness: nowhere},
			},
		}
	}
	return []Attack{
		direct("net.unlisted", "reach an address that is not listed", "MITRE ATT&CK T1041", func(w World) string { return w.Unlisted }, proxyOf),
		direct("net.loopback", "reach a service on the host's loopback", "CVE-2020-15257", func(w World) string { return w.Loopback }),
		direct("net.metadata", "read the cloud's credentials", "Capital One, 2019", func(World) string { return metadata }),
		dns("net.dns_udp", "net.dns_udp", "UDP"),
		dns("net.dns_tcp", "net.dns_tcp", "TCP"),
		{
			ID: "net.abstract", Title: "reach a service of the host by an abstract socket", Tries: "connect to a listening abstract socket of the host",
			Attempt: "socket.connect", Layer: deny.LayerPod, From: everywhere, At: AtNobody, Reference: "CVE-2020-15257",
			Aim: func(_, _ Agent, w World) attempt.Request { return attempt.Request{Paths: []string{w.Abstract}} },
			Controls: []Control{
				{Mechanism: netNS, Off: off(landlock), Witness: looks("ECONNREFUSED")},
				{Mechanism: landlock, Off: off(netNS), Witness: looks("EPERM")},
			},
		},
		{
			ID: "net.vsock", Title: "reach the hypervisor past every network namespace", Tries: "socket(AF_VSOCK)",
			Attempt: "socket.vsock", Layer: deny.LayerPod, From: everywhere, At: AtNobody, Aim: nothing,
			Reference: "vsock(7)", Lacking: looks("EAFNOSUPPORT"),
			Controls: []Control{{Mechanism: seccomp, Witness: filtered}},
		},
		{
			ID: "net.vsock_high", Title: "the same past a filter that compares 64 bits", Tries: "socket(0x100000028)",
			Attempt: "socket.vsock_high", Layer: deny.LayerPod, From: everywhere, At: AtNobody, Aim: nothing,
			Reference: "the kernel takes the argument as an int", Lacking: looks("EAFNOSUPPORT"),
			Controls: []Control{{Mechanism: seccomp, Witness: filtered}},
		},
		{
			ID: "net.rules", Title: "take the firewall away", Tries: "delete our nftables table by netlink",
			Attempt: "rules.flush", Layer: deny.LayerEgress, From: everywhere, At: AtNobody, Reference: "CVE-2023-32233",
			Aim:      func(_, _ Agent, w World) attempt.Request { return attempt.Request{Table: w.Table} },
			Disturbs: true,
			Controls: []Control{
				{Mechanism: seccomp, Off: off(caps, userNS, netNS), Witness: filtered},
				{Mechanism: caps, Off: off(seccomp, userNS, netNS), Witness: looks("EPERM")},
				{Mechanism: userNS, Off: off(seccomp, caps, netNS), Witness: looks("EPERM")},
				{Mechanism: netNS, Off: off(seccomp, caps, userNS), Witness: looks("ENOENT")},
			},
		},
	}
}

// metadata is where most clouds answer.
const metadata = "169.254.169.254:80"

// evil is a name that no manifest lists: RFC 2606 keeps it from existing.
const evil = "evil.example:443"

func egressAttacks() []Attack {
	listedElsewhere := func(a Agent) []string {
		host := a.Listed
		if i := lastColon(host); i > 0 {
			host = host[:i]
		} else {
			host = "203.0.113.10"
		}
		return []string{host + ":9"} // the discard port: nobody lists it
	}
	refusal := looks(string(deny.NotListed), string(deny.PortNotListed), string(deny.SpecialRange), string(deny.OwnAddress), string(deny.BadTarget))
	ask := func(id, title string, names func(Agent) []string) []Attack {
		return []Attack{
			{
				ID: "proxy." + id, Title: title, Tries: "CONNECT through the agent's own proxy", Attempt: "proxy.connect",
				Layer: deny.LayerEgress, From: byRuntime, At: AtNobody, Reference: "RFC 9110, 9.3.6",
				Aim: func(from, _ Agent, _ World) attempt.Request {
					return attempt.Request{Proxy: from.Proxy, Names: names(from)}
				},
				Uncontrolled: "the same guard decides as in dialer." + id + ", whose control shows it",
				Also:         refusal,
			},
			{
				ID: "dialer." + id, Title: title + ", with a captured gateway", Tries: "ask the dialer itself", Attempt: "dialer.dial",
				Layer: deny.LayerEgress, From: byGateway, At: AtNobody, Reference: "docs/DESIGN.md, Egress",
				Aim: func(from, _ Agent, _ World) attempt.Request {
					return attempt.Request{Dialer: from.Dialer, Names: names(from)}
				},
				Controls: []Control{{Mechanism: guard, Off: off(landlock), Witness: refusal, From: FromGateway}},
			},
		}
	}
	passed := func(id, title, tries, attemptName string, aim func(from, at Agent, w World) attempt.Request, also ...string) Attack {
		return Attack{
			ID: id, Title: title, Tries: tries, Attempt: attemptName, Layer: deny.LayerEgress, From: byGateway, At: AtNobody, Aim: aim,
			Reference: "connect(2), AF_UNSPEC",
			Controls:  []Control{{Mechanism: rules, Off: off(landlock, seccomp), Witness: rejected, From: FromGateway}},
			Also:      also,
		}
	}
	all := slices.Concat(
		ask("unlisted", "have an unlisted name reached", func(Agent) []string { return []string{evil} }),
		ask("port", "have an unlisted port of a listed name reached", listedElsewhere),
		ask("metadata", "have the cloud's metadata address reached", func(Agent) []string { return []string{metadata} }),
	)
	return append(all,
		passed("dialer.aim", "aim a passed socket elsewhere", "connect a socket that the dialer made, fresh, and disconnected from a listed destination", "dialer.aim",
			func(from, _ Agent, w World) attempt.Request {
				q := attempt.Request{Dialer: from.Dialer, Addresses: []string{w.Unlisted, w.Loopback, metadata}}
				if a := proxyOf(from); a != "" {
					q.Addresses = append(q.Addresses, a)
				}
				if from.Listed != "" {
					q.Names = []string{from.Listed}
				}
				return q
			}, relayed),
		passed("dialer.listen", "let two captured gateways talk", "listen on one passed socket, connect with another", "dialer.listen",
			func(from, _ Agent, _ World) attempt.Request { return attempt.Request{Dialer: from.Dialer} }, relayed),
		Attack{
			ID: "dialer.mark", Title: "slip past rules by a packet mark", Tries: "SO_MARK on a passed socket", Attempt: "dialer.mark",
			Layer: deny.LayerEgress, From: byGateway, At: AtNobody, Reference: "socket(7)",
			Aim: func(from, _ Agent, _ World) attempt.Request { return attempt.Request{Dialer: from.Dialer} },
			Controls: []Control{
				{Mechanism: caps, Off: off(userNS, seccomp, landlock), Witness: looks("EPERM"), From: FromGateway},
				{Mechanism: userNS, Off: off(caps, seccomp, landlock), Witness: looks("EPERM"), From: FromGateway},
			},
			Also: looks(relayed),
		},
	)
}

func lastColon(s string) int {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == ':' {
			return i
		}
	}
	return -1
}
