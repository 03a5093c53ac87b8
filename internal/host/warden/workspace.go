package warden

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"bulkhead/internal/host/tree"
)

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
	if err := os.Rename(tmp, to); err != nil {
		return fmt.Errorf("workspace: put %s in place: %w", filepath.Base(to), err)
	}
	return nil
}
