package adapter

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Backup implements [Operator]: it writes a consistent copy, whole and on
// disk, to a path that must not exist yet. Sending goes on meanwhile.
func (a *Adapter) Backup(ctx context.Context, path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("backup to %s: it exists already, or cannot be looked at; name a new file", path)
	}
	part := path + ".part"
	if err := os.Remove(part); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("backup to %s: %w", path, err)
	}
	if err := private(part); err != nil {
		return fmt.Errorf("backup to %s: %w", path, err)
	}
	err := a.read(ctx, "", func(c *conn) error {
		if err := c.exec("PRAGMA query_only = OFF"); err != nil { // VACUUM INTO counts as writing
			return err
		}
		defer func() { _ = c.exec("PRAGMA query_only = ON") }()
		return c.exec("VACUUM INTO ?", part)
	})
	if err == nil {
		err = verify(ctx, a.dialect, part)
	}
	if err == nil {
		err = settleFile(part, path)
	}
	if err != nil {
		_ = os.Remove(part)
		return fmt.Errorf("backup to %s: %w", path, err)
	}
	return nil
}

// verify opens a copy and checks it as Open would.
func verify(ctx context.Context, d dialect, path string) error {
	c, err := d.connect(path)
	if err != nil {
		return err
	}
	err = checkIntegrity(ctx, c)
	if err == nil {
		err = c.query("PRAGMA application_id", func(row []driver.Value) error {
			if integer(row[0]) != applicationID {
				return errors.New("the copy is not a message store")
			}
			return nil
		})
	}
	return errors.Join(err, c.close())
}

// settleFile syncs a finished file and gives it its name.
func settleFile(part, path string) error {
	if err := syncPath(part); err != nil {
		return err
	}
	if err := unix.Renameat2(unix.AT_FDCWD, part, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("rename %s: %w", part, err)
	}
	return syncPath(filepath.Dir(path))
}

func syncPath(path string) error {
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
