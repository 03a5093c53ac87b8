package prove

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"bulkhead/internal/prove/packets"
)

// dialerEgress says what the host lets an agent's dialer reach.
func dialerEgress(rules *packets.Ruleset, w way, table string, a Agent) Statement {
	s := Statement{ID: "egress.dialer", Agent: a.Name, Says: "the host's rules let its dialer send to the addresses of the manifest's destinations, and nowhere else"}
	ours := rules.Table(packets.INet, table)
	boxes, err := rules.Accepted(ours, a.IDs.Dialer)
	if err != nil {
		s.against("%v", err)
		return s
	}
	s.premise("no other rule of this host sends, copies or marks these packets", detours(rules, ours, a.IDs.Dialer, boxes))
	w.premises(&s, a, boxes)
	for _, b := range boxes {
		s.Read = append(s.Read, b.String())
		if !isPin(b, a.Pins) {
			s.against("%s is let out, and no destination of the manifest has this address now", b)
		}
	}
	return s
}

// isPin says whether a box is one connection's way to one pinned address.
func isPin(b packets.Box, pins []netip.AddrPort) bool {
	one := b.Proto == packets.Range{First: unix.IPPROTO_TCP, Last: unix.IPPROTO_TCP} && b.First == b.Last && b.Port.First == b.Port.Last && b.Port.First <= 65535
	return one && slices.Contains(pins, netip.AddrPortFrom(b.First, uint16(b.Port.First))) // #nosec G115 -- compared
}

func detours(rules *packets.Ruleset, ours *packets.Table, uid uint32, boxes []packets.Box) string {
	found, err := rules.Detours(ours, uid, boxes)
	switch {
	case err != nil:
		return err.Error()
	case len(found) > 0:
		return found[0]
	}
	return ""
}

// agentEgress says that nothing of the agent itself may send at all.
func agentEgress(rules *packets.Ruleset, table string, a Agent) Statement {
	s := Statement{ID: "egress.agent", Agent: a.Name, Says: fmt.Sprintf("the host's rules let no packet out of its account %d or of any id from %d to %d, loopback included", a.IDs.Account, a.IDs.Base, a.IDs.Last())}
	ids := append(rules.Classes(a.IDs.Base, a.IDs.Last()), a.IDs.Account)
	ours := rules.Table(packets.INet, table)
	// Rules compare ids with constants, so ids between two neighbouring constants
	// are judged alike: one of each such class stands for all.
	for _, uid := range ids {
		boxes, err := rules.Accepted(ours, uid)
		if err != nil {
			s.against("%v", err)
			return s
		}
		for _, b := range boxes {
			s.against("id %d: %s", uid, b)
		}
	}
	return s
}

// serverEgress says that a server may send nothing, or nothing but answers from
// where it listens.
func serverEgress(rules *packets.Ruleset, table string, a Agent) Statement {
	s := Statement{ID: "egress.agent", Agent: a.Name, Says: fmt.Sprintf("the host's rules let no packet out of its account %d, loopback included", a.IDs.Account)}
	if len(a.Listen) > 0 {
		s.Says = fmt.Sprintf("the host's rules let nothing out of its account %d but TCP from where it listens that begins no connection", a.IDs.Account)
	}
	boxes, err := rules.Accepted(rules.Table(packets.INet, table), a.IDs.Account)
	if err != nil {
		s.against("%v", err)
		return s
	}
	for _, b := range boxes {
		s.read("%s", b)
		if !isAnswer(b, a.Listen) {
			s.against("%s", b)
		}
	}
	return s
}

// isAnswer says whether a box is what is said on connections that came in at one
// of the addresses.
func isAnswer(b packets.Box, listen []netip.AddrPort) bool {
	one := b.Proto == packets.Range{First: unix.IPPROTO_TCP, Last: unix.IPPROTO_TCP} && b.Syn == packets.WithoutSyn && b.From == b.Until && b.SourcePort.First == b.SourcePort.Last && b.SourcePort.First <= 65535
	return one && slices.Contains(listen, netip.AddrPortFrom(b.From, uint16(b.SourcePort.First))) // #nosec G115 -- compared
}
