package gitclone

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errTooLarge is a repository that the agent's disk would not hold.
var errTooLarge = errors.New("it is larger than the agent's disk; to mend: raise limits.disk and limits.inodes, or clone a smaller part yourself and write the folder")

// watchEvery is how often a clone that is under way is measured.
const watchEvery = 500 * time.Millisecond

// perEntry is what a tar has around one file, at most.
const perEntry = 4 << 10

// boundFiles bounds every file that git writes, and the tar, in the kernel.
func boundFiles(r Request) error {
	most := uint64(r.Bytes) + uint64(r.Entries)*perEntry // #nosec G115 -- positive
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: most, Max: most}); err != nil {
		return fmt.Errorf("clone: bound its files: %w", err)
	}
	return nil
}

// tooLarge says whether git was ended because one file grew beyond the bound.
func tooLarge(err error) bool {
	var ended *exec.ExitError
	if !errors.As(err, &ended) {
		return false
	}
	st, ok := ended.Sys().(syscall.WaitStatus)
	return ok && st.Signaled() && st.Signal() == unix.SIGXFSZ
}

// watch measures the folder until ctx ends, and ends ctx when it is too large.
func (r Request) watch(ctx context.Context, dir string, cancel context.CancelCauseFunc) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(watchEvery):
		}
		if err := r.fits(dir); errors.Is(err, errTooLarge) {
			cancel(err)
			return
		}
	}
}

// fits says whether what lies below dir is within the limits. What goes away
// meanwhile does not count.
func (r Request) fits(dir string) error {
	var bytes int64
	entries := 0
	return filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		if d == nil {
			return nil
		}
		entries++
		// By size, not by blocks: holes are filled when it is copied.
		if info, err := d.Info(); err == nil && d.Type().IsRegular() {
			bytes += info.Size()
		}
		if bytes > r.Bytes || entries > r.Entries {
			return errTooLarge
		}
		return nil
	})
}

// tail keeps the end of what is written.
type tail struct{ last []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.last = append(t.last, p[max(0, len(p)-maxSaid):]...)
	t.last = t.last[max(0, len(t.last)-maxSaid):]
	return len(p), nil
}
