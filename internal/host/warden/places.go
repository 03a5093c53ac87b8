package warden

import "bulkhead/internal/prove"

// sleeping are the places of a guest of which nothing runs: its disk is not
// mounted, and what is in it nobody sees.
func (g *guest) sleeping() []prove.Place {
	p := g.Place
	return []prove.Place{
		{Path: p.State, Mode: 0o711},
		{Path: p.GuestFile(), Mode: 0o600},
		{Path: p.GatewayImage(), Mode: 0o600},
		{Path: p.GatewayDisk(), Mode: 0o711},
		{Path: p.Logs(), Mode: 0o700},
		{Path: g.fencePath(), Mode: 0o600},
	}
}

// places are what is the agent's alone on the host: see agentRun.prepare and
// the sockets that its containers are given.
func (a *agentRun) places() []prove.Place {
	p, rt, gw := a.Place, a.IDs.Runtime(), a.IDs.Gateway()
	return []prove.Place{
		{Path: p.Home(), UID: rt, GID: rt, Mode: 0o700},
		{Path: p.Workspace(), UID: rt, GID: rt, Mode: 0o700},
		{Path: p.Data(), UID: gw, GID: gw, Mode: 0o700},
		{Path: p.Logs(), Mode: 0o700},
		{Path: p.Control(), Mode: 0o700},
		{Path: p.RuntimeImage(), Mode: 0o600},
		{Path: p.GatewayImage(), Mode: 0o600},
		{Path: p.GatewaySocket(), GID: rt, Mode: 0o660},
		{Path: p.DialerSocket(), GID: gw, Mode: 0o660},
		{Path: p.PinSocket(), GID: a.IDs.Dialer, Mode: 0o660},
	}
}
