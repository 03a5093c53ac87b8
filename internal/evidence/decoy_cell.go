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

// controls runs every control of one attack.
func (s *scene) controls(ctx context.Context, a Attack) []ControlRow {
	if len(a.Controls) == 0 {
		return []ControlRow{{Attack: a.ID, Off: []engine.Mechanism{}, NotRun: a.Uncontrolled}}
	}
	var rows []ControlRow
	for _, c := range a.Controls {
		rows = append(rows, s.control(ctx, a, c))
	}
	return rows
}

// control makes the attempt twice: with the mechanism and without it. Both
// halves differ in nothing else.
func (s *scene) control(ctx context.Context, a Attack, c Control) ControlRow {
	row := ControlRow{Attack: a.ID, Mechanism: c.Mechanism, Off: append([]engine.Mechanism{}, c.Off...), Position: c.Position()}
	with, err := s.half(ctx, a, c, row.Off)
	verdict, evidence := judge(with, err, c.Witness)
	row.On = evidence
	without, err := s.half(ctx, a, c, append(slices.Clone(row.Off), c.Mechanism))
	free, evidence := judge(without, err, a.Lacking)
	row.Without = evidence
	switch {
	case verdict == NotRun, free == NotRun, free == Denied: // Denied: in one of the ways of a kernel that lacks it
		row.NotRun = "this kernel lacks what the attack would use: " + evidence
	default:
		row.Bit = verdict == Denied && free == Succeeded
	}
	return row
}

// half starts one decoy with off switched off, and attacks from it.
func (s *scene) half(ctx context.Context, a Attack, c Control, off []engine.Mechanism) (attempt.Answer, error) {
	spec := s.spec(c.Position(), off)
	// An earlier half may have taken the table away, which is its business.
	if err := s.rules(ctx, spec.Has(engine.MechNftables)); err != nil {
		return attempt.Answer{}, err
	}
	if strings.HasPrefix(a.Attempt, "dialer.") {
		if s.noEgress != nil {
			return attempt.Answer{}, fmt.Errorf("the decoy host has no dialer: %w", s.noEgress)
		}
		if err := s.egress.guard(spec.Has(engine.MechGuard)); err != nil {
			return attempt.Answer{}, err
		}
	}
	id := spec.User.ID
	if !spec.Has(engine.MechUserNS) {
		id = spec.User.Map[0].Host
	}
	own := []attempt.Span{{First: id, Last: id}}
	if !spec.Has(engine.MechUser) {
		own = nil // it shares the target's id: nothing is "its own" by that
	}
	return ask(a, s.a, s.b, s.world, own, func(request []byte) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return runCell(ctx, spec, cell.Options{Cgroups: s.cgroups}, request)
	})
}

// runCell starts one container, gives it input and returns its output.
func runCell(ctx context.Context, spec engine.Spec, opt cell.Options, input []byte) (output []byte, err error) {
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
	err = errors.Join(werr, perr, p.Close())
	if exit.Code != 0 {
		err = errors.Join(err, fmt.Errorf("the probe ended with %s: %s", exit, strings.TrimSpace(errs.String())))
	}
	if err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
