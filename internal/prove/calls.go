package prove

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"bulkhead/internal/confine"
	"bulkhead/internal/engine"
	"bulkhead/internal/prove/filter"
	"bulkhead/internal/prove/threads"
)

// calls compares filters, each combination once: all agents run the same few.
type calls struct {
	known map[[sha256.Size]byte]verdict
}

type verdict struct {
	wider []filter.Difference
	err   error
}

func newCalls() *calls { return &calls{known: map[[sha256.Size]byte]verdict{}} }

func (c *calls) statement(a Agent) Statement {
	s := Statement{ID: "syscalls", Agent: a.Name, Says: "no thread of its containers may make a system call, for any number, architecture and argument, that its profile refuses"}
	n := 0
	for _, p := range a.Processes {
		if p.Role == "" {
			continue
		}
		list, err := threads.Of(p.PID)
		if errors.Is(err, threads.ErrGone) {
			continue
		}
		if err != nil {
			s.against("%v", err)
			continue
		}
		for _, th := range list {
			n++
			v := c.compare(p.Role, th.Filters)
			switch {
			case v.err != nil:
				s.against("process %d thread %d: %v", p.PID, th.ID, v.err)
			case len(v.wider) > 0:
				s.against("process %d thread %d (%s): %s", p.PID, th.ID, p.Role, v.wider[0])
			}
		}
	}
	s.Read = append(s.Read, fmt.Sprintf("the filters of %d threads", n))
	if n == 0 {
		s.against("no thread of a container was found")
	}
	return s
}

func (c *calls) compare(role engine.Role, filters []filter.Program) verdict {
	h := sha256.New()
	h.Write([]byte(role))
	for _, f := range filters {
		_ = binary.Write(h, binary.LittleEndian, uint32(len(f))) // #nosec G115 -- at most 4096
		_ = binary.Write(h, binary.LittleEndian, f)
	}
	key := [sha256.Size]byte(h.Sum(nil))
	if v, ok := c.known[key]; ok {
		return v
	}
	var v verdict
	want, err := profile(role)
	if v.err = err; err == nil {
		v.wider, v.err = filter.Wider(filters, want, 1)
	}
	c.known[key] = v
	return v
}

func profile(role engine.Role) (filter.Program, error) {
	f, err := confine.ForRole(role)
	if err != nil {
		return nil, err
	}
	return filter.Parse(f.Marshal())
}
