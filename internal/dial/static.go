package dial

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// ProxyAddress is where the runtime finds the HTTP proxy. 3128 is the port
// that proxies are known by.
const ProxyAddress = "127.0.0.1:3128"

// synthetic are the ranges that listed names may get their addresses from, in
// this order: the first that holds no address that the manifest itself names.
// Each is ordinary unicast to every client's check, and was never announced to
// the internet for public services (docs/decisions/0004).
var synthetic = []netip.Prefix{
	netip.MustParsePrefix("11.77.0.0/16"),
	netip.MustParsePrefix("22.77.0.0/16"),
	netip.MustParsePrefix("26.77.0.0/16"),
	netip.MustParsePrefix("28.77.0.0/16"),
	netip.MustParsePrefix("30.77.0.0/16"),
}

// maxStatic keeps the search for a free address short. Names beyond it are
// reached by the proxy only.
const maxStatic = 32768

// Static is how listed destinations look inside the runtime.
type Static struct {
	Hosts     []string        // lines for the runtime's hosts file, "11.77.3.9 api.example.com"
	Listeners []wire.Listener // what the shim listens on; the first one is the HTTP proxy
	Loopback  []netip.Prefix  // for engine.Network.Loopback of the runtime
	Proxy     string          // ProxyAddress, for HTTP_PROXY and its siblings: "http://" + Proxy
}

// StaticFor computes the synthetic addresses of an agent: one per listed name
// and none twice. An address depends on its name alone, except when two names
// of one agent hash alike; then the later one in alphabetical order moves on.
//
// Suffixes ("*.example.com") have no list of names and are reached by the
// proxy only. A literal address becomes local itself, so that it is reached as
// what it is, private ones included: the manifest named it. One that means the
// runtime itself or its link is reached by the proxy only.
func StaticFor(a *team.Agent) Static {
	s := Static{Proxy: ProxyAddress, Listeners: []wire.Listener{{Address: ProxyAddress}}}
	ports := map[string][]uint16{}
	var literals []netip.AddrPort
	for _, d := range a.Egress {
		switch {
		case d.Host == "" && d.Address.IsValid() && ordinary(d.Address.Unmap()):
			literals = append(literals, netip.AddrPortFrom(d.Address.Unmap(), d.Port))
		case d.Host != "" && !strings.HasPrefix(d.Host, "*."):
			ports[d.Host] = append(ports[d.Host], d.Port)
		}
	}
	names := make([]string, 0, len(ports))
	for n := range ports {
		names = append(names, n)
	}
	slices.Sort(names)
	prefix := choose(literals)
	taken := map[netip.Addr]bool{}
	for _, l := range literals {
		taken[l.Addr()] = true
	}
	for _, n := range names[:min(len(names), maxStatic)] {
		addr := place(prefix, n, taken)
		taken[addr] = true
		s.Hosts = append(s.Hosts, addr.String()+" "+n)
		slices.Sort(ports[n])
		for _, p := range slices.Compact(ports[n]) {
			s.Listeners = append(s.Listeners, wire.Listener{
				Address: netip.AddrPortFrom(addr, p).String(), Target: n + ":" + strconv.Itoa(int(p)),
			})
		}
	}
	if len(names) > 0 {
		s.Loopback = append(s.Loopback, prefix)
	}
	slices.SortFunc(literals, netip.AddrPort.Compare)
	for i, l := range slices.Compact(literals) {
		if i == 0 || l.Addr() != literals[i-1].Addr() {
			s.Loopback = append(s.Loopback, netip.PrefixFrom(l.Addr(), l.Addr().BitLen()))
		}
		s.Listeners = append(s.Listeners, wire.Listener{Address: l.String(), Target: l.String()})
	}
	return s
}

// ordinary says whether an address can stand on lo for the destination that it
// names outside.
func ordinary(a netip.Addr) bool {
	return !a.IsLoopback() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLinkLocalUnicast() && a.Zone() == ""
}

func choose(literals []netip.AddrPort) netip.Prefix {
	for _, p := range synthetic {
		if !slices.ContainsFunc(literals, func(l netip.AddrPort) bool { return p.Contains(l.Addr()) }) {
			return p
		}
	}
	return synthetic[0] // place keeps clear of the literal addresses in it
}

// place finds the name's address: the hash of the name in the prefix, or the
// next free one. Hosts .0 and .255 of each /24 are left out, since some
// programs take them for network and broadcast.
func place(prefix netip.Prefix, name string, taken map[netip.Addr]bool) netip.Addr {
	sum := sha256.Sum256([]byte(name))
	base := prefix.Addr().As4()
	for n := binary.BigEndian.Uint16(sum[:]); ; n++ {
		if low := byte(n); low == 0 || low == 255 { // #nosec G115 -- the low byte is meant
			continue
		}
		addr := netip.AddrFrom4([4]byte{base[0], base[1], byte(n >> 8), byte(n)}) // #nosec G115 -- both bytes of n
		if !taken[addr] {
			return addr
		}
	}
}
