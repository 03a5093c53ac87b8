package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/sys/unix"

	"bulkhead/internal/audit/protocol"
)

// Limits.
const (
	batch    = 256       // requests that share one fsync
	maxBatch = 8 << 20   // bytes of lines that do
	stride   = 512       // lines between two known places in the file
	minFree  = 256 << 20 // of the disk: the host's own need comes first
	maxLines = 1000      // of one answer to tail
	maxTail  = 2 << 20   // bytes of one answer to tail
)

// ErrCorrupt is wrapped when the log cannot be trusted.
var ErrCorrupt = errors.New("audit: the log is not as it was written")

// Log is an open log.
type Log struct {
	dir    string
	signer note.Signer
	public string
	now    func() time.Time
	free   func() (uint64, error) // bytes of the disk
	enough int64

	requests chan *request
	ended    chan struct{} // closed when the writer has ended
	stop     context.CancelFunc

	mu     sync.Mutex // guards what follows; the writer alone changes it
	f      *os.File
	size   int64 // bytes up to and with the last checkpoint
	state  *state
	places []int64 // where line i*stride begins
	broken error
}

// request is one member's records.
type request struct {
	source source
	recs   []protocol.Record
	done   chan error
}

// Open opens the log below dir, whole from its start. It refuses one that does
// not hold what root has witnessed.
func Open(dir string, witnesses []protocol.Head) (*Log, error) {
	signer, verifier, public, err := keys(dir)
	if err != nil {
		return nil, err
	}
	l := &Log{dir: dir, signer: signer, public: public, now: time.Now, requests: make(chan *request), ended: make(chan struct{})}
	l.f, err = os.OpenFile(filepath.Join(dir, "log.jsonl"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600) // #nosec G304 G703 -- our own data
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	l.free, l.enough = l.freeOf, enough
	l.state = newState(verifier)
	if err := l.load(witnesses); err != nil {
		return nil, errors.Join(err, l.f.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	go l.write(ctx)
	return l, nil
}

// keys gives the key of checkpoints, which is made with the log.
func keys(dir string) (note.Signer, note.Verifier, string, error) {
	secret, err := os.ReadFile(filepath.Join(dir, "key")) // #nosec G304 G703 -- our own data
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(filepath.Join(dir, "log.jsonl")); err == nil { // #nosec G703 -- our own data
			return nil, nil, "", fmt.Errorf("%w: there is a log in %s, and no key", ErrCorrupt, dir)
		}
		s, v, err := note.GenerateKey(rand.Reader, origin)
		if err == nil {
			// The key last: with it both are there.
			if err = renameio.WriteFile(filepath.Join(dir, "key.pub"), []byte(v+"\n"), 0o600); err == nil {
				err = renameio.WriteFile(filepath.Join(dir, "key"), []byte(s+"\n"), 0o600)
			}
		}
		if err != nil {
			return nil, nil, "", fmt.Errorf("audit: %w", err)
		}
		secret = []byte(s)
	case err != nil:
		return nil, nil, "", fmt.Errorf("audit: %w", err)
	}
	public, err := os.ReadFile(filepath.Join(dir, "key.pub")) // #nosec G304 G703 -- our own data
	if err != nil {
		return nil, nil, "", fmt.Errorf("audit: %w", err)
	}
	signer, err := note.NewSigner(string(bytes.TrimSpace(secret)))
	if err != nil {
		return nil, nil, "", fmt.Errorf("%w: its key: %w", ErrCorrupt, err)
	}
	verifier, err := note.NewVerifier(string(bytes.TrimSpace(public)))
	if err != nil || verifier.KeyHash() != signer.KeyHash() {
		return nil, nil, "", fmt.Errorf("%w: its two keys are not a pair", ErrCorrupt)
	}
	return signer, verifier, string(bytes.TrimSpace(public)), nil
}

// load reads the whole log, cuts off what was not answered, and compares with
// the witnesses.
func (l *Log) load(witnesses []protocol.Head) error {
	places := []int64{0}
	size, err := scan(l.f, l.state, witnesses, func(e *entry, at int64) {
		if e.Index%stride == 0 && e.Index > 0 {
			places = append(places, at)
		}
	})
	if err != nil {
		return fmt.Errorf("%w: %w; keep a copy of %s, then `bulkhead down --purge` begins a new one", ErrCorrupt, err, l.dir)
	}
	l.size, l.places = size, places
	err = l.f.Truncate(size)
	if err == nil {
		err = l.f.Sync()
	}
	if err == nil {
		err = syncDir(l.dir)
	}
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}

// scan reads a log into s and gives the bytes up to and with its last
// checkpoint. What stands after that was not answered and is not in s.
func scan(r io.ReaderAt, s *state, witnesses []protocol.Head, each func(e *entry, at int64)) (size int64, err error) {
	in := bufio.NewReaderSize(io.NewSectionReader(r, 0, 1<<62), 256<<10)
	var lines [][]byte // since the last checkpoint
	pending := 0       // bytes of them
	at := int64(0)
	if err := s.witnessed(witnesses, 0); err != nil {
		return 0, err
	}
	for {
		line, rerr := in.ReadSlice('\n')
		if rerr != nil && !errors.Is(rerr, io.EOF) && !errors.Is(rerr, bufio.ErrBufferFull) {
			return 0, rerr
		}
		if rerr != nil || pending > maxTorn {
			break
		}
		pending += len(line)
		lines = append(lines, bytes.Clone(bytes.TrimSuffix(line, []byte{'\n'})))
		if !bytes.HasPrefix(line, checkpointStart) {
			continue
		}
		if err := s.apply(lines, at, witnesses, each); err != nil {
			if torn(r, at) {
				break
			}
			return 0, err
		}
		at, pending, lines = at+int64(pending), 0, lines[:0]
	}
	if !torn(r, at) {
		return 0, fmt.Errorf("what stands after %d lines was not left by a crash", s.tree.n)
	}
	if n := len(witnesses); n > 0 && witnesses[n-1].Lines > s.tree.n {
		return 0, fmt.Errorf("it has %d lines, and root witnessed %d: it was cut", s.tree.n, witnesses[n-1].Lines)
	}
	return at, nil
}

// maxTorn bounds what a crash can leave: one batch.
const maxTorn = maxBatch + maxLine + 1

// torn says whether everything from at on may be what a crash left of one
// write: no checkpoint is in it, or one and before it zeros, where blocks of the
// file never reached the disk. JSON has no zeros.
func torn(r io.ReaderAt, at int64) bool {
	rest, err := io.ReadAll(io.NewSectionReader(r, at, maxTorn+1))
	if err != nil || len(rest) > maxTorn {
		return false
	}
	first := bytes.Index(rest, checkpointStart)
	if first < 0 {
		return true
	}
	end := bytes.IndexByte(rest[first:], '\n')
	return end < 0 || first+end+1 == len(rest) && bytes.IndexByte(rest, 0) >= 0
}

// apply takes the lines of one batch, of which the last is a checkpoint, or
// none of them.
func (s *state) apply(lines [][]byte, at int64, witnesses []protocol.Head, each func(e *entry, at int64)) error {
	next := *s
	next.tree, next.seqs = s.tree.clone(), maps.Clone(s.seqs)
	for _, line := range lines {
		if len(line) > maxLine {
			return fmt.Errorf("line %d is too long", next.tree.n)
		}
		e, err := next.take(line)
		if err != nil {
			return err
		}
		if e != nil {
			if err := next.witnessed(witnesses, next.tree.n); err != nil {
				return err
			}
			each(e, at)
		}
		at += int64(len(line)) + 1
	}
	*s = next
	return nil
}

// witnessed compares with what root took note of when there were n lines.
func (s *state) witnessed(witnesses []protocol.Head, n int64) error {
	i, ok := slices.BinarySearchFunc(witnesses, n, func(h protocol.Head, n int64) int { return cmp.Compare(h.Lines, n) })
	if ok && witnesses[i].Root != s.tree.root().String() {
		return fmt.Errorf("the first %d lines are not those that root witnessed", n)
	}
	return nil
}

// syncDir has the names in a folder on disk.
func syncDir(dir string) error {
	d, err := os.Open(dir) // #nosec G304 G703 -- our own data
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return d.Sync()
}
