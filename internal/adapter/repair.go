package adapter

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// RepairReport says what Repair did.
type RepairReport struct {
	Damaged    string   `json:"damaged"`    // where the old store is now, as it was
	Messages   int64    `json:"messages"`   // salvaged
	Deliveries int64    `json:"deliveries"` // salvaged
	Dead       int64    `json:"dead_letters"`
	Requeued   int64    `json:"requeued"` // deliveries whose state was lost: they come (perhaps again)
	Lost       []string `json:"lost"`     // what could not be read, in words
}

// Repair makes a sound store of a damaged one whose adapter is stopped. It
// copies row by row whatever can be read, into a new file; the damaged one is
// moved aside and never written to. Deliveries whose state cannot be read are
// queued again, since a message that comes twice is better than one that never
// comes. It may be used on a sound store, too.
func Repair(ctx context.Context, path string) (RepairReport, error) {
	var r RepairReport
	lock, err := lockStore(path)
	if err != nil {
		return r, err
	}
	defer lock.Close()
	if err := r.run(ctx, path, time.Now()); err != nil {
		return r, fmt.Errorf("repair %s: %w", path, err)
	}
	return r, nil
}

func (r *RepairReport) run(ctx context.Context, path string, now time.Time) (err error) {
	work, err := os.MkdirTemp(filepath.Dir(path), filepath.Base(path)+".repair-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	// SQLite works on a copy: reading a log already changes files.
	copied, fresh := filepath.Join(work, "damaged.db"), filepath.Join(work, "fresh.db")
	for _, suffix := range []string{"", "-wal"} {
		if err := copyFile(path+suffix, copied+suffix); err != nil && (suffix == "" || !errors.Is(err, os.ErrNotExist)) {
			return err
		}
	}
	d := pureGo()
	if err := r.salvage(ctx, d, copied, fresh); err != nil {
		return err
	}
	if err := verify(ctx, d, fresh); err != nil {
		return err
	}
	r.Damaged = path + ".damaged-" + now.UTC().Format("20060102T150405.000")
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Rename(path+suffix, r.Damaged+suffix); err != nil && (suffix == "" || !errors.Is(err, os.ErrNotExist)) {
			return err
		}
	}
	return settleFile(fresh, path)
}

func (r *RepairReport) salvage(ctx context.Context, d dialect, from, to string) (err error) {
	in, err := d.with(from, []string{"PRAGMA cell_size_check = OFF"})
	if err != nil {
		return fmt.Errorf("its first page cannot be read; restore a backup: %w", err)
	}
	defer func() { err = errors.Join(err, in.close()) }()
	id, err := in.integer("PRAGMA application_id")
	if err != nil || id != applicationID {
		return fmt.Errorf("it is no message store, or its first page is lost (%w); restore a backup", errors.Join(err, fmt.Errorf("application_id %#x", id)))
	}
	if err := private(to); err != nil {
		return err
	}
	out, err := d.with(to, []string{"PRAGMA journal_mode = DELETE", "PRAGMA synchronous = FULL"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.close()) }()
	if err := migrate(out); err != nil {
		return err
	}
	s := &salvage{ctx: ctx, in: in, out: out, report: r}
	if err := out.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if err := s.all(); err != nil {
		return err
	}
	return out.exec("COMMIT")
}

// copyFile copies byte by byte, and stops at nothing that can be read.
func copyFile(from, to string) error {
	raw, err := os.Open(filepath.Clean(from))
	if err != nil {
		return err
	}
	defer raw.Close()
	out, err := os.OpenFile(filepath.Clean(to), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := raw.Stat()
	if err != nil {
		return errors.Join(err, out.Close())
	}
	const block = 4096 // a page: what of a page cannot be read is as good as lost
	buf := make([]byte, block)
	for at := int64(0); at < info.Size(); at += block {
		n, readErr := raw.ReadAt(buf, at)
		if n == 0 && readErr != nil {
			clear(buf)
			n = int(min(block, info.Size()-at)) // unreadable: zeroes, which SQLite sees as damage
		}
		if _, err := out.WriteAt(buf[:n], at); err != nil {
			return errors.Join(err, out.Close())
		}
	}
	return errors.Join(out.Sync(), out.Close())
}

// row keeps the values of one row.
type row []driver.Value

func (r row) args() []any {
	out := make([]any, len(r))
	for i, v := range r {
		out[i] = v
	}
	return out
}
