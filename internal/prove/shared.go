package prove

import "fmt"

// shared lists what an agent's containers may read of the host that others may
// read as well, and says that none of it is anybody's to write: nobody can change
// what another reads.
func shared(mine written, all []written) Statement {
	s := Statement{ID: "shared", Agent: mine.agent, Says: "nothing that its containers may only read is another agent's to write"}
	if mine.err != nil {
		s.against("%v", mine.err)
	}
	for _, p := range mine.readable {
		with := ""
		for _, o := range all {
			if o.agent == mine.agent {
				continue
			}
			for _, q := range o.places {
				if p.meets(q) {
					s.against("%s is %s of device %s, and %s may write %s there", p.at, p.root, p.device, o.agent, q.at)
				}
			}
			for _, q := range o.readable {
				if p.meets(q) {
					with += ", " + o.agent
					break
				}
			}
		}
		if with != "" {
			s.Read = append(s.Read, fmt.Sprintf("%s: %s of device %s (%s), also read by %s", p.at, p.root, p.device, p.kind, with[2:]))
		}
	}
	return s
}
