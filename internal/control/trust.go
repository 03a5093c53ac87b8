package control

import (
	"encoding/json"
	"fmt"

	"bulkhead/internal/control/protocol"
	"bulkhead/internal/identity/token"
)

// Trust says what front and each gateway is to trust now.
func (c *Control) Trust(q protocol.TrustRequest) (*protocol.Trusts, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.book.forget(now)
	if err := c.ring.forget(now); err != nil {
		return nil, err
	}
	all := token.Trust{Version: token.TrustVersion, Epoch: c.book.epoch, Keys: []token.Key{}}
	for _, s := range c.ring.keys {
		if s.Until == 0 || now.Unix() < s.Until {
			all.Keys = append(all.Keys, s.Key)
		}
	}
	revoked := map[protocol.Gateway][]string{}
	for _, t := range c.book.sorted() {
		if t.Revoked != nil {
			all.Revoked = append(all.Revoked, t.ID)
			g := protocol.Gateway{Team: t.Team, Agent: t.Agent}
			revoked[g] = append(revoked[g], t.ID)
		}
	}
	front, err := json.Marshal(all)
	if err != nil {
		return nil, fmt.Errorf("control: %w", err)
	}
	out := &protocol.Trusts{Epoch: all.Epoch, Front: front, Gateways: make([]json.RawMessage, len(q.Gateways))}
	for i, g := range q.Gateways {
		one := all.For(g.Team, g.Agent)
		one.Revoked = revoked[g]
		if out.Gateways[i], err = json.Marshal(one); err != nil {
			return nil, fmt.Errorf("control: %w", err)
		}
	}
	return out, nil
}
