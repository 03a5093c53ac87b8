package packets

import "fmt"

// Accepted gives every packet of the id that a table lets out at the output
// hook. A box that is a Guess may be larger than the truth. What another table
// accepts cannot bring back what this one drops: each judges for itself.
func (r *Ruleset) Accepted(t *Table, uid uint32) ([]Box, error) {
	if t == nil || t.Dormant {
		return nil, fmt.Errorf("packets: the table is not there, or dormant")
	}
	out := both()
	found := false
	for _, c := range t.Chains {
		if !c.Base || c.Hook != hookOutput || c.Type != "filter" {
			continue
		}
		found = true
		var next []Box
		for _, b := range out {
			if !covers(t.Family, b) {
				next = append(next, b)
				continue
			}
			j := judge{table: t, uid: uid}
			o, err := j.chain(c.Name, []Box{b}, 0)
			if err != nil {
				return nil, err
			}
			if len(j.detours) > 0 {
				return nil, fmt.Errorf("packets: %s", j.detours[0])
			}
			next = append(next, o.accepted...)
			if !c.Drop {
				next = append(next, o.ended...)
			}
		}
		out = tidy(next)
	}
	if !found {
		return nil, fmt.Errorf("packets: table %s has no chain at the output hook", t)
	}
	return out, nil
}

func both() []Box { return []Box{everything(false), everything(true)} }

// covers says whether chains of a family see the packets of a box.
func covers(f Family, b Box) bool {
	return f == INet || f == IPv4 && !b.IPv6 || f == IPv6 && b.IPv6
}

// Detours lists what other rules could do to the packets of boxes than let them
// pass or drop them: send them elsewhere, copy them, mark them, hand them to a
// program. ours is left out.
func (r *Ruleset) Detours(ours *Table, uid uint32, boxes []Box) ([]string, error) {
	var out []string
	for _, t := range r.Tables {
		if t == ours || t.Dormant {
			continue
		}
		for _, c := range t.Chains {
			if !c.Base || !onTheWay(t.Family, c.Hook) {
				continue
			}
			j := judge{table: t, uid: uid}
			for _, b := range boxes {
				if t.Family != NetDev && !covers(t.Family, b) {
					continue
				}
				if _, err := j.chain(c.Name, []Box{b}, 0); err != nil {
					return nil, err
				}
			}
			out = append(out, j.detours...)
		}
	}
	return out, nil
}

// onTheWay says whether packets of local sockets pass a hook.
func onTheWay(f Family, hook uint32) bool {
	switch f {
	case INet, IPv4, IPv6:
		return hook == hookOutput || hook == hookPostrouting
	case NetDev:
		return hook == hookEgress
	}
	return false
}
