package warden

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/host/tree"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// cloneWanted says whether the agent's workspace is yet to begin with a repository.
// A disk that is not mounted hides one that has: what was noted says so.
func cloneWanted(place layout.Agent, a *team.Agent) bool {
	if _, _, url := a.Clone(); !url {
		return false
	}
	for _, path := range []string{place.Workspace(), place.Cloned()} {
		if _, err := os.Lstat(path); err == nil {
			return false
		}
	}
	return true
}

// checkClones says which clones are missing, or lie where root's do not.
func (w *Warden) checkClones(wanted []string, given map[string]string) error {
	var faults []string
	for _, name := range wanted {
		if given[name] == "" {
			faults = append(faults, fmt.Sprintf("agents.%s.workspace: its repository was not cloned; to mend: `sudo bulkhead up` of this build does it", name))
		}
	}
	for name, path := range given {
		if filepath.Clean(path) != path || filepath.Dir(filepath.Dir(path)) != w.host.Clones() {
			faults = append(faults, fmt.Sprintf("agents.%s.workspace: a clone lies at %s, not in a folder of %s", name, path, w.host.Clones()))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	slices.Sort(faults)
	return &fault{wire.Failure{Message: strings.Join(faults, "\n"), Exit: wire.ExitBadInput}}
}

// beginWorkspace makes the workspace of a folder or a clone.
func (a *agentRun) beginWorkspace() error {
	from := a.Want.Workspace
	if _, _, url := a.Want.Clone(); url {
		if from = a.clone; from == "" {
			// The disk is mounted, and there is none: what was noted does not hold.
			if err := tree.Remove(a.Place.Cloned()); err != nil {
				return err
			}
			return fmt.Errorf("workspace: %s is not cloned, or not whole; to mend: `sudo bulkhead up` clones it", a.Want.Workspace)
		}
	}
	return importWorkspace(from, a.Place.Workspace(), a.IDs.Runtime())
}

// noteClone notes that there is a workspace, for the time when its disk is not
// mounted. What began it does not matter: it is never begun again.
func (a *agentRun) noteClone() error {
	if _, _, url := a.Want.Clone(); !url {
		return nil
	}
	if _, err := os.Lstat(a.Place.Cloned()); err == nil {
		return nil
	}
	return tree.WriteFile(a.Place.Cloned(), []byte(a.Want.Workspace+"\n"), 0o600, 0)
}

// importWorkspace copies the operator's folder into a new workspace of the
// agent. It copies beside and renames, so that a crash leaves no half copy
// that would later pass for the workspace. Links are copied as links and never
// followed; devices, pipes and sockets are refused.
func importWorkspace(from, to string, id uint32) error {
	st, err := os.Lstat(from)
	if err != nil {
		return fmt.Errorf("workspace: %w", err)
	}
	if !st.IsDir() {
		return fmt.Errorf("workspace: %s is not a folder", from)
	}
	tmp := to + ".new"
	if err := tree.Remove(tmp); err != nil {
		return err
	}
	if err := tree.MakeAll(tree.Entry{Path: tmp, Mode: 0o700}); err != nil {
		return err
	}
	root, err := os.OpenRoot(from)
	if err != nil {
		return fmt.Errorf("workspace: %w", err)
	}
	err = os.CopyFS(tmp, root.FS())
	if err := errors.Join(err, root.Close()); err != nil {
		return errors.Join(fmt.Errorf("workspace: copy %s: %w", from, err), tree.Remove(tmp))
	}
	if err := tree.Chown(tmp, id, id); err != nil {
		return err
	}
	// It lies on a disk of its own: what is noted elsewhere must not be true before
	// it is.
	if err := syncDisk(tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, to); err != nil {
		return fmt.Errorf("workspace: put %s in place: %w", filepath.Base(to), err)
	}
	return syncDisk(to)
}

// syncDisk writes out the file system that a folder lies on.
func syncDisk(path string) error {
	f, err := os.Open(path) // #nosec G304 -- in a folder of root's
	if err != nil {
		return fmt.Errorf("workspace: %w", err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.Syncfs(int(f.Fd())); err != nil { // #nosec G115 -- a descriptor
		return fmt.Errorf("workspace: write out the disk of %s: %w", filepath.Base(path), err)
	}
	return nil
}
