package cell

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"bulkhead/internal/engine"
	"bulkhead/internal/thread"
)

// Depth says how much of a container is made ahead of its command.
type Depth int

// The depths.
const (
	// DepthSeat makes the cgroup, the network namespace and the mounts, and
	// keeps a thread in the first two: what is forked from it is born there.
	// No process exists yet.
	DepthSeat Depth = iota
	// DepthProcess makes everything: a confined child waits for its
	// command and execs it.
	DepthProcess
)

// Command is what a prepared container runs.
type Command struct {
	Argv, Env             []string
	Dir                   string
	Stdin, Stdout, Stderr *os.File // all three, open; the caller's
}

// Prepared is a container that lacks only its command. Exactly one of Start
// and Discard is called, once.
type Prepared struct {
	l      *launch
	orders chan Command // to the thread of a seat
	answer chan prepared
	proc   *Process // of DepthProcess
	once   sync.Once
}

type prepared struct {
	p   *Process
	err error
}

// stdio is how many descriptors a one-off container has.
const stdio = 3

// Prepare makes a container of role run ahead of its command. Spec.Command,
// Env and Dir are those of a placeholder: they come with Start.
func Prepare(spec engine.Spec, opt Options, depth Depth) (*Prepared, error) {
	if spec.Role != engine.RoleRun || len(spec.Init) > 0 || len(spec.Off) > 0 {
		return nil, errors.New("cell: only plain one-off containers are prepared ahead")
	}
	if err := errors.Join(checkOurs(&spec), Check(&spec)); err != nil {
		return nil, err
	}
	l := &launch{spec: &spec, opt: &opt, wait: depth == DepthProcess}
	if err := l.prepare(); err != nil {
		l.close()
		return nil, errors.Join(err, l.removeGroup())
	}
	p := &Prepared{l: l, orders: make(chan Command), answer: make(chan prepared)}
	go thread.Run(p.thread)
	if r := <-p.answer; r.err != nil {
		l.close()
		return nil, fmt.Errorf("cell: prepare %s: %w", spec.Name, errors.Join(r.err, l.removeGroup()))
	} else if depth == DepthProcess {
		p.proc = r.p
	}
	return p, nil
}

// thread is the thread that is thrown away. It says once that it is ready;
// a seat's then waits for its command and forks.
func (p *Prepared) thread() {
	err := p.l.settle()
	if err != nil || p.l.wait {
		var proc *Process
		if err == nil {
			proc, err = p.l.fork()
		}
		p.answer <- prepared{proc, err}
		return
	}
	// A seat's script is written ahead: it is the same whatever the command.
	if p.l.script, err = p.l.write(stdio); err != nil {
		p.answer <- prepared{nil, err}
		return
	}
	p.answer <- prepared{}
	c, ok := <-p.orders
	if !ok {
		return
	}
	p.l.spec.Command, p.l.spec.Env, p.l.spec.Dir = c.Argv, c.Env, c.Dir
	p.l.opt.Stdin, p.l.opt.Stdout, p.l.opt.Stderr = c.Stdin, c.Stdout, c.Stderr
	proc, err := p.l.fork()
	p.answer <- prepared{proc, err}
}

// Process is the waiting process of DepthProcess, so that its parent can reap
// it; nil for a seat.
func (p *Prepared) Process() *Process { return p.proc }

// Start gives the command and returns once it runs.
func (p *Prepared) Start(c Command) (*Process, error) {
	var proc *Process
	err := errors.New("cell: a prepared container starts once")
	p.once.Do(func() {
		if p.proc != nil {
			proc, err = p.proc, p.l.order(c)
			return
		}
		p.orders <- c
		r := <-p.answer
		proc, err = r.p, r.err
	})
	p.l.close()
	if err == nil {
		return proc, nil
	}
	if p.proc != nil {
		err = errors.Join(err, p.proc.Kill(), p.proc.Close())
	} else {
		err = errors.Join(err, p.l.removeGroup())
	}
	return nil, fmt.Errorf("cell: start %s: %w", p.l.spec.Name, err)
}

// Discard takes everything away again.
func (p *Prepared) Discard() error {
	var err error
	p.once.Do(func() {
		if p.proc != nil {
			err = errors.Join(p.proc.Kill(), p.proc.Close())
		} else {
			close(p.orders)
		}
	})
	p.l.close()
	return errors.Join(err, p.l.removeGroup())
}
