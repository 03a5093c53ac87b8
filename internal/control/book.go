package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"bulkhead/internal/control/protocol"
)

// maxLive bounds tokens that have not expired.
const maxLive = 20_000

// Operations of a line.
const (
	opIssue  = "issue"
	opRevoke = "revoke"
	opEpoch  = "epoch"
)

// line is one line of tokens.jsonl.
type line struct {
	Op    string          `json:"op"`
	Token *protocol.Token `json:"token,omitempty"` // issue
	IDs   []string        `json:"ids,omitempty"`   // revoke
	At    time.Time       `json:"at,omitzero"`     // revoke
	Epoch uint64          `json:"epoch,omitempty"` // revoke, epoch
}

// book is the list of tokens. Its caller serialises calls.
type book struct {
	path   string
	f      *os.File
	epoch  uint64
	tokens map[string]*protocol.Token
	broken error // a write failed, and what is on disk is not known
}

// errCorrupt is wrapped when the file cannot be trusted.
var errCorrupt = errors.New("control: tokens.jsonl is corrupt")

func openBook(path string, now time.Time) (*book, error) {
	raw, err := os.ReadFile(path) // #nosec G304 -- our own data
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("control: %w", err)
	}
	b := &book{path: path, tokens: map[string]*protocol.Token{}}
	lines, good, err := b.replay(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: %w; put it back from a backup, or `bulkhead token rotate-keys --overlap 0` after moving it away: every token ends then", errCorrupt, err)
	}
	b.forget(now)
	if lines > 2*len(b.tokens)+1000 {
		if err := b.rewrite(); err != nil {
			return nil, err
		}
		good = -1
	}
	b.f, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0o600) // #nosec G304 -- our own data
	if err != nil {
		return nil, fmt.Errorf("control: %w", err)
	}
	if good >= 0 && good < len(raw) {
		err = b.f.Truncate(int64(good))
	}
	if err = errors.Join(err, b.f.Sync(), syncDir(filepath.Dir(path))); err != nil {
		return nil, errors.Join(fmt.Errorf("control: %w", err), b.f.Close())
	}
	return b, nil
}

// replay takes whole lines and tells how many there were, and how many bytes
// of them.
func (b *book) replay(raw []byte) (lines, good int, err error) {
	for len(raw[good:]) > 0 {
		end := bytes.IndexByte(raw[good:], '\n')
		if end < 0 {
			return lines, good, nil // torn
		}
		var l line
		d := json.NewDecoder(bytes.NewReader(raw[good : good+end]))
		d.DisallowUnknownFields()
		if err := d.Decode(&l); err != nil || d.More() {
			return lines, good, fmt.Errorf("line %d: %w", lines+1, errors.Join(err, errors.New("it is not one of ours")))
		}
		if err := b.apply(&l); err != nil {
			return lines, good, fmt.Errorf("line %d: %w", lines+1, err)
		}
		lines++
		good += end + 1
	}
	return lines, good, nil
}

func (b *book) apply(l *line) error {
	switch {
	case l.Op == opIssue && l.Token != nil && l.Token.ID != "":
		if b.tokens[l.Token.ID] != nil {
			return fmt.Errorf("token %.64q is issued twice", l.Token.ID)
		}
		b.tokens[l.Token.ID] = l.Token
	case l.Op == opRevoke && len(l.IDs) > 0 && l.Epoch > b.epoch:
		for _, id := range l.IDs {
			if t := b.tokens[id]; t != nil {
				at := l.At
				t.Revoked = &at
			}
		}
		b.epoch = l.Epoch
	case l.Op == opEpoch && l.Epoch > b.epoch:
		b.epoch = l.Epoch
	default:
		return fmt.Errorf("operation %.20q is not whole, or goes back from epoch %d", l.Op, b.epoch)
	}
	return nil
}

// write has a line on disk, and then in force.
func (b *book) write(l line) error {
	if b.broken != nil {
		return fmt.Errorf("control: an earlier write failed: %w; restart it: bulkhead up", b.broken)
	}
	raw, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("control: %w", err)
	}
	st, err := b.f.Stat()
	if err != nil {
		return fmt.Errorf("control: %w", err)
	}
	if _, err = b.f.Write(append(raw, '\n')); err == nil {
		err = b.f.Sync()
	}
	if err != nil {
		// What stands there after a failed sync is not known to be on disk.
		if terr := b.f.Truncate(st.Size()); terr != nil || !errors.Is(err, unix.ENOSPC) {
			b.broken = err
		}
		return fmt.Errorf("control: it is not on disk, and so not in force: %w", err)
	}
	return b.apply(&l)
}

// forget drops what has expired.
func (b *book) forget(now time.Time) {
	for id, t := range b.tokens {
		if !now.Before(t.Expires) {
			delete(b.tokens, id)
		}
	}
}

// rewrite replaces the file by one with what counts.
func (b *book) rewrite() error {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	for _, t := range b.sorted() {
		if err := e.Encode(line{Op: opIssue, Token: t}); err != nil {
			return fmt.Errorf("control: %w", err)
		}
	}
	if b.epoch > 0 {
		if err := e.Encode(line{Op: opEpoch, Epoch: b.epoch}); err != nil {
			return fmt.Errorf("control: %w", err)
		}
	}
	return replace(b.path, out.Bytes())
}

func (b *book) sorted() []*protocol.Token {
	out := make([]*protocol.Token, 0, len(b.tokens))
	for _, t := range b.tokens {
		out = append(out, t)
	}
	slices.SortFunc(out, func(x, y *protocol.Token) int {
		if c := x.Issued.Compare(y.Issued); c != 0 {
			return c
		}
		return bytes.Compare([]byte(x.ID), []byte(y.ID))
	})
	return out
}

func (b *book) close() error { return b.f.Close() }

// replace writes a file whole or not at all, mode 0600.
func replace(path string, data []byte) error {
	if err := renameio.WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("control: %w", err)
	}
	return syncDir(filepath.Dir(path))
}

// syncDir has the names in a folder on disk.
func syncDir(dir string) error {
	d, err := os.Open(dir) // #nosec G304 -- our own data
	if err != nil {
		return fmt.Errorf("control: %w", err)
	}
	defer func() { _ = d.Close() }()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("control: %w", err)
	}
	return nil
}
