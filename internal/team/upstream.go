package team

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// Bounds of what a team says about its company's network.
const (
	maxExcept  = 256
	maxCAFiles = 16
)

// Upstream is the forward proxy through which alone this host reaches outside.
// Destinations that the manifest gives an address, and names in Except, are
// reached without it.
type Upstream struct {
	Host        string     // lower-case name; empty when Address is set
	Address     netip.Addr // an address named literally
	Port        uint16
	Credentials HostFile // "user:password" in a file of root's; no Path: none
	Except      []string // lower-case names and "*.suffix"
}

// Target names the proxy: "proxy.corp.example:3128", "10.1.2.3:3128".
func (u *Upstream) Target() string {
	return Destination{Host: u.Host, Address: u.Address, Port: u.Port}.Target()
}

// URL is the proxy as the manifest names it.
func (u *Upstream) URL() string { return "http://" + u.Target() }

// Excepts says whether a name (lower-case, without a dot at its end) is
// reached without the proxy.
func (u *Upstream) Excepts(name string) bool {
	for _, e := range u.Except {
		if e == name || strings.HasPrefix(e, "*.") && strings.HasSuffix(name, e[1:]) {
			return true
		}
	}
	return false
}

// describe is the whole setting in one line, for a plan.
func (u *Upstream) describe() string {
	if u == nil {
		return ""
	}
	out := u.URL()
	if u.Credentials.Path != "" {
		out += ", credentials " + u.Credentials.Path
	}
	if len(u.Except) > 0 {
		out += ", except " + strings.Join(u.Except, " ")
	}
	return out
}

// upstream reads the team's proxy.
func (r *reader) upstream(p place) *Upstream {
	if p.node == nil {
		return nil
	}
	f := r.fields(p, "the proxy, like {url: http://proxy.corp.example:3128}", upstreamKeys...)
	r.need(p, f, "url", "add a line like url: http://proxy.corp.example:3128")
	u := &Upstream{}
	if s, ok := r.text(f["url"], "a URL, like http://proxy.corp.example:3128"); ok {
		d, fault := proxyURL(s)
		if fault != nil {
			r.fault(f["url"], fault.mend, "%s", fault.problem)
		}
		u.Host, u.Address, u.Port = d.Host, d.Address, d.Port
	}
	u.Credentials = r.hostFile(f["credentialsFile"])
	for _, item := range r.list(f["except"], maxExcept, "one name per entry, like git.corp.example or *.corp.example") {
		s, ok := r.text(item, "a name, like git.corp.example or *.corp.example")
		if !ok {
			continue
		}
		name := strings.ToLower(s)
		problem, mend := badName(strings.TrimPrefix(name, "*."))
		switch {
		case name == "*":
			r.fault(item, "remove upstreamProxy, if nothing goes through it", "%q would except everything", s)
		case isAddress(s):
			r.fault(item, "remove it: an address is always reached without the proxy", "%s is an address", clip(s))
		case problem != "":
			r.fault(item, strings.ReplaceAll(mend, ":port", ""), "%s", problem)
		case contains(u.Except, name):
			r.fault(item, "remove one of the two", "%s is excepted already", clip(s))
		default:
			u.Except = append(u.Except, name)
		}
	}
	return u
}

func isAddress(s string) bool {
	_, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return err == nil
}

// proxyURL reads http://host:port. The text may hold a password, so no fault
// repeats it.
func proxyURL(s string) (Destination, *destinationFault) {
	no := func(problem, mend string) (Destination, *destinationFault) {
		return Destination{}, &destinationFault{problem, mend}
	}
	const like = "write http://host:port, like http://proxy.corp.example:3128"
	u, err := url.Parse(s)
	switch {
	case strings.Contains(s, "@"):
		return no("the URL holds a user name", "write user:password into a file of root's, mode 0600, and name it under credentialsFile")
	case err != nil || u.Host == "" || u.Opaque != "":
		return no("this is not a URL", like)
	case u.Scheme == "https":
		return no("TLS towards the proxy itself is not spoken", "write the proxy's http:// port; what goes through it is TLS all the same")
	case u.Scheme != "http":
		return no(strconv.Quote(clip(u.Scheme))+" is not spoken to a proxy", like)
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		return no("the URL has more than host and port", like)
	case u.Port() == "":
		return no("the URL has no port", "write the proxy's port, like http://"+clip(u.Hostname())+":3128")
	}
	port, problem, mend := portOf(u.Port())
	if problem != "" {
		return no(problem, mend)
	}
	host := strings.ToLower(u.Hostname())
	if isAddress(host) || endsInNumber(host) {
		addr, problem, mend := address(host)
		if problem != "" {
			return no(problem, mend)
		}
		return Destination{Address: addr, Port: port}, nil
	}
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return no("this name would have to be looked up", "write http://127.0.0.1:"+u.Port())
	}
	if problem, _ := badName(host); problem != "" {
		return no(problem, like)
	}
	return Destination{Host: host, Port: port}, nil
}

// hostFile reads the path of a file that root reads.
func (r *reader) hostFile(p place) HostFile {
	s, ok := r.absolute(p)
	if !ok {
		return HostFile{}
	}
	if s == "/" || meets(s, []string{"/proc", "/sys", "/dev"}) != "" {
		r.fault(p, "name a file of root's, like one below /etc/bulkhead", "%s is no file that lasts", clip(s))
		return HostFile{}
	}
	_, at := r.at(p)
	return HostFile{Path: s, Position: at}
}

// caFiles reads the paths of the company's certificate authorities. What is in
// them is looked at by the warden, which alone can read root's files.
func (r *reader) caFiles(p place) []HostFile {
	var out []HostFile
	for _, item := range r.list(p, maxCAFiles, "one file per entry, like /etc/ssl/company-ca.pem") {
		f := r.hostFile(item)
		if f.Path == "" {
			continue
		}
		if contains(paths(out), f.Path) {
			r.fault(item, "remove one of the two", "%s is listed twice", clip(f.Path))
			continue
		}
		out = append(out, f)
	}
	return out
}
