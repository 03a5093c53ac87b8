package evidence

import (
	"net"
	"net/netip"
	"os"
	"strings"
)

// hostResolvers reads the name servers of a resolv.conf (resolv.conf(5)) as
// "address:53". A file that is missing has none.
func hostResolvers(path string) []string {
	raw, err := os.ReadFile(path) // #nosec G304 -- the host's own file
	if err != nil {
		return nil
	}
	return parseResolvers(string(raw))
}

func parseResolvers(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		// A link-local one is reached by an interface that no agent has, so it
		// cannot even be named there.
		if a, err := netip.ParseAddr(f[1]); err == nil && a.Zone() == "" && !a.IsLinkLocalUnicast() {
			out = append(out, net.JoinHostPort(a.String(), "53"))
		}
	}
	return out
}
