package store

import (
	"database/sql/driver"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ncruces/go-sqlite3"
	sqlite3driver "github.com/ncruces/go-sqlite3/driver"
	"github.com/ncruces/go-sqlite3/vfs"
)

// disk is a file system in memory that remembers every change in order, so
// that it can be put back to what a power failure at any point may have left:
// what was synced, and of the rest any part, in any order, torn anywhere.
type disk struct {
	mu    sync.Mutex
	files map[string][]byte // as a running program sees them
	log   []change
	begin map[string][]byte // what was there before the log
	room  int64             // bytes that the files may have together; 0: no bound
	fault error             // what every write gets
}

// change is a write, a truncation, a sync or a deletion.
type change struct {
	file string
	kind byte // w, t, s, d
	at   int64
	data []byte
}

// sector is what a disk writes at once; a write of more can be torn between.
const sector = 512

func newDisk(files map[string][]byte) *disk {
	d := &disk{files: map[string][]byte{}, begin: files}
	for name, b := range files {
		d.files[name] = slices.Clone(b)
	}
	return d
}

// position is the number of changes so far.
func (d *disk) position() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.log)
}

func apply(b []byte, c change) []byte {
	if c.kind == 't' {
		return resize(b, c.at)
	}
	if end := c.at + int64(len(c.data)); end > int64(len(b)) {
		b = resize(b, end)
	}
	copy(b[c.at:], c.data)
	return b
}

func resize(b []byte, size int64) []byte {
	if size <= int64(len(b)) {
		return b[:size]
	}
	return append(b, make([]byte, size-int64(len(b)))...)
}

// crash gives what is on the disk after a power failure at position at.
func (d *disk) crash(at int, rng *rand.Rand) map[string][]byte { return d.replay().crash(at, rng) }

// replay goes through a disk's changes once, for many crashes in their order.
type replay struct {
	log     []change
	at      int
	stable  map[string][]byte
	pending map[string][]change
}

func (d *disk) replay() *replay {
	r := &replay{log: d.log, stable: map[string][]byte{}, pending: map[string][]change{}}
	for name, b := range d.begin {
		r.stable[name] = slices.Clone(b)
	}
	return r
}

// crash gives what is on the disk after a power failure at position at, which
// is not before that of the last call.
func (r *replay) crash(at int, rng *rand.Rand) map[string][]byte {
	for ; r.at < at; r.at++ {
		switch c := r.log[r.at]; c.kind {
		case 's':
			for _, p := range r.pending[c.file] {
				r.stable[c.file] = apply(r.stable[c.file], p)
			}
			delete(r.pending, c.file)
		case 'd': // SQLite syncs the folder where it matters
			delete(r.stable, c.file)
			delete(r.pending, c.file)
		default:
			r.pending[c.file] = append(r.pending[c.file], c)
		}
	}
	left := map[string][]byte{}
	for name, b := range r.stable {
		left[name] = slices.Clone(b)
	}
	for _, name := range slices.Sorted(maps.Keys(r.pending)) {
		for _, c := range survivors(r.pending[name], rng) {
			left[name] = apply(left[name], c)
		}
	}
	return left
}

// survivors chooses what of unsynced writes reached the disk.
func survivors(cs []change, rng *rand.Rand) []change {
	var out []change
	mode := rng.IntN(4)
	for _, c := range cs {
		switch {
		case mode == 0: // all are lost
			continue
		case mode == 1: // all arrived
			out = append(out, c)
			continue
		case rng.IntN(2) == 0:
			continue
		}
		if c.kind == 'w' && len(c.data) > sector && rng.IntN(2) == 0 { // torn
			cut := sector * rng.IntN(len(c.data)/sector+1)
			if rng.IntN(2) == 0 {
				c = change{file: c.file, kind: 'w', at: c.at, data: c.data[:cut]}
			} else {
				c = change{file: c.file, kind: 'w', at: c.at + int64(cut), data: c.data[cut:]}
			}
		}
		out = append(out, c)
	}
	if mode == 3 { // in another order
		rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	}
	return out
}

// dialect opens databases on this disk, with another build of SQLite than
// programs use, but with the same SQL.
func (d *disk) dialect() (dialect, func()) {
	name := fmt.Sprintf("disk%d", disks.Add(1))
	vfs.Register(name, &diskVFS{d})
	var drv sqlite3driver.SQLite
	return dialect{solo: true, lengthen: d.lengthen, open: func(path string) (driver.Conn, error) {
		return drv.Open((&url.URL{Scheme: "file", Path: path, RawQuery: "vfs=" + name}).String())
	}}, func() { vfs.Unregister(name) }
}

var disks atomic.Int64

// lengthen writes without SQLite, and is lost and torn like all other writes.
func (d *disk) lengthen(database string) error {
	log := database + "-wal"
	d.mu.Lock()
	empty, old := len(d.files[database]) == 0, int64(len(d.files[log]))
	d.mu.Unlock()
	if empty || old >= simulatedLog {
		return nil
	}
	f := &diskFile{d, log}
	if err := f.change(change{kind: 'w', at: old, data: make([]byte, simulatedLog-old)}); err != nil {
		return err
	}
	return f.Sync(0)
}

// simulatedLog is longer than the log grows between two of the checkpoints of
// TestNothingIsLostInAPowerFailure, and short, because each crash copies it.
const simulatedLog = 1 << 20

type diskVFS struct{ *disk }

func (v *diskVFS) Open(name string, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.files[name]; !ok {
		if flags&vfs.OPEN_CREATE == 0 {
			return nil, flags, sqlite3.CANTOPEN
		}
		v.files[name] = nil
	}
	return &diskFile{v.disk, name}, flags, nil
}

func (v *diskVFS) Delete(name string, _ bool) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.files[name]; !ok {
		return sqlite3.IOERR_DELETE_NOENT
	}
	delete(v.files, name)
	v.log = append(v.log, change{file: name, kind: 'd'})
	return nil
}

func (v *diskVFS) Access(name string, _ vfs.AccessFlag) (bool, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, ok := v.files[name]
	return ok, nil
}

func (v *diskVFS) FullPathname(name string) (string, error) { return name, nil }

type diskFile struct {
	*disk
	name string
}

func (f *diskFile) change(c change) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fault != nil {
		return f.fault
	}
	size := c.at + int64(len(c.data))
	if f.room > 0 && c.kind == 'w' && size > int64(len(f.files[f.name])) {
		used := size - int64(len(f.files[f.name]))
		for _, b := range f.files {
			used += int64(len(b))
		}
		if used > f.room {
			return sqlite3.FULL
		}
	}
	c.file, c.data = f.name, slices.Clone(c.data)
	if c.kind != 's' {
		f.files[f.name] = apply(f.files[f.name], c)
	}
	f.log = append(f.log, c)
	return nil
}

func (f *diskFile) ReadAt(p []byte, at int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.files[f.name]
	if at >= int64(len(b)) {
		return 0, io.EOF
	}
	n := copy(p, b[at:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *diskFile) WriteAt(p []byte, at int64) (int, error) {
	if err := f.change(change{kind: 'w', at: at, data: p}); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (f *diskFile) Size() (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return int64(len(f.files[f.name])), nil
}

func (f *diskFile) Truncate(size int64) error        { return f.change(change{kind: 't', at: size}) }
func (f *diskFile) Sync(vfs.SyncFlag) error          { return f.change(change{kind: 's'}) }
func (f *diskFile) Close() error                     { return nil }
func (f *diskFile) Lock(vfs.LockLevel) error         { return nil }
func (f *diskFile) Unlock(vfs.LockLevel) error       { return nil }
func (f *diskFile) CheckReservedLock() (bool, error) { return false, nil }
func (f *diskFile) SectorSize() int                  { return sector }
func (f *diskFile) DeviceCharacteristics() vfs.DeviceCharacteristic {
	return 0 // promises nothing
}
