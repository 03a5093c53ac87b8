package messages

import (
	"sync"
	"time"

	"bulkhead/internal/adapter/client"
)

// flights are the sends that the adapter has not answered. One timer is for all
// of them: one for each would cost as much as the rest of a send does here.
type flights struct {
	trip func(*client.Agent) // what becomes of a connection that did not answer in time

	mu    sync.Mutex
	next  uint64
	open  map[uint64]flight
	armed bool // the timer runs
}

type flight struct {
	conn  *client.Agent
	began time.Time
}

// begin gives what end takes.
func (f *flights) begin(c *client.Agent) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open == nil {
		f.open = map[uint64]flight{}
	}
	f.next++
	f.open[f.next] = flight{c, time.Now()}
	if !f.armed {
		f.armed = true
		time.AfterFunc(answerTimeout, f.check)
	}
	return f.next
}

func (f *flights) end(n uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, n)
}

// check gives up the connections whose time is over, and comes again when that of
// the oldest of the others is.
func (f *flights) check() {
	late := map[*client.Agent]bool{}
	f.mu.Lock()
	f.armed = false
	var oldest time.Time
	for _, o := range f.open {
		switch {
		case time.Since(o.began) >= answerTimeout:
			late[o.conn] = true
		case oldest.IsZero() || o.began.Before(oldest):
			oldest = o.began
		}
	}
	if !oldest.IsZero() {
		f.armed = true
		time.AfterFunc(answerTimeout-time.Since(oldest), f.check)
	}
	f.mu.Unlock()
	for c := range late {
		f.trip(c)
	}
}
