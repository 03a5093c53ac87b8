package team

import (
	"fmt"
	"strings"
)

// ParseDestination reads one "host:port" by the rules of the manifest's egress
// list, for destinations that do not come from a file. A name is bound to its
// name (SNIExact), an address to address and port alone. The error says what
// is wrong and what to write instead.
func ParseDestination(s string) (Destination, error) {
	d, fault := destination(s)
	if fault != nil {
		return Destination{}, fmt.Errorf("%s; %s", fault.problem, fault.mend)
	}
	d.SNI = SNIAny
	if d.Host != "" && d.Host != "host" {
		d.SNI = SNIExact
	}
	return d, nil
}

// Covers says whether a name, in lower case, or an address at a port is what
// the destination lists.
func (d Destination) Covers(host string, port uint16) bool {
	if suffix, ok := strings.CutPrefix(d.Host, "*"); ok {
		return d.Port == port && len(host) > len(suffix) && strings.HasSuffix(host, suffix) // suffix begins with a dot
	}
	if d.Host == "" {
		return d.Port == port && d.Address.String() == host
	}
	return d.Port == port && d.Host == host
}

// Wild says whether the destination covers more than one name.
func (d Destination) Wild() bool { return strings.HasPrefix(d.Host, "*.") }
