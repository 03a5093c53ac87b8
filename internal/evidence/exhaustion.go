package evidence

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"bulkhead/internal/deny"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/evidence/attempt"
	"bulkhead/internal/host/disk"
)

// Limits of the decoys that take too much, and of their disks. What they try
// to take is more than they allow, and little enough to do no harm where
// nothing stops them.
var (
	exhaustLimits   = engine.Limits{MemoryBytes: 96 << 20, MilliCPU: 1000, PIDs: 40, NoFile: 256}
	neighbourLimits = engine.Limits{MemoryBytes: 96 << 20, MilliCPU: 1000, PIDs: 64, NoFile: 256}
	exhaustDisk     = disk.Size{Bytes: 16 << 20, Inodes: 512}
)

// workDir is where decoys that take too much have their disk.
const workDir = "/work"

const (
	bounds = engine.MechLimits
	quota  = engine.MechQuota
)

// Exhaustion is the part of the library that takes more than its share. It is
// made in decoys alone: from a live agent it would end that agent's own
// processes. A neighbour with limits of its own works beside each, and the row
// says what it felt.
func Exhaustion() []Attack {
	take := func(id, title, tries, reference string, mechanism engine.Mechanism, n int64, layer deny.Layer, witness ...string) Attack {
		return Attack{
			ID: "exhaust." + id, Title: title, Tries: tries, Attempt: "exhaust." + id, Layer: layer, From: []Position{FromRuntime}, At: AtNobody, Reference: reference,
			Aim: func(_, _ Agent, _ World) attempt.Request {
				return attempt.Request{Take: n, Paths: []string{workDir}}
			},
			Controls: []Control{{Mechanism: mechanism, Witness: witness}}, Disturbs: true,
		}
	}
	return []Attack{
		take("memory", "use up the machine's memory", "touch 160 MiB where 96 are allowed", "CWE-770; cgroups(7)", bounds, 160<<20, deny.LayerPod, "SIGKILL", "ENOMEM"),
		take("processes", "use up the machine's process numbers", "have 40 children where 40 processes and threads are allowed", "CWE-770; fork bombs", bounds, 40, deny.LayerPod, "EAGAIN"),
		take("files", "use up the machine's open files", "open 512 files where 256 are allowed", "CWE-770; getrlimit(2)", bounds, 512, deny.LayerPod, "EMFILE"),
		take("processor", "use up the machine's processors", "compute for 0.3 s where a tenth of a processor is allowed", "CWE-400; Documentation/scheduler/sched-bwc.rst", bounds, 300_000, deny.LayerPod, "throttled"),
		take("disk", "fill the machine's disk", "write 24 MiB to a disk of 16", "CWE-400", quota, 24<<20, deny.LayerQuota, "ENOSPC", "EDQUOT"),
		take("inodes", "use up the disk's inodes", "make 2048 files on a disk of 512 inodes", "CWE-400", quota, 2048, deny.LayerQuota, "ENOSPC", "EDQUOT"),
	}
}

// ExhaustionRow is a control of one of them.
type ExhaustionRow struct {
	ControlRow
	// Alone and Beside are what the neighbour did without and beside the half in
	// which the mechanism is in force.
	Alone  string `json:"alone"`
	Beside string `json:"beside"`
}

// exhaust runs some of them, one after the other.
func (s *scene) exhaust(ctx context.Context, attacks []Attack) []ExhaustionRow {
	rows := []ExhaustionRow{}
	var alone attempt.Result
	for _, a := range attacks {
		c := a.Controls[0]
		row := ExhaustionRow{ControlRow: ControlRow{Attack: a.ID, Mechanism: c.Mechanism, Off: []engine.Mechanism{}, Position: c.Position()}}
		switch {
		case s.noDisk != nil:
			row.NotRun = "the decoys have no disks: " + s.noDisk.Error()
		case s.cgroups == nil:
			row.NotRun = "the decoys have no cgroups"
		default:
			if alone.Answer.Outcome == "" {
				alone = s.neighbour(ctx)
			}
			var beside attempt.Result
			var wait sync.WaitGroup
			wait.Go(func() { beside = s.neighbour(ctx) })
			with := s.taking(ctx, a, nil)
			wait.Wait()
			without := s.taking(ctx, a, []engine.Mechanism{c.Mechanism})
			row.judge(a, c, with, without)
			row.Alone, row.Beside = felt(alone), felt(beside)
			row.Bit = row.Bit && beside.Err == nil && beside.Answer.Outcome == attempt.Succeeded
		}
		rows = append(rows, row)
	}
	return rows
}

// felt puts a neighbour's answer into words.
func felt(r attempt.Result) string {
	if r.Err != nil {
		return "lost: " + r.Err.Error()
	}
	return r.Answer.Evidence()
}

// taking makes one attempt to take too much.
func (s *scene) taking(ctx context.Context, a Attack, off []engine.Mechanism) attempt.Result {
	spec := s.spec(FromRuntime, off)
	spec.Limits = exhaustLimits
	if a.Attempt == "exhaust.processor" {
		spec.Limits.MilliCPU = 100 // for the others it would only take longer
	}
	place := s.a.Place.Workspace()
	if !spec.Has(quota) {
		place = "/decoy/unbounded"
	}
	spec.Mounts = append(spec.Mounts, engine.Mount{Kind: engine.MountBind, Source: place, Target: workDir, Writable: true})
	var throttled int64
	r := s.askCell(ctx, spec, asking{a: a, q: request(a, s.a, s.b, s.world, nil)}, func() error {
		g, err := s.cgroups.Group(spec.Cgroup)
		if err == nil {
			throttled, err = g.Throttled()
		}
		return err
	})
	// That it was held back is the kernel's to say, not the attacker's.
	if a.Attempt == "exhaust.processor" && r.Err == nil && r.Answer.Outcome == attempt.Succeeded && throttled > 0 {
		r.Answer.Outcome, r.Answer.Witness = attempt.Denied, fmt.Sprintf("held back in %d periods", throttled)
		for i := range r.Answer.Steps {
			r.Answer.Steps[i].Refusal = "throttled"
		}
	}
	return r
}

// neighbour does some work as b.
func (s *scene) neighbour(ctx context.Context) attempt.Result {
	spec := s.spec(FromRuntime, nil)
	spec.Limits, spec.Agent = neighbourLimits, "b"
	spec.User.Map[0].Host = s.b.IDs.Runtime()
	spec.Mounts = append(spec.Mounts, engine.Mount{Kind: engine.MountBind, Source: s.b.Place.Workspace(), Target: workDir, Writable: true})
	a := Attack{ID: "neighbour", Attempt: "neighbour.work", Aim: func(_, _ Agent, _ World) attempt.Request {
		return attempt.Request{Paths: []string{workDir}}
	}}
	return s.askCell(ctx, spec, asking{a: a, q: request(a, s.b, s.a, s.world, nil)}, nil)
}

func (s *scene) askCell(ctx context.Context, spec engine.Spec, one asking, after func() error) attempt.Result {
	return ask([]asking{one}, func(batch []byte) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return runCell(ctx, spec, cell.Options{Cgroups: s.cgroups}, batch, after)
	})[0]
}

// makeDisks gives a and b a disk each, below a root that is being made. The
// tools that make them are the machine's.
func makeDisks(ctx context.Context, below string, plan decoyPlan) error {
	for _, a := range decoyAgents(plan) {
		d := disk.Disk{Image: filepath.Join(below, a.Place.RuntimeImage()), Point: filepath.Join(below, a.Place.RuntimeDisk())}
		if err := os.MkdirAll(filepath.Dir(d.Image), 0o755); err != nil { // #nosec G301 -- as on a real host
			return err
		}
		if err := d.Ensure(ctx, exhaustDisk); err != nil {
			return err
		}
	}
	return nil
}

// makeWork makes the folders that decoys which take too much write to.
func (s *scene) makeWork() error {
	for place, id := range map[string]uint32{s.a.Place.Workspace(): s.a.IDs.Runtime(), "/decoy/unbounded": s.a.IDs.Runtime()} {
		if err := os.MkdirAll(place, 0o700); err != nil {
			return err
		}
		if err := os.Chown(place, int(id), int(id)); err != nil {
			return err
		}
	}
	return os.MkdirAll(filepath.Join(decoyRoot, workDir), 0o755) // #nosec G301 -- a mount point
}
