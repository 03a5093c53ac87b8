package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/forked"
	"bulkhead/internal/reap"
)

// How many one-off containers are kept ready, and for how long without use.
const (
	readyProcesses = 2
	readySeats     = 1
	idleTime       = time.Minute
)

// pool keeps one-off containers ready for the Spec that was asked for last. It
// learns from what is launched: the first run of a kind is slow, later ones
// find everything made but the exec. What lies in the pool holds nothing of a
// caller: command, environment, folder and descriptors come with the order.
//
// A container from the pool runs in the cgroup "<team>/<agent>/ready-<n>"
// instead of the one in its Spec; Container.Spec.Cgroup names it.
type pool struct {
	cfg     *Config
	groups  *cgroup.Tree
	bare    *cell.Bare
	orphans *reap.Orphans

	mu     sync.Mutex
	kind   *kind // of those in ready
	ready  []*readyCell
	next   int
	rests  int // how often rest was called
	closed bool
	idle   *time.Timer
	wg     sync.WaitGroup // refills and discards
}

// readyCell is one prepared container.
type readyCell struct {
	depth cell.Depth
	cell  *cell.Prepared
	group string
}

func newPool(cfg *Config, groups *cgroup.Tree, bare *cell.Bare, orphans *reap.Orphans) *pool {
	return &pool{cfg: cfg, groups: groups, bare: bare, orphans: orphans}
}

// poolable says whether a request is a plain one-off run.
func poolable(r *LaunchRequest, extraFiles int) bool {
	s := &r.Spec
	return s.Role == engine.RoleRun && r.Stdio && r.Shim == nil && extraFiles == 0 && len(s.Init) == 0 && len(s.Off) == 0 && !s.Decoy && s.Engine != engine.Podman
}

// kind is what a prepared container is for: everything of a Spec but what an
// order carries.
type kind struct {
	spec engine.Spec
	// files says which file each mount source is at the moment, so that one
	// which root has replaced meanwhile is not served from before.
	files [][2]uint64
}

func kindOf(s *engine.Spec) *kind {
	k := &kind{spec: *s}
	k.spec.Name, k.spec.Cgroup, k.spec.Command, k.spec.Env, k.spec.Dir = "", "", nil, nil, ""
	for _, path := range append([]string{s.Root.Path}, sourcesOf(s)...) {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err == nil {
			k.files = append(k.files, [2]uint64{st.Dev, st.Ino})
		} else {
			k.files = append(k.files, [2]uint64{}) // preparing it fails, and says why
		}
	}
	return k
}

// same says whether one serves for the other; nil serves for nothing.
func (k *kind) same(o *kind) bool { return k != nil && reflect.DeepEqual(k, o) }

func sourcesOf(s *engine.Spec) []string {
	var out []string
	for _, m := range s.Mounts {
		if m.Kind == engine.MountBind {
			out = append(out, m.Source)
		}
	}
	return out
}

// take gives a prepared container for s, processes first unless fresh; nil when
// there is none.
func (p *pool) take(s *engine.Spec, fresh bool) *readyCell {
	want := kindOf(s)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.kind.same(want) {
		return nil
	}
	best := -1
	for i, r := range p.ready {
		if fresh && r.depth != cell.DepthSeat {
			continue
		}
		if best < 0 || r.depth > p.ready[best].depth {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	r := p.ready[best]
	p.ready = append(p.ready[:best], p.ready[best+1:]...)
	return r
}

// start gives the order.
func (r *readyCell) start(orphans *reap.Orphans, c cell.Command) (*cell.Process, error) {
	if proc := r.cell.Process(); proc != nil {
		p, err := r.cell.Start(c)
		if err != nil {
			orphans.Gone(proc.PID())
		}
		return p, err
	}
	var p *cell.Process
	err := orphans.Spawn(func() (pid int, err error) {
		if p, err = r.cell.Start(c); err != nil {
			return 0, err
		}
		return p.PID(), nil
	})
	return p, err
}

func (r *readyCell) discard(orphans *reap.Orphans) error {
	err := r.cell.Discard()
	if proc := r.cell.Process(); proc != nil {
		orphans.Gone(proc.PID())
	}
	return err
}

// refillPause is how long a refill lets a short run go first: both want the
// same processors.
const refillPause = 20 * time.Millisecond

// refill brings the pool up to its size for s, in the background, once the
// run that emptied it is over or takes longer.
func (p *pool) refill(s engine.Spec, over <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	rests := p.rests
	p.wg.Go(func() {
		t := time.NewTimer(refillPause)
		defer t.Stop()
		select {
		case <-over:
		case <-t.C:
		}
		if k := kindOf(&s); p.turnTo(k, rests) {
			p.fill(s, k)
		}
	})
}

// turnTo makes the pool one of containers of this kind, unless it was told to
// rest since rests was read.
func (p *pool) turnTo(k *kind, rests int) (open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.rests != rests {
		return false
	}
	if !p.kind.same(k) {
		p.drop()
		p.kind = k
	}
	if p.idle == nil {
		p.idle = time.AfterFunc(idleTime, p.tired)
	}
	p.idle.Reset(idleTime)
	return true
}

// rest empties the pool and keeps refills that are under way from filling it;
// the next run does again. What is being made is given up when it is done.
func (p *pool) rest() {
	p.mu.Lock()
	p.rests++
	p.mu.Unlock()
	p.tired()
}

// tired empties a pool that nobody used.
func (p *pool) tired() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop()
	p.kind = nil
}

// drop discards everything in the background. mu is held.
func (p *pool) drop() {
	old := p.ready
	p.ready = nil
	p.wg.Go(func() {
		for _, r := range old {
			if err := r.discard(p.orphans); err != nil {
				fmt.Fprintln(os.Stderr, "bulkhead launcher: discard a prepared container:", err)
			}
		}
	})
}

// missing says which depth to make next, and a number for its cgroup. mu is
// held.
func (p *pool) missing() (cell.Depth, bool) {
	want := map[cell.Depth]int{cell.DepthProcess: readyProcesses, cell.DepthSeat: readySeats}
	if p.cfg.Ready != 0 {
		want[cell.DepthProcess] = max(p.cfg.Ready, 0)
	}
	for _, r := range p.ready {
		want[r.depth]--
	}
	for _, d := range []cell.Depth{cell.DepthProcess, cell.DepthSeat} {
		if want[d] > 0 {
			return d, true
		}
	}
	return 0, false
}

// fill makes what is missing, one by one; refills that meet share the work.
func (p *pool) fill(s engine.Spec, k *kind) {
	defer readyMemory()
	for {
		p.mu.Lock()
		depth, more := p.missing()
		if !more || p.closed || !p.kind.same(k) {
			p.mu.Unlock()
			return
		}
		p.next++
		n := p.next
		p.mu.Unlock()
		r, err := p.make(s, depth, n)
		if err != nil {
			// The next run is made fresh and says what is wrong.
			fmt.Fprintln(os.Stderr, "bulkhead launcher: prepare a container:", err)
			return
		}
		p.mu.Lock()
		_, more = p.missing()
		keep := more && !p.closed && p.kind.same(k)
		if keep {
			p.ready = append(p.ready, r)
		}
		p.mu.Unlock()
		if !keep {
			if err := r.discard(p.orphans); err != nil {
				fmt.Fprintln(os.Stderr, "bulkhead launcher: discard a prepared container:", err)
			}
			return
		}
	}
}

// readyMemory does now, when nobody waits, what would slow the next run down:
// it collects garbage, and takes the faults that each fork leaves behind.
func readyMemory() {
	runtime.GC()
	if err := forked.OwnMemory(); err != nil {
		fmt.Fprintln(os.Stderr, "bulkhead launcher:", err)
	}
}

func (p *pool) make(s engine.Spec, depth cell.Depth, n int) (*readyCell, error) {
	s.Name = fmt.Sprintf("ready-%d", n)
	s.Cgroup = filepath.Join(p.cfg.Place.Team, p.cfg.Place.Name, s.Name)
	r := &readyCell{depth: depth, group: s.Cgroup}
	opt := cell.Options{Cgroups: p.groups, Bare: p.bare}
	if depth == cell.DepthSeat {
		c, err := cell.Prepare(s, opt, depth)
		r.cell = c
		return r, err
	}
	err := p.orphans.Spawn(func() (int, error) {
		c, err := cell.Prepare(s, opt, depth)
		if err != nil {
			return 0, err
		}
		r.cell = c
		return c.Process().PID(), nil
	})
	return r, err
}

// close discards everything and refuses what comes later.
func (p *pool) close() error {
	p.mu.Lock()
	p.closed = true
	if p.idle != nil {
		p.idle.Stop()
	}
	old := p.ready
	p.ready = nil
	p.mu.Unlock()
	p.wg.Wait()
	var errs []error
	for _, r := range old {
		errs = append(errs, r.discard(p.orphans))
	}
	return errors.Join(errs...)
}
