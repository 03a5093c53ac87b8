package dial

import (
	"net/netip"

	"bulkhead/internal/deny"
	"bulkhead/internal/team"
)

type policy struct{}

func newPolicy(*team.Agent) *Policy { return &Policy{} }
func unguarded(string) *Policy      { return &Policy{} }
func (*Policy) check(string, uint16) (team.Destination, *deny.Reason) {
	return team.Destination{}, &deny.Reason{Why: "being written"}
}
func (*Policy) fixed(string, team.Destination) ([]netip.Addr, bool) { return nil, false }
func (*Policy) checkAddresses(string, team.Destination, []netip.Addr, []netip.Addr) ([]netip.Addr, *deny.Reason) {
	return nil, &deny.Reason{Why: "being written"}
}
func (*Policy) names() []string    { return nil }
func staticFor(*team.Agent) Static { return Static{} }
