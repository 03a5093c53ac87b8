package dial

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// Host is a destination's host in its one normal form: exactly one of Name and
// Addr is set.
type Host struct {
	Name string // lower-case, without a trailing dot, IDNA A-labels
	Addr netip.Addr
}

func (h Host) String() string {
	if h.Name != "" {
		return h.Name
	}
	return h.Addr.String()
}

// profile maps to lower case and A-labels and refuses what no DNS name has
// (UTS #46, strict, non-transitional). Underscores appear in real names and
// hurt nobody, so STD3 rules are replaced by plain below.
var profile = idna.New(idna.MapForLookup(), idna.Transitional(false), idna.StrictDomainName(false), idna.BidiRule())

// Normalise reads a host as clients write it: a name in any case, with or
// without a trailing dot or as Unicode; an IPv4 address; an IPv6 address, also
// in brackets. It refuses the forms in which inet_aton(3) and some clients
// hide an IPv4 address (0x7f.1, 127.1, 017700000001, 2130706433, a dot behind
// it) and zone ids. IPv4-mapped addresses written as IPv6 become what they map.
func Normalise(s string) (Host, error) {
	if s == "" {
		return Host{}, errors.New("the host is empty")
	}
	if len(s) > 1024 {
		return Host{}, errors.New("the host is longer than any name")
	}
	if strings.HasPrefix(s, "[") || strings.Contains(s, ":") {
		return normaliseIPv6(s)
	}
	if addr, err := netip.ParseAddr(s); err == nil {
		return Host{Addr: addr}, nil
	}
	name, err := profile.ToASCII(s)
	if again, twice := profile.ToASCII(name); err != nil || twice != nil || again != name {
		return Host{}, fmt.Errorf("%s is not a host name", strconv.Quote(s))
	}
	name = strings.TrimSuffix(name, ".")
	if err := plain(name); err != nil {
		return Host{}, fmt.Errorf("%s is not a host name: %w", strconv.Quote(s), err)
	}
	return Host{Name: name}, nil
}

func normaliseIPv6(s string) (Host, error) {
	bare := s
	if strings.HasPrefix(s, "[") {
		if bare = strings.TrimSuffix(s[1:], "]"); len(bare) != len(s)-2 {
			return Host{}, fmt.Errorf("%s has an open bracket only", strconv.Quote(s))
		}
	}
	addr, err := netip.ParseAddr(bare)
	if err != nil || !addr.Is6() {
		return Host{}, fmt.Errorf("%s is not an IPv6 address", strconv.Quote(s))
	}
	if addr.Zone() != "" {
		return Host{}, fmt.Errorf("%s names a zone, which has a meaning on one host only", strconv.Quote(s))
	}
	return Host{Addr: addr.Unmap()}, nil
}

// plain keeps to letters, digits, dashes and underscores in labels of 1 to 63
// octets, 253 in all (RFC 1035, 2.3.4), and refuses a last label that makes
// inet_aton read the name as an address (it starts with a digit and is a
// number; RFC 3696, 2: no top-level domain is).
func plain(name string) error {
	if name == "" || len(name) > 253 {
		return errors.New("it is empty or longer than 253 octets")
	}
	labels := strings.Split(name, ".")
	for _, l := range labels {
		if l == "" || len(l) > 63 {
			return errors.New("a label is empty or longer than 63 octets")
		}
		for _, c := range []byte(l) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return fmt.Errorf("%q cannot be in it", c)
			}
		}
		if l[0] == '-' || l[len(l)-1] == '-' {
			return errors.New("a label begins or ends with a dash")
		}
	}
	last := labels[len(labels)-1]
	if last[0] >= '0' && last[0] <= '9' {
		if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") && strings.Trim(last[2:], "0123456789abcdef") == "" {
			return errors.New("it is an IPv4 address in an odd form; write it with four decimal parts")
		}
	}
	return nil
}
