package evidence

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
)

// DecoyArg is the first argument with which a program is told to be a decoy
// host: its main then calls [DecoyMain] and nothing else.
const DecoyArg = "decoy-host"

// DecoyIDs is how many ids a decoy host needs from the first one on: two
// accounts, two dialers and two ranges.
const DecoyIDs = 3 * 65536

// DecoyCgroup is the one group, below our root, of every decoy. It is gone when
// no controls run.
const DecoyCgroup = "decoy-controls"

// DecoyHost runs controls in a decoy host. Callers, of other processes too,
// take turns by a lock on Scratch.
type DecoyHost struct {
	// Self is a program that calls DecoyMain for DecoyArg. Empty: this one.
	Self string
	// Programs is the root-owned folder of one build, with bulkhead-probe,
	// bulkhead-shim and bulkhead-net.
	Programs string
	// FirstID starts DecoyIDs ids that no account of this host has.
	FirstID uint32
	// Scratch is a root-owned folder (layout.Host.Run and "decoy"). It is made
	// if it is missing, and stays empty: what lies in it exists in the decoy
	// host's mount namespace alone.
	Scratch string
	// CgroupRoot is cgroup.RootName; decoys live in [DecoyCgroup] below it.
	// Empty: decoys stay in the caller's cgroup.
	CgroupRoot string
}

// decoyPlan is what a decoy host is told.
type decoyPlan struct {
	Programs   string   `json:"programs"`
	FirstID    uint32   `json:"firstID"`
	Scratch    string   `json:"scratch"`
	CgroupRoot string   `json:"cgroupRoot,omitempty"`
	Attacks    []string `json:"attacks"`
	Whole      bool     `json:"whole,omitempty"`
	Exhaust    bool     `json:"exhaust,omitempty"`
	Spare      []uint64 `json:"spare"`
}

// decoyAnswer is what it says.
type decoyAnswer struct {
	Controls []ControlRow `json:"controls"`
	Rows     []Row        `json:"rows,omitempty"`

	Exhaustion []ExhaustionRow `json:"exhaustion,omitempty"`
}

// Controls implements [Decoys].
func (d *DecoyHost) Controls(ctx context.Context, attacks []Attack) ([]ControlRow, error) {
	a, err := d.run(ctx, attacks, decoyPlan{})
	return a.Controls, err
}

// Exhaustion implements [Decoys].
func (d *DecoyHost) Exhaustion(ctx context.Context) ([]ExhaustionRow, error) {
	return d.ExhaustionOf(ctx, Exhaustion())
}

// ExhaustionOf runs some of [Exhaustion].
func (d *DecoyHost) ExhaustionOf(ctx context.Context, attacks []Attack) ([]ExhaustionRow, error) {
	a, err := d.run(ctx, attacks, decoyPlan{Exhaust: true})
	return a.Exhaustion, err
}

// Whole runs the controls, and makes the attacks from decoys with nothing
// switched off as well: those are confined as a live agent's containers are.
func (d *DecoyHost) Whole(ctx context.Context, attacks []Attack) ([]ControlRow, []Row, error) {
	a, err := d.run(ctx, attacks, decoyPlan{Whole: true})
	return a.Controls, a.Rows, err
}

func (d *DecoyHost) run(ctx context.Context, attacks []Attack, plan decoyPlan) (decoyAnswer, error) {
	spare, err := namespacesHere()
	if err != nil {
		return decoyAnswer{}, err
	}
	plan.Programs, plan.FirstID, plan.Scratch, plan.CgroupRoot, plan.Spare = d.Programs, d.FirstID, d.Scratch, d.CgroupRoot, spare
	for _, a := range attacks {
		plan.Attacks = append(plan.Attacks, a.ID)
	}
	if err := d.check(); err != nil {
		return decoyAnswer{}, err
	}
	unlock, err := lockFolder(ctx, d.Scratch)
	if err != nil {
		return decoyAnswer{}, err
	}
	defer unlock()
	// What an earlier decoy host left when it was killed would be in the way.
	if err := d.sweep(); err != nil {
		return decoyAnswer{}, err
	}
	raw, err := json.Marshal(plan)
	if err != nil {
		return decoyAnswer{}, err
	}
	said, err := d.start(ctx, raw)
	return said, errors.Join(err, d.sweep())
}

// Sweep removes what a killed decoy host left behind: its cgroup. It does
// nothing while controls run. Safe to repeat.
func (d *DecoyHost) Sweep(ctx context.Context) error {
	if _, err := os.Stat(d.Scratch); errors.Is(err, os.ErrNotExist) {
		return nil // none was ever started
	}
	unlock, err := lockFolder(ctx, d.Scratch)
	if err != nil {
		return err
	}
	defer unlock()
	return d.sweep()
}

func (d *DecoyHost) sweep() error {
	if d.CgroupRoot == "" {
		return nil
	}
	tree, err := cgroup.Open(d.CgroupRoot)
	if err != nil {
		return err
	}
	g, err := tree.Group(DecoyCgroup)
	if err != nil {
		return err
	}
	return g.Remove()
}

// lockFolder waits for the lock on a folder. The lock ends with the process,
// however that ends.
func lockFolder(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.Open(dir) // #nosec G304 -- the caller's own folder
	if err != nil {
		return nil, fmt.Errorf("evidence: folder for decoys: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) // #nosec G115 -- a descriptor
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("evidence: lock %s: %w", dir, err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("evidence: other controls are running: %w", ctx.Err()), f.Close())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// check refuses what a decoy host could not be built from.
func (d *DecoyHost) check() error {
	if d.FirstID < 1000 || d.FirstID > 1<<32-2-DecoyIDs {
		return fmt.Errorf("evidence: decoys need %d free ids from FirstID on; %d is no such start", DecoyIDs, d.FirstID)
	}
	for _, p := range []string{"bulkhead-probe", "bulkhead-shim"} {
		if _, err := os.Stat(filepath.Join(d.Programs, p)); err != nil {
			return fmt.Errorf("evidence: decoys need %s: %w", p, err)
		}
	}
	if err := os.MkdirAll(d.Scratch, 0o755); err != nil { // #nosec G301 -- empty, and decoys of every id pass through it
		return fmt.Errorf("evidence: folder for decoys: %w", err)
	}
	return nil
}

// start runs the decoy host. The pipe on descriptor 3 carries the plan and
// stays open: when this process dies, however, the decoy host reads its end
// and ends, and its PID namespace takes every decoy along.
func (d *DecoyHost) start(ctx context.Context, plan []byte) (decoyAnswer, error) {
	self := d.Self
	if self == "" {
		self = "/proc/self/exe"
	}
	lifeline, hold, err := os.Pipe()
	if err != nil {
		return decoyAnswer{}, err
	}
	defer hold.Close()
	var out, errs bytes.Buffer
	c := exec.CommandContext(ctx, self, DecoyArg) // #nosec G204 -- ourselves
	c.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	c.Stdout, c.Stderr = &out, &errs
	c.ExtraFiles = []*os.File{lifeline}
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	if err := c.Start(); err != nil {
		return decoyAnswer{}, errors.Join(fmt.Errorf("evidence: start the decoy host (needs root): %w", err), lifeline.Close())
	}
	_ = lifeline.Close()
	_, werr := hold.Write(append(plan, '\n'))
	err = c.Wait()
	if err != nil || werr != nil {
		return decoyAnswer{}, fmt.Errorf("evidence: decoy host: %w: %s", errors.Join(err, werr), strings.TrimSpace(errs.String()))
	}
	var said decoyAnswer
	if err := json.Unmarshal(out.Bytes(), &said); err != nil {
		return decoyAnswer{}, fmt.Errorf("evidence: decoy host's answer: %w", err)
	}
	return said, nil
}
