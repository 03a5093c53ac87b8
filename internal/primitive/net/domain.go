package net

import (
	"strings"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/tool"
)

// narrowed says whether the domains of a caller's token, which can only take
// away from the manifest, cover h. "*" is all that the manifest lists,
// "*.suffix" what lies below a name, anything else one name or address. What
// cannot be read covers nothing.
func narrowed(domains []string, h dial.Host) bool {
	for _, d := range domains {
		if d == "*" {
			return true
		}
		if suffix, ok := strings.CutPrefix(d, "*."); ok {
			base, err := dial.Normalise(suffix)
			if err == nil && base.Name != "" && strings.HasSuffix(h.Name, "."+base.Name) {
				return true
			}
			continue
		}
		if one, err := dial.Normalise(d); err == nil && one == h {
			return true
		}
	}
	return false
}

// narrow refuses what the caller's own token does not cover.
func narrow(c *tool.Call, h dial.Host, what string) *deny.Reason {
	if c.Caller.Domains == nil || narrowed(c.Caller.Domains, h) {
		return nil
	}
	return tool.Refuse(deny.ToolNotAllowed, what, "the token of this call does not cover "+h.String(), "show a token whose allowedDomains cover it")
}
