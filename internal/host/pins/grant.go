package pins

import (
	"context"
	"fmt"

	"bulkhead/internal/deny"
	"bulkhead/internal/wire"
)

// spend uses a grant for one connection up; false when it was used before.
func (a *agent) spend(target string, g wire.Grant) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := spending{target, g.At.UnixNano()}
	if a.spent[k] {
		return false
	}
	a.spent[k] = true
	return true
}

func (a *agent) unspend(target string, g wire.Grant) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.spent, spending{target, g.At.UnixNano()})
}

// Pin pins a destination for the operator, by the same way as a request of the
// agent's dialer, and uses no grant up. The reason is set when it is refused.
func (s *Server) Pin(ctx context.Context, account, host string, port uint16) (wire.Pinned, *deny.Reason, error) {
	s.mu.Lock()
	a := s.agents[account]
	s.mu.Unlock()
	if a == nil {
		return wire.Pinned{}, nil, fmt.Errorf("pins: %s is not served", account)
	}
	p, reason := s.pin(ctx, a, wire.DialRequest{Host: host, Port: port}, operators)
	return p, reason, nil
}
