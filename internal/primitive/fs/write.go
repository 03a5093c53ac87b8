package fs

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
	"bulkhead/internal/tool"
)

// step is what a writer that was not told its size takes at once.
const step = 256 << 10

// Info says what a path is.
type Info struct {
	Path        string `json:"path"`
	Type        string `json:"type"` // file, directory or other
	SizeBytes   int64  `json:"sizeBytes"`
	ContentType string `json:"contentType,omitempty"`
	ModifiedAt  string `json:"modifiedAt"` // RFC 3339, UTC
}

// Writer is a file that is being written. Nobody sees it before [Writer.Commit].
// It is used by one goroutine.
type Writer struct {
	s        *Store
	ctx      context.Context // of the call that the writer belongs to
	what     string
	path     Path
	typ      string
	declared int64 // -1: not known
	check    check // before the file comes to its place

	f       *os.File
	tmp     string
	head    []byte
	written int64
	credit  int64 // bytes that the file to be replaced gives back
	spare   int64 // bytes taken of what may lie there above the budget
	bytes   int64 // taken of the budget
	files   int64 // taken of the budget
}

// Create begins to write a file, which is made with its folders or replaced on
// Commit. size is -1 when it is not known; contentType is empty when it is to
// be found out. What it takes is refused now and not at the end, where size is
// known. Abort must be called; after a Commit it does nothing. what names
// the caller in refusals.
func (s *Store) Create(ctx context.Context, what string, p Path, size int64, contentType string) (_ *Writer, err error) {
	if p.Root() {
		return nil, isFolder(what, p)
	}
	if size > MaxFile {
		return nil, tooLarge(what)
	}
	w := &Writer{s: s, ctx: ctx, what: what, path: p, declared: size}
	if contentType != "" {
		if w.typ = mediaType(contentType); w.typ == "" {
			r := tool.Refuse(deny.ToolInvalid, what, "the content type is malformed", "give one like text/markdown; charset=utf-8, or none")
			r.Fields = []deny.Field{{Name: "contentType", Why: "it is no media type of at most 255 characters (RFC 9110, 8.3.1)"}}
			return nil, r
		}
	}
	old, err := s.replaceable(ctx, what, p)
	if err != nil {
		return nil, err
	}
	select {
	case s.writes <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for other writes: %w", ctx.Err())
	}
	defer func() {
		if err != nil {
			w.Abort()
		}
	}()
	w.credit = old.size
	if !old.there {
		if err := w.take(0, 1); err != nil {
			return nil, err
		}
	}
	if size > 0 {
		if err := w.reserve(size); err != nil {
			return nil, err
		}
	}
	name := make([]byte, 16)
	_, _ = rand.Read(name) // never fails
	w.tmp = hex.EncodeToString(name)
	fd, err := unix.Openat(s.tmp, w.tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		w.tmp = ""
		return nil, s.refused(ctx, what, p, err)
	}
	w.f = os.NewFile(uintptr(fd), w.tmp) // #nosec G115 -- a descriptor
	return w, nil
}

// found is what stands where a file is to be written.
type found struct {
	there bool
	size  int64
}

// replaceable looks whether a file may be written there.
func (s *Store) replaceable(ctx context.Context, what string, p Path) (found, error) {
	dir, name := p.parent()
	fd, err := s.folder(dir)
	if errors.Is(err, unix.ENOENT) {
		return found{}, nil
	}
	if err != nil {
		return found{}, s.refused(ctx, what, p, err)
	}
	defer unix.Close(fd)
	return s.replaceableIn(ctx, what, p, fd, name)
}

func (s *Store) replaceableIn(ctx context.Context, what string, p Path, dir int, name string) (found, error) {
	st, err := look(dir, name)
	if errors.Is(err, unix.ENOENT) {
		return found{}, nil
	}
	if err != nil {
		return found{}, s.refused(ctx, what, p, err)
	}
	switch s.kindOf(&st) {
	case file:
		return found{there: true, size: st.Size}, nil
	case directory:
		return found{}, isFolder(what, p)
	case other:
	}
	return found{}, s.foreign(ctx, what, p)
}

func (w *Writer) take(bytes, files int64) error {
	if err := w.s.budget.Take(w.ctx, w.what, bytes, files); err != nil {
		return err
	}
	w.bytes += bytes
	w.files += files
	return nil
}

// reserve takes room for n bytes more. The file to be replaced is there until the
// end, so it is room for all of them; where the budget has less, what that file will
// give back counts within [MaxSpare].
func (w *Writer) reserve(n int64) error {
	err := w.take(n, 0)
	if err == nil {
		return nil
	}
	spare := min(n, w.credit-w.spare, MaxSpare)
	if spare <= 0 || !w.s.spare.TryAcquire(spare) {
		return err
	}
	if err := w.take(n-spare, 0); err != nil {
		w.s.spare.Release(spare)
		return err
	}
	w.spare += spare
	return nil
}

// Write writes the next bytes. Its error may be a *deny.Reason.
func (w *Writer) Write(b []byte) (int, error) {
	end := w.written + int64(len(b))
	switch {
	case end > MaxFile:
		return 0, tooLarge(w.what)
	case w.declared >= 0 && end > w.declared:
		return 0, w.sized(end)
	}
	if need := end - w.spare - w.bytes; need > 0 {
		// By steps, but not to be refused for the rest of a step.
		if err := w.take(max(need, step), 0); err != nil {
			if err := w.reserve(need); err != nil {
				return 0, err
			}
		}
	}
	if room := sniffed - len(w.head); room > 0 {
		w.head = append(w.head, b[:min(room, len(b))]...)
	}
	n, err := w.f.Write(b)
	w.written += int64(n)
	if err != nil {
		return n, w.s.refused(w.ctx, w.what, w.path, err)
	}
	return n, nil
}

// Commit puts the file in its place. It is on disk, whole, when Commit
// returns without an error; with one, what was there before still is, unless
// the disk itself failed.
func (w *Writer) Commit() (Info, error) {
	if w.declared >= 0 && w.written != w.declared {
		return Info{}, w.sized(w.written)
	}
	if w.typ == "" {
		w.typ = guess(w.path.names[len(w.path.names)-1], w.head)
	}
	fd := int(w.f.Fd()) // #nosec G115 -- a descriptor
	if w.s.xattrs {
		if err := unix.Fsetxattr(fd, typeAttribute, []byte(w.typ), 0); err != nil {
			return Info{}, w.s.refused(w.ctx, w.what, w.path, fmt.Errorf("keep the content type: %w", err))
		}
	}
	if err := w.f.Sync(); err != nil {
		return Info{}, w.s.refused(w.ctx, w.what, w.path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Info{}, fmt.Errorf("stat what was written: %w", err)
	}
	folders, err := w.place()
	defer folders.close()
	if err != nil {
		return Info{}, err
	}
	// Outside of the lock: others may go on meanwhile.
	if err := syncFolder(folders.last()); err != nil {
		return Info{}, err
	}
	return Info{Path: w.path.String(), Type: "file", SizeBytes: w.written, ContentType: w.typ, ModifiedAt: moment(&st)}, nil
}

// place renames the file into its folder, and settles what it takes by what it
// replaces at that moment.
func (w *Writer) place() (opened folders, err error) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if err := w.check.ask(); err != nil {
		return opened, err
	}
	dir, name := w.path.parent()
	opened, err = w.s.makeFolders(w.ctx, w.what, dir)
	if err != nil {
		return opened, err
	}
	defer func() {
		if err != nil {
			opened.undo(w.s)
		}
	}()
	at := opened.last()
	old, err := w.s.replaceableIn(w.ctx, w.what, w.path, at, name)
	if err != nil {
		return opened, err
	}
	files := int64(0)
	if !old.there {
		files = 1
		if err := w.s.free(w.what, w.path, at, name); err != nil {
			return opened, err
		}
	}
	if err := w.take(w.written-old.size-w.bytes, files-w.files); err != nil {
		return opened, err
	}
	if err := unix.Renameat(w.s.tmp, w.tmp, at, name); err != nil {
		return opened, w.s.refused(w.ctx, w.what, w.path, err)
	}
	w.tmp, w.bytes, w.files = "", 0, 0
	return opened, nil
}

// free says whether a folder may have another name, and one like this: two
// that differ in case alone are one file on other systems, so what an agent
// hands out could not be unpacked there, or would show another's content.
func (s *Store) free(what string, p Path, dir int, name string) error {
	names, err := entries(dir, MaxEntries+1)
	if errors.Is(err, unix.ENOENT) { // it was removed since it was opened
		return tool.Refuse(deny.ToolMissing, what, fmt.Sprintf("the folder of %q was removed meanwhile", p), "try again")
	}
	if err != nil {
		return fmt.Errorf("read the folder of %q: %w", p, err)
	}
	if len(names) >= MaxEntries {
		return tool.Refuse(deny.ToolQuota, what, fmt.Sprintf("the folder of %q has %d entries already, which is as many as one may have", p, len(names)), "use another folder")
	}
	for _, n := range names {
		if n != name && strings.EqualFold(n, name) {
			return tool.Refuse(deny.ToolUnsafe, what, fmt.Sprintf("%q differs from %q, which is there, in upper and lower case alone", name, n), "use the name that is there, or another")
		}
	}
	return nil
}

// Abort drops the file, unless it is in its place.
func (w *Writer) Abort() {
	if w.s == nil {
		return
	}
	if w.f != nil {
		_ = w.f.Close()
	}
	if w.tmp != "" {
		if err := unix.Unlinkat(w.s.tmp, w.tmp, 0); err != nil {
			w.s.log.Error("a temporary file could not be removed; the next start does it", "error", err)
		}
	}
	w.s.budget.Give(w.bytes, w.files)
	w.s.spare.Release(w.spare)
	<-w.s.writes
	w.s = nil
}

func (w *Writer) sized(got int64) error {
	r := tool.Refuse(deny.ToolInvalid, w.what, "the content is not as long as was said", "send as many bytes as Content-Length says")
	r.Fields = []deny.Field{{Name: "data", Why: fmt.Sprintf("%d bytes were announced, %d came", w.declared, got)}}
	return r
}

func tooLarge(what string) error {
	return tool.Refuse(deny.ToolTooLarge, what, fmt.Sprintf("a file may have %d bytes", MaxFile), "split it into several files")
}
