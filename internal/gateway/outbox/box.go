package outbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/adapter"
	"bulkhead/internal/deny"
	"bulkhead/internal/jsonscan"
)

// Limits.
const (
	MaxMessages = 1000     // that wait for the adapter
	MaxBytes    = 64 << 20 // of their bodies; adapter.DefaultBytes, so that the adapter can take them all
	MaxRefused  = 1000     // that are kept for the agent to see; the oldest go first
	refusedRoom = 16 << 20 // and bytes of their bodies
	rewriteOver = 8 << 20  // bytes of a file below which it is not written anew
)

// ErrFull is wrapped when the box takes no more.
var ErrFull = errors.New("the outbox is full")

// ErrKeyReused is returned for a key that waits with another content.
var ErrKeyReused = errors.New("the idempotency key waits in the outbox with another content")

// Waiting is a draft that the adapter has not yet.
type Waiting struct {
	Number uint64
	Time   time.Time
	Draft  adapter.Draft
}

// Box is an open outbox. Its methods may be called by many goroutines.
type Box struct {
	dir  string
	lock *os.File
	work sync.WaitGroup
	kick chan struct{}
	stop context.CancelFunc

	// The writer's own.
	file    *os.File
	size    int64
	broken  error // the file's end cannot be trusted
	damaged error

	mu           sync.Mutex
	next         uint64
	list         []Waiting // durable, in order
	keys         map[string]*adapter.Draft
	bytes        int64     // of bodies in list and adding
	adding       []*change // not durable yet
	changes      []*change // everything that the writer is to write: adding, and refusals
	ends         []byte    // records of ends, to go with the next write
	refused      []Refused
	refusedBytes int64
	changed      chan struct{} // closed and made anew when list changes
}

// change is one thing that is to become durable: a draft, or a refusal of one.
type change struct {
	w       Waiting
	refused *Refused
	done    chan error
}

// Open opens the box in dir, which must exist, and makes one when there is
// none.
func Open(dir string) (*Box, error) {
	lock, err := os.OpenFile(filepath.Join(dir, "outbox.lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600) // #nosec G304 G703 -- the gateway's own folder
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil { // #nosec G115 -- a descriptor
		_ = lock.Close()
		return nil, fmt.Errorf("outbox: %s is in use by another gateway: %w", dir, err)
	}
	b := &Box{dir: dir, lock: lock, kick: make(chan struct{}, 1), keys: map[string]*adapter.Draft{}, changed: make(chan struct{})}
	if err := b.load(); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("outbox: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	b.stop = stop
	b.work.Go(func() { b.write(ctx) })
	return b, nil
}

func (b *Box) path() string { return filepath.Join(b.dir, "outbox.log") }

func (b *Box) load() error {
	f, err := os.OpenFile(b.path(), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(f)
	if err != nil {
		_ = f.Close()
		return err
	}
	all, end, skipped := parse(text)
	b.apply(all)
	b.file, b.size = f, int64(end)
	if skipped > 0 {
		b.damaged = fmt.Errorf("outbox: %d bytes of %s are damaged and were skipped; the file is kept as outbox.damaged", skipped, b.path())
		if err := os.WriteFile(filepath.Join(b.dir, "outbox.damaged"), text, 0o600); err != nil {
			b.damaged = fmt.Errorf("%w; keeping it failed: %w", b.damaged, err)
		}
	}
	if end < len(text) { // a crash came between
		if err := f.Truncate(int64(end)); err != nil {
			_ = f.Close()
			return err
		}
	}
	if _, err := f.Seek(int64(end), io.SeekStart); err != nil {
		_ = f.Close()
		return err
	}
	if err := errors.Join(f.Sync(), syncDir(b.dir)); err != nil {
		_ = f.Close()
		return err
	}
	return nil
}

// apply replays the file.
func (b *Box) apply(all []entry) {
	over := map[uint64]bool{}
	for _, e := range all {
		b.next = max(b.next, e.N)
		switch {
		case e.Refused != nil:
			over[e.N] = true
			b.keepRefused(*e.Refused)
		case e.Done:
			over[e.N] = true
		}
	}
	for _, e := range all {
		if e.Draft == nil || over[e.N] {
			continue
		}
		over[e.N] = true
		b.list = append(b.list, Waiting{Number: e.N, Time: e.Time, Draft: *e.Draft})
		b.keys[e.Draft.IdempotencyKey] = e.Draft
		b.bytes += int64(len(e.Draft.Body))
	}
	slices.SortStableFunc(b.list, func(x, y Waiting) int { return int(int64(x.Number) - int64(y.Number)) }) // #nosec G115 -- small
}

func (b *Box) keepRefused(r Refused) {
	b.refused = append(b.refused, r)
	b.refusedBytes += int64(len(r.Draft.Body))
	over := 0
	for len(b.refused)-over > MaxRefused || b.refusedBytes > refusedRoom {
		b.refusedBytes -= int64(len(b.refused[over].Draft.Body))
		over++
	}
	b.refused = slices.Delete(b.refused, 0, over)
}

// Close ends the box. What was added is on disk.
func (b *Box) Close() error {
	b.stop()
	b.work.Wait()
	var err error
	if len(b.ends) > 0 && b.broken == nil {
		_, err = b.file.Write(b.ends) // as little awaited as ever
	}
	return errors.Join(err, b.file.Close(), b.lock.Close())
}

// Damaged says what was found damaged at opening; nil: nothing.
func (b *Box) Damaged() error { return b.damaged }

// Add takes a draft; it is on disk when Add returns nil. again says that this
// key waits already with the same content. Errors wrap ErrFull or ErrKeyReused,
// or tell of the disk.
func (b *Box) Add(d adapter.Draft) (again bool, err error) {
	b.mu.Lock()
	if old := b.keys[d.IdempotencyKey]; old != nil {
		same := Same(*old, d)
		waiting := b.find(d.IdempotencyKey)
		b.mu.Unlock()
		if !same {
			return false, ErrKeyReused
		}
		if waiting != nil {
			err = waiting.wait()
		}
		return true, err
	}
	switch {
	case len(b.list)+len(b.adding) >= MaxMessages:
		err = fmt.Errorf("%w: it holds %d messages", ErrFull, MaxMessages)
	case b.bytes+int64(len(d.Body)) > MaxBytes:
		err = fmt.Errorf("%w: it holds %d bytes and takes %d", ErrFull, b.bytes, MaxBytes)
	}
	if err != nil {
		b.mu.Unlock()
		return false, err
	}
	b.next++
	a := &change{w: Waiting{Number: b.next, Time: time.Now().UTC(), Draft: d}, done: make(chan error, 1)}
	b.adding = append(b.adding, a)
	b.changes = append(b.changes, a)
	b.keys[d.IdempotencyKey] = &a.w.Draft
	b.bytes += int64(len(d.Body))
	b.mu.Unlock()
	b.wake()
	return false, a.wait()
}

// wait may be called by several: the result is put back for the next one.
func (a *change) wait() error {
	err := <-a.done
	a.done <- err
	return err
}

func (b *Box) find(key string) *change {
	for _, a := range b.adding {
		if a.w.Draft.IdempotencyKey == key {
			return a
		}
	}
	return nil
}

// Same says whether two drafts ask for the same thing.
func Same(x, y adapter.Draft) bool {
	return x.To == y.To && x.Channel == y.Channel && x.Type == y.Type && x.Priority == y.Priority && x.ReplyTo == y.ReplyTo && jsonscan.Same(x.Body, y.Body)
}

// Waiting gives up to limit drafts in order, and a channel that is closed when
// that changes. It is what is on disk: the rest is nobody's to send.
func (b *Box) Waiting(limit int) ([]Waiting, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.list[:min(limit, len(b.list))]), b.changed
}

// Len says how many wait, those that are just being written included.
func (b *Box) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.list) + len(b.adding)
}

// Refused lists what the adapter refused after the agent was answered, oldest
// first.
func (b *Box) Refused() []Refused {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.refused)
}

// Done ends a draft that the adapter has.
func (b *Box) Done(number uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.remove(number); ok {
		b.end(&entry{N: number, Done: true})
	}
}

// Refuse ends a draft that the adapter will never take. When it fails the draft
// waits as before.
func (b *Box) Refuse(number uint64, r *deny.Reason) error {
	b.mu.Lock()
	i := slices.IndexFunc(b.list, func(w Waiting) bool { return w.Number == number })
	if i < 0 {
		b.mu.Unlock()
		return nil
	}
	w := b.list[i]
	c := &change{w: w, refused: &Refused{Draft: w.Draft, Reason: r, Queued: w.Time, At: time.Now().UTC()}, done: make(chan error, 1)}
	b.changes = append(b.changes, c)
	b.mu.Unlock()
	b.wake()
	return c.wait()
}

func (b *Box) remove(number uint64) (Waiting, bool) {
	i := slices.IndexFunc(b.list, func(w Waiting) bool { return w.Number == number })
	if i < 0 {
		return Waiting{}, false
	}
	w := b.list[i]
	b.list = slices.Delete(b.list, i, i+1)
	delete(b.keys, w.Draft.IdempotencyKey)
	b.bytes -= int64(len(w.Draft.Body))
	b.tell()
	return w, true
}

func (b *Box) tell() {
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *Box) wake() {
	select {
	case b.kick <- struct{}{}:
	default:
	}
}

func syncDir(dir string) error {
	d, err := os.Open(dir) // #nosec G304 G703 -- the gateway's own folder
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
