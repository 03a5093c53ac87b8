package team

import (
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Bounds of one agent's egress. 256 names keep the synthetic addresses, the
// hosts file and the sets in nftables small.
const (
	maxEgress   = 256
	maxHosts    = 256
	maxPerHost  = 16
	maxNameSize = 253 // RFC 1035, 2.3.4, in text form
)

// listed is a destination and where the file lists it.
type listed struct {
	place
	Destination
	preset string // what it comes from; empty: listed by hand
}

// at gives the line of a place, and the place in words.
func (r *reader) at(p place) (line int, words string) {
	line, column := position(p.node)
	return line, r.file + ":" + strconv.Itoa(line) + ":" + strconv.Itoa(column)
}

// egress reads a list of destinations. Entries that are faulty are left out.
func (r *reader) egress(p place) []listed {
	var out []listed
	for _, item := range r.list(p, maxEgress, "one host:port per entry") {
		to, sni := item, place{}
		at, ok := r.resolve(item)
		if !ok {
			continue
		}
		if isMapping(at.node) {
			f := r.fields(at, "{to: host:port, sni: any}", egressKeys...)
			to, sni = f["to"], f["sni"]
			r.need(at, f, "to", "write {to: host:port, sni: any}")
		}
		text, ok := r.text(to, "host:port, like api.example.com:443")
		if !ok {
			continue
		}
		if of, ok := r.preset(to, text); ok {
			if sni.node != nil {
				r.fault(sni, "remove sni; a preset's hosts are bound to their names", "sni does not go with a preset")
			}
			out = append(out, of...)
			continue
		}
		d, fault := destination(text)
		if fault != nil {
			r.fault(to, fault.mend, "%s", fault.problem)
			continue
		}
		mode := SNIMode(r.choice(sni, sniModes...))
		named := d.Host != "" && d.Host != "host"
		switch {
		case mode == SNIExact && !named:
			r.fault(sni, "remove sni, or list the destination by name", "an address has no name that TLS could show")
		case mode != "":
			d.SNI = mode
		case named:
			d.SNI = SNIExact
		default:
			// Bound by address and port alone; there is no name to compare.
			d.SNI = SNIAny
		}
		d.Line, d.Position = r.at(to)
		out = append(out, listed{place: to, Destination: d})
	}
	return out
}

// merge puts defaults before the agent's own entries and refuses entries that
// cover one another: which of the two rules holds would be a guess.
func (r *reader) merge(lists ...[]listed) []Destination {
	var out []Destination
	first := map[string]listed{}
	var wild []listed
	for _, list := range lists {
		for _, l := range list {
			other, dup := first[l.key()]
			switch {
			case dup && l.preset != "":
				continue // it is there already
			case dup && other.preset != "":
				out[slices.IndexFunc(out, func(d Destination) bool { return d.Target() == l.key() })] = l.Destination
				first[l.key()] = l
				continue
			}
			if dup {
				r.fault(l.place, "remove one of the two", "%s is listed already in line %d", l.Target(), other.Line)
				continue
			}
			first[l.key()] = l
			if strings.HasPrefix(l.Host, "*.") {
				wild = append(wild, l)
			}
			out = append(out, l.Destination)
		}
	}
	covers := make(map[string]listed, len(wild))
	for _, w := range wild {
		covers[w.key()] = w
	}
	for _, list := range lists {
		for _, l := range list {
			if l.Host == "" || l.preset != "" || first[l.key()].node != l.node {
				continue
			}
			rest := strings.TrimPrefix(l.Host, "*.")
			for {
				_, parent, ok := strings.Cut(rest, ".")
				if !ok {
					break
				}
				rest = parent
				if w, ok := covers[Destination{Host: "*." + parent, Port: l.Port}.Target()]; ok {
					r.fault(l.place, "remove one of the two", "%s is covered by %s in line %d", l.Target(), w.Target(), w.Line)
					break
				}
			}
		}
	}
	return out
}

func (l listed) key() string { return l.Target() }

// hosts reads fixed addresses of listed names.
func (r *reader) hosts(p place, egress []Destination) map[string][]netip.Addr {
	if p.node == nil {
		return nil
	}
	entries, _ := r.mapping(p, "names with addresses, like git.corp.example: 10.1.2.3")
	if len(entries) > maxHosts {
		r.fault(p, "keep at most "+strconv.Itoa(maxHosts), "there are %d fixed names", len(entries))
		return nil
	}
	out := make(map[string][]netip.Addr, len(entries))
	for _, e := range entries {
		host := strings.ToLower(e.name)
		if problem, mend := badName(host); problem != "" {
			r.fault(e.key, mend, "%s", problem)
			continue
		}
		// Which hosts a preset stands for is not known from the file alone.
		if open := r.with == nil && len(r.presets) > 0; !open && !covered(host, egress) {
			r.fault(e.key, "list "+host+":PORT under egress, or remove the line", "%s is not listed in egress, so its address would never be used", host)
		}
		if _, dup := out[host]; dup {
			r.fault(e.key, "keep one of the two", "%s is set twice", host)
		}
		var items []place
		at, ok := r.resolve(e.val)
		if !ok {
			continue
		}
		if isScalar(at.node) {
			items = []place{at}
		} else {
			items = r.list(at, maxPerHost, "one address per entry")
		}
		if len(items) == 0 {
			r.fault(e.val, "write an address, like 10.1.2.3", "%s has no address", host)
		}
		out[host] = nil
		for _, item := range items {
			s, ok := r.text(item, "an address, like 10.1.2.3")
			if !ok {
				continue
			}
			addr, problem, mend := address(s)
			if problem != "" {
				r.fault(item, mend, "%s", problem)
				continue
			}
			out[host] = append(out[host], addr)
		}
	}
	return out
}

// covered says whether an egress entry names host, exactly or by its suffix.
func covered(host string, egress []Destination) bool {
	for _, d := range egress {
		if d.Host == host || strings.HasPrefix(d.Host, "*.") && strings.HasSuffix(host, d.Host[1:]) {
			return true
		}
	}
	return false
}

type destinationFault struct{ problem, mend string }

// destination reads one host:port. The port decides nothing about the form of
// the host, so that each fault names the whole right form.
func destination(s string) (Destination, *destinationFault) {
	no := func(problem, mend string) (Destination, *destinationFault) {
		return Destination{}, &destinationFault{problem, mend}
	}
	shown := strconv.Quote(clip(s))
	switch {
	case s == "*" || strings.HasPrefix(s, "*:"):
		return no(shown+" would allow everything", "list each destination as host:port, or *.suffix:port")
	case strings.ContainsAny(s, " \t\n"):
		return no(shown+" holds a space", "write host:port and nothing else")
	case strings.Contains(s, "://"):
		return no(shown+" is a URL", "write "+fromURL(s))
	case strings.Contains(s, "@"):
		return no("the destination holds a user name", "write host:port; credentials belong into a file that the program reads")
	}
	if strings.Contains(s, "/") {
		if _, err := netip.ParsePrefix(strings.Trim(strings.SplitN(s, "]", 2)[0], "[]")); err == nil || networkAndPort(s) {
			return no(shown+" is a network", "list each address as address:port")
		}
		return no(shown+" has a path", "write "+fromURL("https://"+s))
	}
	if a, err := netip.ParseAddr(s); err == nil && a.Is6() {
		return no(shown+" has no port", "write ["+s+"]:443, with the port that is meant")
	}
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		if near := nearest(s, presets); near != "" && !strings.Contains(s, ".") {
			return no(shown+" is neither a preset nor host:port", "did you mean "+near+"? Else write "+s+":443, with the port that is meant")
		}
		return no(shown+" has no port", "write "+s+":443, with the port that is meant")
	}
	host, portText := s[:i], s[i+1:]
	port, problem, mend := portOf(portText)
	if problem != "" {
		return no(problem, mend)
	}
	if h, ok := strings.CutPrefix(host, "["); ok {
		h, closed := strings.CutSuffix(h, "]")
		a, err := netip.ParseAddr(h)
		if !closed || err != nil || a.Is4() {
			return no(shown+" is not an address", "write an IPv6 address as [2001:db8::1]:443")
		}
		host = h
	} else if strings.Contains(host, ":") {
		if _, err := netip.ParseAddr(host); err == nil {
			return no(shown+" is ambiguous", "write ["+host+"]:"+portText)
		}
		return no(shown+" is not host:port", "write one host and one port, like api.example.com:443")
	}
	if _, err := netip.ParseAddr(host); err == nil || endsInNumber(host) {
		addr, problem, mend := address(host)
		if problem != "" {
			return no(problem, mend)
		}
		if addr.IsLoopback() {
			return no(shown+" is this host's loopback", "write host:"+portText)
		}
		return Destination{Address: addr, Port: port}, nil
	}
	lower := strings.ToLower(host)
	if suffix, ok := strings.CutPrefix(lower, "*."); ok {
		if problem, mend := badName(suffix); problem != "" {
			return no(problem, mend)
		}
		if ps, found := suffixBelow(suffix); found {
			mend := "go one label deeper, like *.example." + suffix + ":" + portText
			if ps != suffix {
				mend = "list each name, like api." + suffix + ":" + portText
			}
			return no("anybody can have a name below "+ps+", which "+shown+" covers", mend)
		}
		return Destination{Host: lower, Port: port}, nil
	}
	if lower == "localhost" || strings.HasSuffix(lower, ".localhost") {
		return no(shown+" would mean the agent's own loopback", "write host:"+portText+" for one service of this host")
	}
	if problem, mend := badName(lower); problem != "" {
		return no(problem, mend)
	}
	return Destination{Host: lower, Port: port}, nil
}

// portOf reads one decimal port.
func portOf(s string) (port uint16, problem, mend string) {
	n, err := strconv.ParseUint(s, 10, 32)
	switch {
	case s == "*" || s == "":
		return 0, "the port is missing", "write the one port that is meant, like 443"
	case strings.ContainsAny(s, "-,"):
		return 0, "port ranges are not taken: " + strconv.Quote(clip(s)), "list each port in an entry of its own"
	case strings.Trim(s, "0123456789") != "" || err != nil || n == 0 || n > 65535 || s[0] == '0':
		return 0, strconv.Quote(clip(s)) + " is not a port", "write a number from 1 to 65535"
	case n == 53 || n == 853:
		return 0, "port " + s + " is DNS, through which anything can leave", "remove it; names are resolved for the agent by Bulkhead"
	}
	return uint16(n), "", "" // #nosec G115 -- at most 65535, checked above
}

// address reads an IP address in its one canonical form. Forms that programs
// read differently (inet_aton's 127.1, 0x7f.1, 017.0.0.1; IPv4 inside IPv6)
// are how filters are evaded.
func address(s string) (addr netip.Addr, problem, mend string) {
	shown := strconv.Quote(clip(s))
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return a, shown + " is not an address in its usual form", "write four decimal numbers like 203.0.113.7, or an IPv6 address"
	case a.Zone() != "":
		return a, shown + " has a zone", "list an address that needs none"
	case a.Is4In6():
		return a, shown + " is an IPv4 address in IPv6 form", "write " + a.Unmap().String()
	case a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return a, shown + " is not the address of one host", "list the address of one host"
	case a.Is6() && a.IsLinkLocalUnicast():
		return a, shown + " is link-local and needs a zone", "list an address that needs none"
	case a.String() != s:
		return a, shown + " is not an address in its usual form", "write " + a.String()
	}
	return a, "", ""
}

// endsInNumber says whether a name would be read as an IPv4 address by some
// program (WHATWG URL standard, "ends in a number").
func endsInNumber(host string) bool {
	host = strings.TrimSuffix(host, ".")
	last := strings.ToLower(host[strings.LastIndexByte(host, '.')+1:])
	if last != "" && strings.Trim(last, "0123456789") == "" {
		return true
	}
	hex, ok := strings.CutPrefix(last, "0x")
	return ok && strings.Trim(hex, "0123456789abcdef") == ""
}

// badName checks a lower-case DNS name.
func badName(s string) (problem, mend string) {
	shown := strconv.Quote(clip(s))
	switch {
	case s == "":
		return "the name is empty", "write host:port, like api.example.com:443"
	case strings.HasSuffix(s, "."):
		return shown + " ends in a dot", "write it without the dot"
	case strings.Contains(s, "*"):
		return shown + " has a * that is not a whole first label", "write *.suffix:port"
	case len(s) > maxNameSize:
		return "the name is longer than 253 characters", "shorten it"
	case endsInNumber(s):
		return shown + " could be read as an address", "write the address in its usual form"
	case s == "localhost" || strings.HasSuffix(s, ".localhost"):
		return shown + " is the agent's own loopback", "use another name"
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return shown + " is not a name", "write labels of 1 to 63 characters with single dots between"
		}
		for _, c := range label {
			if c > 0x7f {
				return shown + " is not in ASCII", "write it in its xn-- form"
			}
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return shown + " holds " + strconv.QuoteRune(c), "write only a-z, 0-9, - and dots"
			}
		}
	}
	return "", ""
}

// fromURL gives the host:port that a URL means, for a fault's mend.
func fromURL(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" {
		return "host:port, like api.example.com:443"
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "ws": "80", "ssh": "22", "postgres": "5432"}[u.Scheme]
	}
	if port == "" {
		port = "443"
	}
	host := clip(u.Hostname())
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + port
}

// networkAndPort recognises 10.0.0.0/8:443.
func networkAndPort(s string) bool {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return false
	}
	_, err := netip.ParsePrefix(s[:i])
	return err == nil
}
