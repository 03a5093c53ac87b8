package proc

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/tool"
	"bulkhead/internal/wire"
)

// Bounds of what was spawned.
const (
	maxSpawned = 4  // at a time
	maxEnded   = 16 // that are remembered
)

// process is code that runs, or has.
type process struct {
	id, language, container string
	since                   time.Time
	run                     *running
	stdout, stderr          *output
	done                    chan struct{} // closed when what follows is set
	exit                    wire.CodeExited
	err                     error
}

// processes are those that were spawned, in the order of their start.
type processes struct {
	spawner *spawner

	mu     sync.Mutex
	list   []*process
	free   int // places
	closed bool
	wg     sync.WaitGroup
}

// Ended is how code ended, as the tools answer it.
type Ended struct {
	ProcessID string `json:"processId"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	// ExitCode is 128+signal when the code was killed.
	ExitCode   int    `json:"exitCode"`
	DurationMs int64  `json:"durationMs"`
	Signal     string `json:"signal,omitempty"`
	TimedOut   bool   `json:"timedOut,omitempty"`
	OOM        bool   `json:"outOfMemory,omitempty"`
}

// begin starts code and follows it.
func begin(ctx context.Context, s *spawner, q wire.CodeRequest) (*process, error) {
	r, err := s.start(ctx, q)
	if err != nil {
		return nil, err
	}
	p := &process{id: "p-" + strings.ToLower(rand.Text()[:12]), language: q.Language, container: r.container, since: time.Now(), run: r, done: make(chan struct{})}
	p.stdout, p.stderr = collect(r.stdout, s.output), collect(r.stderr, s.output)
	return p, nil
}

// follow waits for the end. It is called once.
func (p *process) follow() {
	defer close(p.done)
	p.exit, p.err = p.run.wait()
	<-p.stdout.done
	<-p.stderr.done
}

// ended gives the outcome; the process is done.
func (p *process) ended() Ended {
	e := Ended{
		ProcessID: p.id, Stdout: p.stdout.text(), Stderr: p.stderr.text(), ExitCode: p.exit.Code, DurationMs: p.exit.Microsecs / 1000,
		Signal: p.exit.Signal, TimedOut: p.exit.TimedOut, OOM: p.exit.OOM,
	}
	switch {
	case e.TimedOut:
		e.Stderr += "\n[killed: its time was over]\n"
	case e.OOM && e.ExitCode != 0:
		e.Stderr += "\n[killed: it took more memory than it may]\n"
	}
	return e
}

func newProcesses(s *spawner) *processes { return &processes{spawner: s, free: maxSpawned} }

// spawn starts code that goes on by itself.
func (ps *processes) spawn(ctx context.Context, q wire.CodeRequest) (*process, error) {
	ps.mu.Lock()
	if ps.free == 0 || ps.closed {
		ps.mu.Unlock()
		return nil, tool.Refuse(deny.ToolQuota, "proc_spawn", fmt.Sprintf("%d spawned processes run already, as many as may", maxSpawned), "end one of them by proc_kill; proc_list shows them")
	}
	ps.free--
	ps.wg.Add(1)
	ps.mu.Unlock()
	p, err := begin(ctx, ps.spawner, q)
	if err != nil {
		ps.release(nil)
		return nil, err
	}
	ps.mu.Lock()
	ps.list = append(ps.list, p)
	closed := ps.closed
	ps.mu.Unlock()
	if closed {
		p.run.kill()
	}
	go func() { // ends with the process; close waits for it
		p.follow()
		ps.release(p)
	}()
	return p, nil
}

// release gives a place back, and forgets the oldest that have ended.
func (ps *processes) release(p *process) {
	defer ps.wg.Done()
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.free++
	if p == nil {
		return
	}
	over := 0
	for _, o := range ps.list {
		if o.over() {
			over++
		}
	}
	ps.list = slices.DeleteFunc(ps.list, func(o *process) bool {
		if over > maxEnded && o.over() {
			over--
			return true
		}
		return false
	})
}

func (p *process) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (ps *processes) all() []*process {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	out := slices.Clone(ps.list)
	slices.SortStableFunc(out, func(a, b *process) int { return cmp.Compare(a.since.UnixNano(), b.since.UnixNano()) })
	return out
}

func (ps *processes) find(id string) (*process, *deny.Reason) {
	for _, p := range ps.all() {
		if p.id == id {
			return p, nil
		}
	}
	return nil, tool.Refuse(deny.ToolMissing, id, "there is no such process of this agent, or it ended long ago", "proc_list shows which there are")
}

// close kills everything and waits.
func (ps *processes) close() {
	ps.mu.Lock()
	ps.closed = true
	list := slices.Clone(ps.list)
	ps.mu.Unlock()
	for _, p := range list {
		if !p.over() {
			p.run.kill()
		}
	}
	ps.wg.Wait()
}
