package prove

import (
	"fmt"
	"net/netip"

	"bulkhead/internal/engine"
	"bulkhead/internal/prove/packets"
	"bulkhead/internal/prove/routes"
)

// way is what was read of routes and interfaces, or why it could not be.
type way struct {
	host *routes.Host
	err  error
}

func readWay() way {
	h, err := routes.Read()
	return way{h, err}
}

func (w way) close() error {
	if w.host == nil {
		return nil
	}
	return w.host.Close()
}

// premises adds what the dialer's packets rest on once the rules let them out. What
// cannot be read is a premise that does not hold.
func (w way) premises(s *Statement, a Agent, boxes []packets.Box) {
	const (
		straight = "each of these packets leaves by a route that takes it where its address says"
		between  = "no filter of traffic control, no TCX or XDP program and no IPsec policy lies on the interfaces that these packets leave by"
		sockets  = "no BPF program of a cgroup changes where its dialer connects"
	)
	if w.err != nil {
		s.premise(straight, "not known: "+w.err.Error())
		s.premise(between, "not known: "+w.err.Error())
	} else {
		odd, found := "", ""
		for _, b := range boxes {
			if b.First != b.Last || b.Port.First != b.Port.Last {
				continue // not one destination: against the statement already
			}
			port := uint16(b.Port.First) // #nosec G115 -- 16 bits of a packet
			one := w.host.Way(a.IDs.Dialer, netip.AddrPortFrom(b.First, port))
			if len(one.Odd) > 0 && odd == "" {
				odd = one.Odd[0]
			}
			list, err := w.host.Between(one.Interfaces)
			switch {
			case found != "":
			case err != nil:
				found = "not known: " + err.Error()
			case len(list) > 0:
				found = list[0]
			}
			if names := w.host.Names(one.Interfaces); names != "" {
				s.read("%s leaves by %s", b, names)
			}
		}
		s.premise(straight, odd)
		s.premise(between, found)
	}
	s.premise(sockets, programs(a))
}

// programs asks the cgroups of the agent's dialer.
func programs(a Agent) string {
	for _, p := range a.Processes {
		if p.Role != engine.RoleDialer {
			continue
		}
		list, err := routes.CgroupPrograms(p.PID)
		switch {
		case err != nil:
			return "not known: " + err.Error()
		case len(list) > 0:
			return list[0]
		}
	}
	return ""
}

func (s *Statement) read(format string, args ...any) {
	s.Read = append(s.Read, fmt.Sprintf(format, args...))
}
