package dial

import (
	"time"
)

// Port gives a port with which h may be reached now, for whoever asks about the
// host alone. A grant for one connection is not counted: asking would use it up.
func (p *Policy) Port(h Host) (uint16, bool) {
	for _, d := range p.egress {
		if covers(d, h) {
			return d.Port, true
		}
	}
	for _, g := range p.granted {
		if !g.Once && g.Live(time.Now()) && covers(g.dest, h) {
			return g.dest.Port, true
		}
	}
	return 0, false
}
