package evidence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/evidence/attempt"
)

// half is one of the two attempts of a control.
type half struct {
	a   Attack
	c   Control
	off []engine.Mechanism
	res attempt.Result
}

// group are halves that can be made in one decoy: all from the same position,
// with the same mechanisms off.
type group struct {
	from   Position
	off    []engine.Mechanism
	halves []*half
}

// controls runs every control of the attacks: each attempt twice, with the
// mechanism and without it. Both halves differ in nothing else.
func (s *scene) controls(ctx context.Context, attacks []Attack) []ControlRow {
	rows := []ControlRow{}
	var groups []*group
	var fill []func()
	for _, a := range attacks {
		if len(a.Controls) == 0 {
			rows = append(rows, ControlRow{Attack: a.ID, Off: []engine.Mechanism{}, NotRun: a.Uncontrolled})
			continue
		}
		for _, c := range a.Controls {
			if why := a.lacking(s.a, s.b, s.world); why != "" {
				rows = append(rows, ControlRow{Attack: a.ID, Mechanism: c.Mechanism, Off: append([]engine.Mechanism{}, c.Off...), Position: c.Position(), NotRun: why})
				continue
			}
			i := len(rows)
			rows = append(rows, ControlRow{Attack: a.ID, Mechanism: c.Mechanism, Off: append([]engine.Mechanism{}, c.Off...), Position: c.Position()})
			with, without := &half{a: a, c: c, off: c.Off}, &half{a: a, c: c, off: append(slices.Clone(c.Off), c.Mechanism)}
			groups, with = join(groups, with)
			groups, without = join(groups, without)
			fill = append(fill, func() { rows[i].judge(a, c, with.res, without.res) })
		}
	}
	for _, g := range groups {
		s.attack(ctx, g)
	}
	for _, f := range fill {
		f()
	}
	return rows
}

// join puts a half into the group that it fits in, or makes one. The half that
// it gives back is h, or one that is the same: all of an attack's mechanisms
// off is one attempt, whichever of them the control is about.
func join(groups []*group, h *half) ([]*group, *half) {
	off := slices.Clone(h.off)
	slices.Sort(off)
	for _, g := range groups {
		if g.from != h.c.Position() || !slices.Equal(g.off, off) {
			continue
		}
		for _, same := range g.halves {
			if same.a.ID == h.a.ID {
				return groups, same
			}
		}
		if !h.a.Disturbs && !g.halves[0].a.Disturbs {
			g.halves = append(g.halves, h)
			return groups, h
		}
	}
	return append(groups, &group{from: h.c.Position(), off: off, halves: []*half{h}}), h
}

// judge fills a row.
func (r *ControlRow) judge(a Attack, c Control, with, without attempt.Result) {
	verdict, evidence := judge(with.Answer, with.Err, c.Witness)
	r.On = evidence
	free, evidence := judge(without.Answer, without.Err, a.Lacking)
	r.Without = evidence
	switch {
	case verdict == NotRun, free == NotRun, free == Denied: // Denied: in one of the ways of a kernel that lacks it
		r.NotRun = "this kernel lacks what the attack would use, or root is not allowed it here: " + evidence
	default:
		r.Bit = verdict == Denied && free == Succeeded
	}
}

// attack starts one decoy and makes the attempts of a group from it.
func (s *scene) attack(ctx context.Context, g *group) {
	spec := s.spec(g.from, g.off)
	id := spec.User.ID
	if !spec.Has(engine.MechUserNS) {
		id = spec.User.Map[0].Host
	}
	own := []attempt.Span{{First: id, Last: id}}
	if !spec.Has(engine.MechUser) {
		own = nil // it shares the target's id: nothing is "its own" by that
	}
	var list []asking
	for _, h := range g.halves {
		list = append(list, asking{a: h.a, q: request(h.a, s.a, s.b, s.world, own)})
	}
	results := ask(list, func(batch []byte) ([]byte, error) {
		// An earlier one may have taken the table away, which is its business.
		if err := s.rules(ctx, spec.Has(engine.MechNftables)); err != nil {
			return nil, err
		}
		if s.egress != nil {
			if err := s.egress.guard(spec.Has(engine.MechGuard)); err != nil {
				return nil, err
			}
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return runCell(ctx, spec, cell.Options{Cgroups: s.cgroups}, batch, nil)
	})
	for i, h := range g.halves {
		h.res = results[i]
		if strings.HasPrefix(h.a.Attempt, "dialer.") && s.noEgress != nil {
			h.res = attempt.Result{Err: fmt.Errorf("%w: the decoy host has no dialer: %w", attempt.ErrLost, s.noEgress)}
		}
		if h.a.byTools() && s.noGates != nil {
			h.res = attempt.Result{Err: fmt.Errorf("%w: the decoy host has no gateways: %w", attempt.ErrLost, s.noGates)}
		}
	}
}

// whole attacks from decoys with nothing switched off.
func (s *scene) whole(ctx context.Context, attacks []Attack) []Row {
	var rows []Row
	for _, p := range []Position{FromRuntime, FromGateway} {
		g := &group{from: p}
		for _, a := range attacks {
			if slices.Contains(a.From, p) {
				g.halves = append(g.halves, &half{a: a})
			}
		}
		if len(g.halves) == 0 {
			continue
		}
		s.attack(ctx, g)
		for _, h := range g.halves {
			row := Row{Agent: "a", Position: p, Attack: h.a.ID, Layer: h.a.Layer}
			row.Verdict, row.Evidence = judge(h.res.Answer, h.res.Err, h.a.Witness())
			rows = append(rows, row)
		}
	}
	return rows
}

// runCell starts one container, gives it input and returns its output. after
// may be nil; it is called when the container has ended and its cgroup is still
// there.
func runCell(ctx context.Context, spec engine.Spec, opt cell.Options, input []byte, after func() error) (output []byte, err error) {
	var pipes [3][2]*os.File // stdin, stdout, stderr; each read end, write end
	for i := range pipes {
		if pipes[i][0], pipes[i][1], err = os.Pipe(); err != nil {
			return nil, err
		}
		defer pipes[i][0].Close()
		defer pipes[i][1].Close() // closed earlier below; a second close is harmless
	}
	opt.Stdin, opt.Stdout, opt.Stderr = pipes[0][0], pipes[1][1], pipes[2][1]
	p, err := cell.Start(spec, opt)
	if err != nil {
		return nil, fmt.Errorf("start a decoy: %w", err)
	}
	for _, f := range []*os.File{pipes[0][0], pipes[1][1], pipes[2][1]} {
		_ = f.Close()
	}
	var out, errs bytes.Buffer
	var wait sync.WaitGroup
	wait.Go(func() { _, _ = io.Copy(&out, io.LimitReader(pipes[1][0], attempt.MaxBytes+1)) })
	wait.Go(func() { _, _ = io.Copy(&errs, io.LimitReader(pipes[2][0], 64<<10)) })
	_, werr := pipes[0][1].Write(input)
	werr = errors.Join(werr, pipes[0][1].Close())
	stop := context.AfterFunc(ctx, func() { _ = p.Kill() })
	exit, perr := p.Wait()
	stop()
	_ = p.Signal(unix.SIGKILL)
	wait.Wait()
	var aerr error
	if after != nil {
		aerr = after()
	}
	err = errors.Join(werr, perr, aerr, p.Close())
	if exit.Code != 0 {
		err = errors.Join(err, fmt.Errorf("the probe ended with %s: %s", exit, strings.TrimSpace(errs.String())))
	}
	return out.Bytes(), err // what was said before it failed counts
}
