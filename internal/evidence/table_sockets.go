package evidence

import (
	"net/netip"

	"bulkhead/internal/deny"
	"bulkhead/internal/evidence/attempt"
)

// socketAttacks are kinds of socket, and destinations that are reached
// straight.
func socketAttacks() []Attack {
	return append(families(), destinations()...)
}

func families() []Attack {
	family := func(id, name, title, tries, reference string, controls ...Control) Attack {
		return Attack{
			ID: id, Title: title, Tries: tries, Attempt: name, Layer: deny.LayerPod, From: everywhere, At: AtNobody, Aim: nothing,
			Reference: reference, Controls: controls,
		}
	}
	also := func(a Attack, refusals ...string) Attack { a.Also = refusals; return a }
	lacking := func(a Attack, refusals ...string) Attack { a.Lacking = refusals; return a }
	bySeccomp := Control{Mechanism: seccomp, Witness: filtered}
	initial := []Control{
		{Mechanism: caps, Off: off(userNS), Witness: looks("EPERM")},
		{Mechanism: userNS, Off: off(caps), Witness: looks("EPERM")},
	}
	packets := []Control{
		{Mechanism: seccomp, Off: off(caps, userNS), Witness: filtered},
		{Mechanism: caps, Off: off(seccomp, userNS), Witness: looks("EPERM")},
		{Mechanism: userNS, Off: off(seccomp, caps), Witness: looks("EPERM")},
	}
	// A network namespace begins with a net.ipv4.ping_group_range of nobody.
	pings := []Control{
		{Mechanism: seccomp, Off: off(netNS), Witness: filtered},
		{Mechanism: netNS, Off: off(seccomp), Witness: looks("EACCES")},
	}
	return []Attack{
		// AppArmor is asked before the capability, and says EACCES.
		also(family("net.raw", "socket.raw", "make packets of any kind", "raw sockets for ICMP, ICMPv6, TCP and any protocol", "raw(7)", packets...), "EACCES"),
		family("net.packet", "socket.packet", "read and send frames past every rule", "socket(AF_PACKET), and the same by its old name, socket(AF_INET, SOCK_PACKET)", "CVE-2020-14386; packet(7)", packets...),
		lacking(family("net.ping_socket", "socket.ping", "have a socket for echoes, which no capability guards", "datagram sockets for ICMP and ICMPv6", "CVE-2015-3636; icmp(7), ping_group_range", pings...), "EACCES"),
		// The account's own filter leaves netlink, which the launcher needs.
		inContainersOnly(family("net.netlink", "socket.netlink", "reach the kernel by netlink", "sockets for SOCK_DIAG, NETFILTER, XFRM, AUDIT, KOBJECT_UEVENT, GENERIC", "CVE-2024-1086; netlink(7)", bySeccomp)),
		also(family("net.route", "net.route", "change addresses and routes", "RTM_NEWLINK of the loopback interface", "rtnetlink(7)", initial...), "EAFNOSUPPORT"), // servers have no netlink at all
		lacking(family("net.alg", "socket.alg", "have the kernel encrypt, which few programs and many exploits do", "socket(AF_ALG)", "CVE-2019-8912", bySeccomp), "EAFNOSUPPORT"),
		lacking(family("net.families", "socket.families", "reach protocols that few look after", "sockets of twelve families, KEY to IEEE802154", "CVE-2022-0435 (TIPC), CVE-2010-3904 (RDS), CVE-2010-2959 (CAN)",
			Control{Mechanism: seccomp, Off: off(caps, userNS), Witness: filtered}), "EAFNOSUPPORT", "ESOCKTNOSUPPORT", "EPROTONOSUPPORT", "EPERM"),
		lacking(family("net.mptcp", "socket.mptcp", "speak TCP past rules for TCP", "socket(IPPROTO_MPTCP)", "Landlock judges IPPROTO_TCP alone: Documentation/userspace-api/landlock.rst", bySeccomp), "EPROTONOSUPPORT", "ENOPROTOOPT"),
		lacking(family("net.protocols", "socket.protocols", "speak transports that rules do not name", "sockets of SCTP, UDP-Lite and DCCP, by protocol and by type alone", "CVE-2017-6074", bySeccomp), "EPROTONOSUPPORT", "ESOCKTNOSUPPORT"),
	}
}

// pinged are an address outside, the clouds' and the host's: no agent has one.
func pinged(w World) []string {
	var out []string
	for _, a := range []string{w.Unlisted, w.Unlisted6, w.Own, metadata} {
		if to, err := netip.ParseAddrPort(a); err == nil {
			out = append(out, to.Addr().String())
		}
	}
	return out
}

func destinations() []Attack {
	straight := func(id, attemptName, title, tries, reference string, to func(Agent, World) []string) Attack {
		a := Attack{
			ID: id, Title: title, Tries: tries, Attempt: attemptName, Layer: deny.LayerEgress, From: everywhere, At: AtNobody, Reference: reference,
			Aim: func(from, _ Agent, w World) attempt.Request { return attempt.Request{Addresses: to(from, w)} },
			Lacks: func(from Agent, w World) string {
				for _, address := range to(from, w) {
					if address == "" {
						return "this host has no such address"
					}
				}
				return ""
			},
			Controls: []Control{
				{Mechanism: rules, Off: off(netNS, landlock), Witness: rejected},
				{Mechanism: netNS, Off: off(rules, landlock), Witness: nowhere},
			},
		}
		if attemptName == "net.tcp" {
			a.Controls = append(a.Controls, Control{Mechanism: landlock, Off: off(rules, netNS), Witness: looks("EACCES"), From: FromGateway})
		}
		return a
	}
	at := func(addresses ...string) func(Agent, World) []string {
		return func(Agent, World) []string { return addresses }
	}
	public := func(port string) func(Agent, World) []string {
		return func(_ Agent, w World) []string {
			var out []string
			for _, a := range w.Public {
				out = append(out, a+":"+port)
			}
			return out
		}
	}
	const tcp, udp = "a TCP connection, straight", "a packet, and an answer to it"
	return []Attack{
		{
			ID: "net.multicast", Title: "find neighbours that answer to everybody", Tries: "a packet to the groups of mDNS, LLMNR and SSDP, and an answer to it", Attempt: "net.udp",
			Layer: deny.LayerEgress, From: everywhere, At: AtNobody, Reference: "MITRE ATT&CK T1557.001; RFC 6762",
			Aim: func(_, _ Agent, _ World) attempt.Request {
				return attempt.Request{Addresses: []string{"224.0.0.251:5353", "224.0.0.252:5355", "239.255.255.250:1900"}}
			},
			Uncontrolled: "the loopback of a decoy host carries no multicast; the namespace and the rules refuse any address, as the controls of net.udp show",
			Also:         append(looks("EHOSTUNREACH", "EACCES", "EPERM"), nowhere...),
		},
		{
			ID: "net.ping", Title: "carry data out in echoes", Tries: "ping an address outside, the cloud's metadata address and the host", Attempt: "net.ping",
			Layer: deny.LayerEgress, From: everywhere, At: AtNobody, Reference: "MITRE ATT&CK T1095; icmp(7), ping_group_range",
			Aim: func(_, _ Agent, w World) attempt.Request { return attempt.Request{Addresses: pinged(w)} },
			Controls: []Control{
				{Mechanism: rules, Off: off(netNS, seccomp), Witness: rejected},
				{Mechanism: netNS, Off: off(rules, seccomp), Witness: append(looks("EACCES"), nowhere...)},
				{Mechanism: seccomp, Off: off(rules, netNS), Witness: filtered},
			},
			Lacking: looks("EACCES"),
		},
		straight("net.udp", "net.udp", "reach an address that is not listed, by UDP or QUIC", udp, "RFC 9000", func(_ Agent, w World) []string { return []string{w.Unlisted} }),
		straight("net.unlisted6", "net.tcp", "reach an address that is not listed, over IPv6", tcp, "CVE-2020-13401", func(_ Agent, w World) []string { return []string{w.Unlisted6} }),
		straight("net.loopback6", "net.tcp", "reach a service on the host's ::1", tcp, "CVE-2020-8558", func(_ Agent, w World) []string { return []string{w.Loopback6} }),
		straight("net.loopback_udp", "net.udp", "reach a UDP service on the host's loopback", udp, "CVE-2020-8558", func(_ Agent, w World) []string { return []string{w.LoopbackUDP} }),
		straight("net.host", "net.tcp", "reach a service on another address of the host", tcp, "CWE-918", func(_ Agent, w World) []string { return []string{w.Own} }),
		straight("net.doh", "net.tcp", "carry data out in DNS over HTTPS", "a TCP connection to public resolvers, port 443", "RFC 8484; MITRE ATT&CK T1071.004", public("443")),
		straight("net.dot", "net.tcp", "carry data out in DNS over TLS", "a TCP connection to public resolvers, port 853", "RFC 7858; MITRE ATT&CK T1071.004", public("853")),
		straight("net.doq", "net.udp", "carry data out in DNS over QUIC", "a packet to public resolvers, port 853", "RFC 9250; MITRE ATT&CK T1071.004", public("853")),
		straight("net.dns_public", "net.dns_udp", "carry data out in DNS, past the host's resolvers", "a question to public resolvers", "MITRE ATT&CK T1071.004", public("53")),
		straight("net.metadata_task", "net.tcp", "read a task's credentials", tcp, "Amazon ECS, task IAM roles", at("169.254.170.2:80", "169.254.170.23:80")),
		straight("net.metadata_azure", "net.tcp", "read the machine's secrets from Azure's wire server", tcp, "Microsoft Azure, WireServer, 168.63.129.16", at("168.63.129.16:80", "168.63.129.16:32526")),
		straight("net.metadata_alibaba", "net.tcp", "read the cloud's credentials, Alibaba's", tcp, "Alibaba Cloud, instance metadata", at("100.100.100.200:80")),
		straight("net.metadata_oracle", "net.tcp", "read the cloud's credentials, Oracle's", tcp, "Oracle Cloud, 192.0.0.192", at("192.0.0.192:80")),
		straight("net.metadata6", "net.tcp", "read the cloud's credentials, over IPv6", tcp, "Amazon EC2, fd00:ec2::254", at("[fd00:ec2::254]:80")),
	}
}
