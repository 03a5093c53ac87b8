// Package ledger remembers everything that Bulkhead made on a host, so that a
// crash at any point leaves nothing that the next up or down does not know.
//
// # Format
//
// An append-only file of JSON lines, one [Entry] each, mode 0600, root. An
// entry "make" is written and synced BEFORE the thing is made, "gone" after it
// was removed and seen to be gone. A line that was torn by a crash can only be
// the last one; it is dropped when the file is opened, which is safe because
// the thing it announces was not made yet. A torn or unreadable line anywhere
// else is corruption: Open refuses, since deleting by guess is worse than
// stopping.
//
// What it does not do: it does not say that a thing exists (ask the kernel),
// only that we may have made it and that it is ours to remove.
package ledger

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// SchemaVersion is the version of an entry.
const SchemaVersion = 1

// Kind is a kind of thing on a host.
type Kind string

// The kinds, in the order in which they are removed.
const (
	Process  Kind = "process"  // a launcher, dialer or resolver; Name is its cgroup
	Cgroup   Kind = "cgroup"   // below our root cgroup
	Table    Kind = "table"    // nftables table
	Mount    Kind = "mount"    // below the data-dir: an agent's disk
	RunDir   Kind = "run-dir"  // below /run/bulkhead
	Account  Kind = "account"  // Linux account and its subordinate range
	IDRange  Kind = "id-range" // of a guest, out of the block of bulkhead-guests; Name is FIRST-LAST
	StateDir Kind = "data-dir" // below /var/lib/bulkhead: kept by down, removed by down --purge
)

// Op says whether a thing is about to be made or is gone.
type Op string

// The operations.
const (
	Make Op = "make"
	Gone Op = "gone"
)

// Entry is one line.
type Entry struct {
	Version int       `json:"v"`
	Seq     uint64    `json:"seq"`
	Time    time.Time `json:"time"`
	Op      Op        `json:"op"`
	Thing
}

// Thing is one thing on the host.
type Thing struct {
	Kind  Kind   `json:"kind"`
	Name  string `json:"name"`
	Team  string `json:"team,omitempty"` // empty: serves every team
	Agent string `json:"agent,omitempty"`
}

func (t Thing) key() string { return string(t.Kind) + "\x00" + t.Name }

func (t Thing) String() string { return string(t.Kind) + " " + t.Name }

// ErrCorrupt is wrapped by Open when the file cannot be trusted.
var ErrCorrupt = errors.New("ledger: corrupt")

// Ledger is an open ledger. Its methods may be called from many goroutines.
type Ledger struct {
	path string

	mu   sync.Mutex // guards everything below
	f    *os.File
	seq  uint64
	have map[string]Thing
	keys []string // in the order of making
}

// Open reads the ledger at path, or begins one. It rewrites a file that holds
// mostly finished business.
func Open(path string) (*Ledger, error) {
	raw, err := os.ReadFile(path) // #nosec G304 -- our own path from layout
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("ledger: read: %w", err)
	}
	l := &Ledger{path: path, have: map[string]Thing{}}
	lines, good, err := l.replay(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w (the file lists what Bulkhead made here; restore it from a backup, or compare its lines with the host and remove the bad one)", ErrCorrupt, path, err)
	}
	if lines > 2*len(l.have)+1000 {
		seq := l.seq
		switch err := l.compact(); {
		case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT):
			l.seq = seq // a long ledger is no reason not to start on a full disk
		case err != nil:
			return nil, err
		default:
			good = -1
		}
	}
	l.f, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0o600) // #nosec G304 -- our own path
	if err != nil {
		return nil, fmt.Errorf("ledger: open: %w", err)
	}
	if good >= 0 && good < len(raw) { // a torn last line
		if err := l.f.Truncate(int64(good)); err != nil {
			return nil, errors.Join(fmt.Errorf("ledger: drop torn line: %w", err), l.f.Close())
		}
	}
	return l, nil
}

// Read gives what a ledger's content names, in the order of making, without
// touching the file. A torn last line is left out, as by [Open].
func Read(raw []byte) ([]Thing, error) {
	l := &Ledger{have: map[string]Thing{}}
	if _, _, err := l.replay(raw); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return l.Things(nil), nil
}

// replay applies the lines of raw and returns how many there were and how many
// bytes of them are good.
func (l *Ledger) replay(raw []byte) (lines, good int, err error) {
	r := bufio.NewReader(bytes.NewReader(raw))
	for {
		line, rerr := r.ReadBytes('\n')
		if errors.Is(rerr, io.EOF) {
			return lines, good, nil // what is left has no newline: torn
		}
		if rerr != nil {
			return lines, good, rerr
		}
		lines++
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return lines, good, fmt.Errorf("line %d: %w", lines, err)
		}
		if e.Version != SchemaVersion || e.Kind == "" || e.Name == "" || e.Op != Make && e.Op != Gone {
			return lines, good, fmt.Errorf("line %d: not an entry of version %d", lines, SchemaVersion)
		}
		if e.Seq <= l.seq {
			return lines, good, fmt.Errorf("line %d: sequence %d after %d", lines, e.Seq, l.seq)
		}
		l.seq = e.Seq
		l.apply(e)
		good += len(line)
	}
}

func (l *Ledger) apply(e Entry) {
	k := e.key()
	if e.Op == Gone {
		delete(l.have, k)
		l.keys = slices.DeleteFunc(l.keys, func(x string) bool { return x == k })
		return
	}
	if _, ok := l.have[k]; !ok {
		l.keys = append(l.keys, k)
	}
	l.have[k] = e.Thing
}

// compact replaces the file by one that holds only what is still there.
func (l *Ledger) compact() error {
	var b bytes.Buffer
	l.seq = 0
	for _, k := range l.keys {
		l.seq++
		if err := encode(&b, Entry{Version: SchemaVersion, Seq: l.seq, Time: time.Now().UTC(), Op: Make, Thing: l.have[k]}); err != nil {
			return err
		}
	}
	if err := renameio.WriteFile(l.path, b.Bytes(), 0o600); err != nil {
		return fmt.Errorf("ledger: compact: %w", err)
	}
	return nil
}

func encode(b *bytes.Buffer, e Entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("ledger: encode: %w", err)
	}
	b.Write(line)
	b.WriteByte('\n')
	return nil
}

// Announce writes that things are about to be made and returns once that is on
// disk. Things that are in the ledger already cost nothing.
func (l *Ledger) Announce(things ...Thing) error { return l.write(Make, things) }

// Forget writes that things were removed and seen to be gone.
func (l *Ledger) Forget(things ...Thing) error { return l.write(Gone, things) }

func (l *Ledger) write(op Op, things []Thing) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b bytes.Buffer
	var entries []Entry
	seq := l.seq
	for _, t := range things {
		if _, ok := l.have[t.key()]; ok == (op == Make) {
			continue
		}
		seq++
		e := Entry{Version: SchemaVersion, Seq: seq, Time: time.Now().UTC(), Op: op, Thing: t}
		if err := encode(&b, e); err != nil {
			return err
		}
		entries = append(entries, e)
	}
	if len(entries) == 0 {
		return nil
	}
	end, err := l.f.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("ledger: seek: %w", err)
	}
	if _, err = l.f.Write(b.Bytes()); err == nil {
		err = l.f.Sync()
	}
	if err != nil {
		// A partial line in the middle would be corruption: take it back.
		return errors.Join(fmt.Errorf("ledger: append to %s: %w (nothing was made)", l.path, err), l.f.Truncate(end))
	}
	l.seq = seq
	for _, e := range entries {
		l.apply(e)
	}
	return nil
}

// Has says whether a thing is ours.
func (l *Ledger) Has(kind Kind, name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.have[Thing{Kind: kind, Name: name}.key()]
	return ok
}

// Things lists what may be on the host, oldest first. keep selects; nil takes
// everything.
func (l *Ledger) Things(keep func(Thing) bool) []Thing {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Thing
	for _, k := range l.keys {
		if t := l.have[k]; keep == nil || keep(t) {
			out = append(out, t)
		}
	}
	return out
}

// Close closes the file.
func (l *Ledger) Close() error { return l.f.Close() }
