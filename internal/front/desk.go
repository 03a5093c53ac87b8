package front

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/front/protocol"
)

// Limits of what waits for the warden.
const (
	maxAdmin  = 64  // requests to /admin/agents at a time
	maxWakers = 256 // requests that wait for an agent to wake
	maxWork   = 25 * time.Second
)

// desk is where work for the warden lies, and who waits for it. The warden
// comes and asks: front has no way to it.
type desk struct {
	mu      sync.Mutex // guards what follows
	fresh   chan struct{}
	session string        // of the warden that asked last
	over    chan struct{} // closed when another one asks
	todo    protocol.Work
	nextID  uint64
	answers map[uint64]*asked
	wakers  int
	waking  map[string]*waking
}

// asked is an admin request that is not answered yet.
type asked struct {
	protocol.AdminRequest
	answer chan protocol.AdminAnswer
}

// waking is one agent that is to wake, and how many wait for it.
type waking struct {
	n      int // guarded by desk.mu
	agent  protocol.Agent
	done   chan struct{}
	reason *deny.Reason // why it does not; set before done is closed
}

func newDesk() *desk {
	return &desk{fresh: make(chan struct{}, 1), over: make(chan struct{}), answers: map[uint64]*asked{}, waking: map[string]*waking{}}
}

func (d *desk) ring() {
	select {
	case d.fresh <- struct{}{}:
	default:
	}
}

// begin takes a session of a warden. Another one than before is given anew what
// the former may have taken along to its end. Who still answers for that has
// nothing to give any more.
func (d *desk) begin(session string) (over <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if session != d.session {
		d.session = session
		close(d.over)
		d.over = make(chan struct{})
		d.todo = protocol.Work{}
		for _, key := range slices.Sorted(maps.Keys(d.waking)) {
			d.todo.Wake = append(d.todo.Wake, d.waking[key].agent)
		}
		for _, id := range slices.Sorted(maps.Keys(d.answers)) {
			d.todo.Admin = append(d.todo.Admin, d.answers[id].AdminRequest)
		}
	}
	return d.over
}

// work gives what there is to do, once there is something.
func (d *desk) work(ctx context.Context, body json.RawMessage) (any, error) {
	var q protocol.WorkRequest
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, fmt.Errorf("front: %w", err)
	}
	over := d.begin(q.Session)
	enough := time.NewTimer(min(max(q.Wait, 0), maxWork))
	defer enough.Stop()
	for last := false; ; {
		d.mu.Lock()
		if d.over != over {
			d.mu.Unlock()
			return protocol.Work{}, nil
		}
		out := d.todo
		d.todo = protocol.Work{}
		d.mu.Unlock()
		if last || len(out.Wake)+len(out.Admin) > 0 {
			return out, nil
		}
		select {
		case <-d.fresh:
		case <-over:
			last = true
		case <-enough.C:
			last = true
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// ask lays an admin request down and waits for its answer.
func (d *desk) ask(ctx context.Context, q protocol.AdminRequest) (protocol.AdminAnswer, error) {
	d.mu.Lock()
	if len(d.answers) >= maxAdmin {
		d.mu.Unlock()
		return protocol.AdminAnswer{}, errBusy
	}
	d.nextID++
	q.ID = d.nextID
	one := &asked{q, make(chan protocol.AdminAnswer, 1)}
	d.answers[q.ID] = one
	d.todo.Admin = append(d.todo.Admin, q)
	d.mu.Unlock()
	d.ring()
	defer func() {
		d.mu.Lock()
		delete(d.answers, q.ID)
		d.mu.Unlock()
	}()
	select {
	case a := <-one.answer:
		return a, nil
	case <-ctx.Done():
		return protocol.AdminAnswer{}, ctx.Err()
	}
}

var errBusy = errors.New("front: too many wait already")

// answer passes on what the warden says. Who asked may have left.
func (d *desk) answer(_ context.Context, body json.RawMessage) (any, error) {
	var a protocol.AdminAnswer
	if err := json.Unmarshal(body, &a); err != nil {
		return nil, fmt.Errorf("front: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if one := d.answers[a.ID]; one != nil {
		delete(d.answers, a.ID)
		one.answer <- a
	}
	return struct{}{}, nil
}

// wake has an agent woken, once for all who wait for it.
func (d *desk) wake(key string, a protocol.Agent) (*waking, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.wakers >= maxWakers {
		return nil, errBusy
	}
	d.wakers++
	w := d.waking[key]
	if w == nil {
		w = &waking{agent: a, done: make(chan struct{})}
		d.waking[key] = w
		d.todo.Wake = append(d.todo.Wake, a)
		d.ring()
	}
	w.n++
	return w, nil
}

// left says that one who waited does not any more. When nobody is left, or
// waited in vain, the next one asks again.
func (d *desk) left(key string, w *waking, inVain bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wakers--
	w.n--
	if (inVain || w.n == 0) && d.waking[key] == w {
		delete(d.waking, key)
	}
}

// woken ends the waiting for an agent.
func (d *desk) woken(key string, reason *deny.Reason) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w := d.waking[key]; w != nil {
		w.reason = reason
		close(w.done)
		delete(d.waking, key)
	}
}

// awaited says whether somebody waits for an agent.
func (d *desk) awaited(key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waking[key] != nil
}
