package evidence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// DecoyMain is the decoy host's main. It never returns.
func DecoyMain() {
	if err := decoyMain(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func decoyMain() error {
	if os.Getpid() != 1 {
		return errors.New("decoy host: not the first process of a PID namespace: it is started by verify, not by hand")
	}
	unix.Umask(0o022) // the starter's may be stricter; decoys of every id walk this tree
	lifeline := os.NewFile(3, "lifeline")
	d := json.NewDecoder(lifeline)
	var plan decoyPlan
	if err := d.Decode(&plan); err != nil {
		return fmt.Errorf("decoy host: plan: %w", err)
	}
	// Owned by the process as a whole: it ends with it, or ends it.
	go func() {
		_, _ = io.Copy(io.Discard, io.MultiReader(d.Buffered(), lifeline))
		os.Exit(1)
	}()
	here, err := namespacesHere()
	if err != nil {
		return err
	}
	for _, n := range here {
		if len(plan.Spare) < 2 || slices.Contains(plan.Spare, n) {
			return errors.New("decoy host: still in the starter's mount or network namespace")
		}
	}
	noDisk, err := newRoot(plan)
	if err != nil {
		return fmt.Errorf("decoy host: root: %w", err)
	}
	// As descriptors that somebody forgot: containers must not have them.
	for range 2 {
		if _, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
			return err
		}
	}
	ctx := context.Background()
	s, err := newScene(ctx, plan)
	if err != nil {
		return fmt.Errorf("decoy host: %w", err)
	}
	attacks := slices.DeleteFunc(Attacks(), func(a Attack) bool { return !slices.Contains(plan.Attacks, a.ID) })
	said := decoyAnswer{Controls: s.controls(ctx, attacks)}
	if plan.Exhaust {
		s.noDisk = noDisk
		said.Exhaustion = s.exhaust(ctx, slices.DeleteFunc(Exhaustion(), func(a Attack) bool { return !slices.Contains(plan.Attacks, a.ID) }))
	}
	if plan.Whole {
		said.Rows = s.whole(ctx, attacks)
	}
	s.close()
	return json.NewEncoder(os.Stdout).Encode(said)
}

// newRoot moves this process into a root of its own on a tmpfs: the programs,
// the devices and the cgroups of the machine, an own /proc, and nothing else but
// disks for those decoys that need them; noDisk says why there are none.
func newRoot(plan decoyPlan) (noDisk, err error) {
	scratch, programs := plan.Scratch, plan.Programs
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("decoy", scratch, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, "mode=755,size=128m"); err != nil {
		return nil, fmt.Errorf("tmpfs on %s: %w", scratch, err)
	}
	for _, dir := range []string{"proc", "dev", "sys", "tmp", "old", "etc", "run", programs} {
		if err := os.MkdirAll(filepath.Join(scratch, dir), 0o755); err != nil { // #nosec G301 -- the decoy's tree is for every decoy
			return nil, err
		}
	}
	for _, b := range []string{"/dev", "/sys", programs} {
		if err := unix.Mount(b, filepath.Join(scratch, b), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return nil, fmt.Errorf("bind %s: %w", b, err)
		}
	}
	if err := unix.Mount("proc", filepath.Join(scratch, "proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return nil, fmt.Errorf("proc: %w", err)
	}
	if plan.Exhaust {
		noDisk = makeDisks(context.Background(), scratch, plan)
	}
	if err := unix.PivotRoot(scratch, filepath.Join(scratch, "old")); err != nil {
		return nil, fmt.Errorf("pivot_root: %w", err)
	}
	if err := errors.Join(os.Chdir("/"), unix.Unmount("/old", unix.MNT_DETACH)); err != nil {
		return nil, err
	}
	return noDisk, os.Chmod("/tmp", 0o1777) // #nosec G302 -- a /tmp
}
