package warden

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/layout"
	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

// Bounds of a repair.
const (
	repairPatience = 30 * time.Minute
	maxRepairWords = 64 << 10
)

// repair ends the adapter, repairs its file in a cell like its own, and starts
// it again, however the repair went. What agents send meanwhile waits in their
// outboxes.
func (w *Warden) repair(ctx context.Context, req wire.TeamRequest, uid uint32, say progress) (*wire.RepairResult, error) {
	w.change.Lock()
	defer w.change.Unlock()
	a, err := w.adapterOf(req.Team)
	if err != nil {
		return nil, err
	}
	t, err := w.team(a.place.Team)
	if err != nil {
		return nil, err
	}
	say(layout.AdapterName, "stopping")
	if err := a.halt(ctx); err != nil {
		return nil, err
	}
	say(layout.AdapterName, "repairing")
	a.procs.Lock()
	report, rerr := a.runRepair(ctx)
	a.procs.Unlock()
	w.operatorDid(a, uid, "repair", "", rerr)
	serr := w.startAdapter(ctx, t, say)()
	if rerr != nil {
		return nil, errors.Join(rerr, serr)
	}
	if serr != nil {
		report += "the adapter does not run: " + serr.Error() + "\n"
	}
	return &wire.RepairResult{SchemaVersion: 1, Team: a.place.Team, Report: report, Ready: serr == nil}, nil
}

// runRepair runs the repair and gives its words. The adapter is stopped; the
// caller holds a.procs.
func (a *adapterRun) runRepair(ctx context.Context) (string, error) {
	a.mu.Lock()
	wants := a.wants
	a.mu.Unlock()
	cf, err := sealed("repair-config", protocol.Config{
		Team: a.place.Team, Policy: wants.policy, Database: insideData + "/messages.db", Listeners: []string{protocol.OperatorListener},
	})
	if err != nil {
		return "", err
	}
	defer func() { _ = cf.Close() }()
	r, out, err := os.Pipe()
	if err != nil {
		return "", fmt.Errorf("warden: pipe: %w", err)
	}
	defer func() { _ = r.Close() }()
	spec := adapterSpec(a.place, a.uid, a.w.host.Programs(a.w.build))
	spec.Command = []string{programsDir + "/" + serveProgram, "repair"}
	a.mu.Lock()
	spec.AcceptMissing = acceptedMechanisms(a.accepted)
	a.mu.Unlock()
	p, err := cell.Start(spec, cell.Options{Cgroups: a.w.cgroups, Stdout: out, Stderr: out, Files: []*os.File{cf}})
	_ = out.Close()
	if err != nil {
		return "", fmt.Errorf("start the repair: %w", err)
	}
	defer func() { _ = p.Close() }()
	ctx, cancel := context.WithTimeout(ctx, repairPatience)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = p.Kill() })
	defer stop()
	var words bytes.Buffer
	_, err = io.Copy(&words, io.LimitReader(r, maxRepairWords))
	_, _ = io.Copy(io.Discard, r) // so that the rest does not stop it
	exit, werr := p.Wait()
	if err = errors.Join(err, werr); err == nil && exit.Code != 0 {
		err = fmt.Errorf("repair: %s: %s", exit, bytes.TrimSpace(words.Bytes()))
	}
	if err == nil {
		a.event(record.Allowed, "repaired")
	}
	return words.String(), err
}
