package prove

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"bulkhead/internal/confine"
	"bulkhead/internal/engine"
	"bulkhead/internal/prove/filter"
	"bulkhead/internal/prove/threads"
)

// Filters remembers how combinations of filters compared with a profile: all
// agents run the same few, and a comparison takes long. It may be used by
// several at once, and for as long as the program runs.
type Filters struct {
	mu    sync.Mutex
	known map[[sha256.Size]byte]verdict
}

type verdict struct {
	wider []filter.Difference
	err   error
}

// maxKnown is far more than there are roles and engines; an agent may set
// filters of its own on top, as many as it likes.
const maxKnown = 256

func (c *Filters) lookup(key [sha256.Size]byte) (verdict, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.known[key]
	return v, ok
}

func (c *Filters) keep(key [sha256.Size]byte, v verdict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= maxKnown {
		c.known = map[[sha256.Size]byte]verdict{}
	}
	c.known[key] = v
}

func (c *Filters) statement(a Agent) Statement {
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
		s.against("%s", a.nothing("thread"))
	}
	return s
}

func (c *Filters) compare(role engine.Role, filters []filter.Program) verdict {
	h := sha256.New()
	h.Write([]byte(role))
	for _, f := range filters {
		_ = binary.Write(h, binary.LittleEndian, uint32(len(f))) // #nosec G115 -- at most 4096
		_ = binary.Write(h, binary.LittleEndian, f)
	}
	key := [sha256.Size]byte(h.Sum(nil))
	if v, ok := c.lookup(key); ok {
		return v
	}
	var v verdict
	want, err := profile(role)
	if v.err = err; err == nil {
		v.wider, v.err = filter.Wider(filters, want, 1)
	}
	c.keep(key, v)
	return v
}

func profile(role engine.Role) (filter.Program, error) {
	f, err := confine.ForRole(role)
	if err != nil {
		return nil, err
	}
	return filter.Parse(f.Marshal())
}
