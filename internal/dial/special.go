package dial

import (
	"net/netip"

	"code.dny.dev/ssrf"
)

// embedding are the IPv6 ranges that carry an IPv4 address, so that one could
// be reached through another's name. All of them are refused whole: a
// translator decides where such a packet ends, not we.
var embedding = []struct {
	prefix netip.Prefix
	name   string
}{
	{netip.MustParsePrefix("::ffff:0:0/96"), "IPv4-mapped (RFC 4291)"},
	{netip.MustParsePrefix("64:ff9b::/96"), "NAT64 (RFC 6052)"},
	{netip.MustParsePrefix("64:ff9b:1::/48"), "local-use NAT64 (RFC 8215)"},
	{netip.MustParsePrefix("2001::/32"), "Teredo (RFC 4380)"},
	{netip.MustParsePrefix("2002::/16"), "6to4 (RFC 3056)"},
	{netip.MustParsePrefix("::/96"), "IPv4-compatible, loopback and unspecified (RFC 4291)"},
	{netip.MustParsePrefix("fc00::/7"), "unique local (RFC 4193)"},
	{netip.MustParsePrefix("fe80::/10"), "link-local (RFC 4291)"},
	{netip.MustParsePrefix("ff00::/8"), "multicast (RFC 4291)"},
}

// Special names the range of IANA's special-purpose registries (IPv4: RFC
// 6890's registry; IPv6: everything outside of 2000::/3, and the registry's
// ranges inside) that a lies in. Empty: an ordinary global unicast address.
// The ranges come from code.dny.dev/ssrf, which is generated from the
// registries; testdata/addresses.txt holds both edges of each.
func Special(a netip.Addr) string {
	if !a.IsValid() {
		return "no address at all"
	}
	if a.Is4() {
		for _, p := range ssrf.IPv4DeniedPrefixes {
			if p.Contains(a) {
				return "special-purpose range " + p.String()
			}
		}
		return ""
	}
	for _, e := range embedding {
		if e.prefix.Contains(a) || e.prefix.Addr().Is4In6() && a.Is4In6() {
			return "special-purpose range " + e.prefix.String() + ", " + e.name
		}
	}
	if !ssrf.IPv6GlobalUnicast.Contains(a) {
		return "a range outside of global unicast " + ssrf.IPv6GlobalUnicast.String()
	}
	for _, p := range ssrf.IPv6DeniedPrefixes {
		if p.Contains(a) {
			return "special-purpose range " + p.String()
		}
	}
	return ""
}
