package store

import (
	"sync"

	"bulkhead/internal/deny"
)

// op is one thing for the writer to do. run is called by whoever has the turn,
// inside a transaction; finish or done gets nil when that is on disk.
type op struct {
	agent  string // whose turn it takes; "" for operators
	cost   int    // rows, roughly
	bytes  int
	run    func(*txn)
	after  func(*conn) // instead of run: reads between transactions
	finish chan error
	done   func(error) // instead of finish: called by the writer, and never blocks
}

// Bounds of what may wait for the disk. One agent that exceeds its own is
// told to come back; the others do not notice.
const (
	intakeCost  = 4096
	intakeBytes = 64 << 20
	quantum     = 32  // cost that one agent gets in one turn
	batchCost   = 512 // cost of one transaction
)

// intake is what waits for the writer: a line per agent, served in turns, so
// that a flood of one delays the others by one turn and not by its length.
type intake struct {
	wake chan struct{} // holds a token when something waits

	mu     sync.Mutex
	closed bool
	lines  map[string]*line
	ring   []*line // those that are not empty, in the order of their turns
}

type line struct {
	ops         []*op
	cost, bytes int
	credit      int
}

func newIntake() *intake {
	return &intake{wake: make(chan struct{}, 1), lines: map[string]*line{}}
}

// put queues o and wakes the writer.
func (in *intake) put(o *op) error {
	err := in.leave(o)
	if err == nil {
		in.call()
	}
	return err
}

// call wakes the writer.
func (in *intake) call() {
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// leave queues o for whoever writes next. It fails when the adapter is closed
// or the agent has too much waiting already.
func (in *intake) leave(o *op) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return unavailable("the adapter is stopping")
	}
	l := in.lines[o.agent]
	if l == nil {
		l = &line{}
		in.lines[o.agent] = l
	}
	if len(l.ops) > 0 && (l.cost+o.cost > intakeCost || l.bytes+o.bytes > intakeBytes) {
		return &deny.Reason{
			Layer: deny.LayerMessages, Code: deny.MessageQuota, What: "a request of " + o.agent,
			Why:  "too many of its requests wait for the disk already",
			Mend: "wait for answers before sending more", RetryAfter: 1,
		}
	}
	if len(l.ops) == 0 {
		l.credit = 0
		in.ring = append(in.ring, l)
	}
	l.ops = append(l.ops, o)
	l.cost, l.bytes = l.cost+o.cost, l.bytes+o.bytes
	return nil
}

// take returns what the next transaction does: deficit round robin over the
// agents, up to batchCost.
func (in *intake) take(ops []*op) []*op {
	in.mu.Lock()
	defer in.mu.Unlock()
	for spent := 0; spent < batchCost && len(in.ring) > 0; {
		l := in.ring[0]
		l.credit += quantum
		for len(l.ops) > 0 && l.ops[0].cost <= l.credit && spent < batchCost {
			o := l.ops[0]
			l.ops[0] = nil
			l.ops = l.ops[1:]
			l.credit -= o.cost
			l.cost, l.bytes = l.cost-o.cost, l.bytes-o.bytes
			spent += o.cost
			ops = append(ops, o)
		}
		in.ring = append(in.ring[:0], in.ring[1:]...)
		if len(l.ops) > 0 {
			in.ring = append(in.ring, l)
		}
	}
	if len(in.ring) > 0 {
		in.call()
	}
	return ops
}

// close lets nothing more in. What waits already is still taken.
func (in *intake) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
}

func (in *intake) empty() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.ring) == 0
}
