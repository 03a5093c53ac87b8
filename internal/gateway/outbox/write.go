package outbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// write is the one that touches the file, until ctx ends.
func (b *Box) write(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			b.commit() // whoever waits is answered
			return
		case <-b.kick:
			b.commit()
		}
	}
}

// commit makes all changes that wait durable with one fdatasync. The lock is
// not held during it, so that others come meanwhile and share the next one.
func (b *Box) commit() {
	b.mu.Lock()
	err := b.mend()
	batch := b.changes
	b.changes = nil
	var text []byte
	if err == nil {
		text, b.ends = b.ends, nil
		for _, c := range batch {
			e := entry{N: c.w.Number, Refused: c.refused}
			if c.refused == nil {
				e.Time, e.Draft = c.w.Time, &c.w.Draft
			}
			if text, err = appendRecord(text, &e); err != nil {
				break
			}
		}
	}
	b.mu.Unlock()
	if err == nil && len(text) > 0 {
		if _, err = b.file.Write(text); err == nil && len(batch) > 0 {
			err = unix.Fdatasync(int(b.file.Fd())) // #nosec G115 -- a descriptor
		}
		b.size += int64(len(text))
		if err != nil {
			err = fmt.Errorf("outbox: %w", err)
			b.broken = err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range batch {
		b.settle(c, err)
		c.done <- err
	}
}

// settle brings a change into effect that is durable, or takes back one that
// failed. The lock is held.
func (b *Box) settle(c *change, err error) {
	if c.refused != nil {
		if err == nil {
			b.remove(c.w.Number)
			b.keepRefused(*c.refused)
		}
		return
	}
	for i, a := range b.adding {
		if a == c {
			b.adding = append(b.adding[:i], b.adding[i+1:]...)
			break
		}
	}
	if err != nil {
		delete(b.keys, c.w.Draft.IdempotencyKey)
		b.bytes -= int64(len(c.w.Draft.Body))
		return
	}
	b.list = append(b.list, c.w)
	b.tell()
}

// end notes the record of an end, which goes with the next write. The lock is
// held.
func (b *Box) end(e *entry) {
	more, err := appendRecord(b.ends, e)
	if err != nil {
		return // a number and a bool always encode; without it the draft is sent twice under one key
	}
	b.ends = more
	if len(b.ends) > 64<<10 || len(b.list)+len(b.adding) == 0 {
		b.wake()
	}
}

// mend writes the file anew after a write that failed, and when most of it is
// over. The lock is held.
func (b *Box) mend() error {
	if b.broken == nil && (b.size <= rewriteOver || b.size <= 4*(b.bytes+b.refusedBytes)) {
		return nil
	}
	if err := b.rewrite(); err != nil && b.broken != nil {
		return fmt.Errorf("%w; and writing it anew: %w", b.broken, err)
	}
	return nil // or the old file still serves
}

func (b *Box) rewrite() error {
	var text []byte
	var err error
	for i := range b.refused {
		// Its draft is gone, and a number must not be used twice in a file.
		b.next++
		if text, err = appendRecord(text, &entry{N: b.next, Refused: &b.refused[i]}); err != nil {
			return err
		}
	}
	for i := range b.list {
		w := &b.list[i]
		if text, err = appendRecord(text, &entry{N: w.Number, Time: w.Time, Draft: &w.Draft}); err != nil {
			return err
		}
	}
	path := filepath.Join(b.dir, "outbox.new")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR|unix.O_CLOEXEC, 0o600) // #nosec G304 -- the gateway's own folder
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync()); err == nil {
		err = os.Rename(path, b.path())
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	_ = b.file.Close()
	b.file, b.size, b.broken = f, int64(len(text)), nil
	b.ends = nil // what they end is not in the file any more
	if err := syncDir(b.dir); err != nil {
		b.broken = fmt.Errorf("outbox: %w", err) // which of the two files a crash leaves is open
	}
	return b.broken
}
