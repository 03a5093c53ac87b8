package fs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
	"bulkhead/internal/tool"
)

// MaxUndo is the largest file, in bytes, that is kept to be put back.
const MaxUndo = 512 << 10

// was is what a path was. Files are the same when their bytes are.
type was struct {
	Kind string `json:"kind"` // "", file, folder
	Size int64  `json:"size,omitempty"`
	Sum  string `json:"sum,omitempty"` // SHA-256
	Type string `json:"type,omitempty"`
	Data []byte `json:"data,omitempty"` // of what was there before
}

const (
	aFile   = "file"
	aFolder = "folder"
)

func (w was) same(o was) bool { return w.Kind == o.Kind && w.Size == o.Size && w.Sum == o.Sum }

// undo is what a call did to a path.
type undo struct {
	Path   string `json:"path"`
	Before was    `json:"before"`
	After  was    `json:"after"`
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// afterWrite is what a path is with that content.
func afterWrite(data []byte) was { return was{Kind: aFile, Size: int64(len(data)), Sum: sumOf(data)} }

// now says what a path is. ok is false for a file that is too large to be kept.
func (s *Store) now(ctx context.Context, what string, p Path) (w was, ok bool, err error) {
	st, err := s.Stat(ctx, what, p)
	var r *deny.Reason
	if errors.As(err, &r) && r.Code == deny.ToolMissing {
		return was{}, true, nil
	}
	if err != nil {
		return was{}, false, err
	}
	switch st.Type {
	case "directory":
		return was{Kind: aFolder}, true, nil
	case "file":
	default:
		return was{}, false, nil
	}
	if st.SizeBytes > MaxUndo {
		return was{Kind: aFile, Size: st.SizeBytes}, false, nil
	}
	f, err := s.Open(ctx, what, p)
	if err != nil {
		return was{}, false, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxUndo+1))
	if err != nil {
		return was{}, false, fmt.Errorf("read %q: %w", p, err)
	}
	if len(data) > MaxUndo { // it grew
		return was{Kind: aFile, Size: int64(len(data))}, false, nil
	}
	return was{aFile, int64(len(data)), sumOf(data), f.ContentType, data}, true, nil
}

// check is asked with the lock held, right before a name changes; with an error it
// does not change. nil: nothing is asked.
type check func() error

func (c check) ask() error {
	if c == nil {
		return nil
	}
	return c()
}

// stays asks whether a path is still as it was seen; otherwise is what is answered
// when it is not.
func (s *Store) stays(ctx context.Context, what string, p Path, seen was, otherwise error) check {
	return func() error {
		switch current, _, err := s.now(ctx, what, p); {
		case err != nil:
			return err
		case !current.same(seen):
			return otherwise
		}
		return nil
	}
}

// keep keeps what takes a change of a path back, before it is made, when somebody may
// want that and it can be: after gives what the path will be. The change is made
// under the check that is given: by what was kept, one that somebody else made
// meanwhile would be taken back too.
func (s *Store) keep(ctx context.Context, c *tool.Call, p Path, after func(before was) (was, bool)) (check, error) {
	k := tool.KeeperOf(ctx)
	if k == nil {
		return nil, nil
	}
	before, ok, err := s.now(ctx, c.What(), p)
	if err != nil || !ok {
		return nil, nil //nolint:nilerr // the change itself says what is wrong
	}
	u := undo{Path: p.String(), Before: before}
	if u.After, ok = after(before); !ok {
		return nil, nil
	}
	raw, err := json.Marshal(u)
	if err != nil {
		return nil, err
	}
	if err := k(nil, raw); err != nil {
		return nil, err
	}
	return s.stays(ctx, c.What(), p, before, s.refused(ctx, c.What(), p, unix.EAGAIN)), nil
}

// Undo takes a change of a path back, unless the path has changed since. Where it was
// taken back already it does nothing. Folders that were made above it stay.
func (s *Store) Undo(ctx context.Context, what string, raw []byte) error {
	var u undo
	if err := json.Unmarshal(raw, &u); err != nil {
		return fmt.Errorf("fs: what takes a change back does not decode: %w", err)
	}
	p, reason := Parse(what, u.Path)
	if reason != nil {
		return reason
	}
	changed := tool.Refuse(deny.ToolConflict, what, fmt.Sprintf("%q has changed since", p), "look at it with fs_stat, and put it right yourself")
	current, _, err := s.now(ctx, what, p)
	switch {
	case err != nil:
		return err
	case current.same(u.Before):
		return nil
	case !current.same(u.After):
		return changed
	}
	stays := s.stays(ctx, what, p, u.After, changed)
	switch u.Before.Kind {
	case "":
		return s.delete(ctx, what, p, false, stays)
	case aFolder:
		_, err := s.mkdir(ctx, what, p, stays)
		return err
	}
	w, err := s.Create(ctx, what, p, u.Before.Size, u.Before.Type)
	if err != nil {
		return err
	}
	defer w.Abort()
	w.check = stays
	if _, err := w.Write(u.Before.Data); err != nil {
		return err
	}
	_, err = w.Commit()
	return err
}
