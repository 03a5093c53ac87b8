package workspace

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
)

// Kind is how a file differs.
type Kind string

// The kinds of change, as seen from the side that is copied to.
const (
	Added   Kind = "added"   // only in the source
	Changed Kind = "changed" // in both, and not the same
	Missing Kind = "missing" // only in the destination
)

// Change is one file that differs.
type Change struct {
	Path   string `json:"path"`
	Change Kind   `json:"change"`
	Size   int64  `json:"size"` // of the source; of the destination when missing there
}

// Difference is what it takes to make one tree like the other.
type Difference struct {
	Changes []Change
	Left    []Left // of the source

	exec map[string]bool
}

// Compare says how to differs from from.
func Compare(ctx context.Context, from, to *Side) (*Difference, error) {
	src, err := from.List()
	if err != nil {
		return nil, err
	}
	dst, err := to.List()
	if err != nil {
		return nil, err
	}
	d := &Difference{Changes: []Change{}, Left: src.Left, exec: map[string]bool{}}
	for _, p := range slices.Sorted(maps.Keys(src.Files)) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		x := src.Files[p]
		d.exec[p] = x.Exec
		y, ok := dst.Files[p]
		if !ok {
			d.Changes = append(d.Changes, Change{p, Added, x.Size})
			continue
		}
		same := x == y
		if same {
			if same, err = equal(from, to, p); err != nil {
				return nil, err
			}
		}
		if !same {
			d.Changes = append(d.Changes, Change{p, Changed, x.Size})
		}
	}
	for _, p := range slices.Sorted(maps.Keys(dst.Files)) {
		if _, ok := src.Files[p]; !ok {
			d.Changes = append(d.Changes, Change{p, Missing, dst.Files[p].Size})
		}
	}
	return d, nil
}

func equal(a, b *Side, at string) (bool, error) {
	x, err := digest(a, at)
	if err != nil {
		return false, err
	}
	y, err := digest(b, at)
	return bytes.Equal(x, y), err
}

func digest(s *Side, at string) ([]byte, error) {
	f, err := s.open(at)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, MaxFile+1)); err != nil {
		return nil, fmt.Errorf("read %q: %w", at, err)
	}
	return h.Sum(nil), nil
}

// Copy makes to like from, as far as d says. Files that only to has are removed
// when remove is set, and left otherwise. It goes on after a file that cannot
// be copied and names all of them in its error.
func (d *Difference) Copy(ctx context.Context, from, to *Side, remove bool) (done int, err error) {
	var errs []error
	for _, c := range d.Changes {
		if ctx.Err() != nil {
			return done, errors.Join(append(errs, ctx.Err())...)
		}
		switch {
		case c.Change != Missing:
			err = one(from, to, c.Path, d.exec[c.Path])
		case remove:
			err = to.remove(c.Path)
		default:
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		done++
	}
	return done, errors.Join(errs...)
}

func one(from, to *Side, at string, executable bool) error {
	f, err := from.open(at)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return to.put(at, f, executable)
}
