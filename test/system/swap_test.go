package system

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// swapping exchanges entries of folders until it is stopped.
type swapping struct {
	done  chan struct{}
	wg    sync.WaitGroup
	swaps atomic.Int64
}

func (s *swapping) stop() int {
	close(s.done)
	s.wg.Wait()
	return int(s.swaps.Load())
}

// startSwapping acts as the owner of dirs, whoever that is at the moment: it
// fills each with a folder, links to what only root may touch, a FIFO and a
// hard link, and exchanges all of them with each other and with the folders'
// own entries (renameat2(2), RENAME_EXCHANGE), again and again.
func startSwapping(t *testing.T, dirs []string, owner func() uint32) *swapping {
	t.Helper()
	s := &swapping{done: make(chan struct{})}
	for _, dir := range dirs {
		s.wg.Go(func() {
			// This thread becomes the agent, and is thrown away.
			runtime.LockOSThread()
			for {
				select {
				case <-s.done:
					return
				case <-time.After(2 * time.Millisecond): // two processors are shared with what is attacked
				}
				if id := owner(); id != 0 {
					as(id, func() { s.swaps.Add(int64(swapIn(dir))) })
				}
			}
		})
	}
	return s
}

// as runs f with the file system id and real capabilities of an ordinary user,
// on this thread only.
func as(id uint32, f func()) {
	// The file system id decides about files (setfsuid(2)), and leaving 0 takes
	// the capabilities that override permissions along.
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSGID, uintptr(id), 0, 0)
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, uintptr(id), 0, 0)
	f()
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, 0, 0, 0)
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSGID, 0, 0, 0)
}

func swapIn(dir string) (swaps int) {
	const canaries = "/var/lib/bulkhead/canaries"
	_ = os.Mkdir(filepath.Join(dir, "folder"), 0o777)
	for _, name := range []string{"file", "folder/deep"} {
		// Only when it is new: by now the name may be a FIFO, which waits.
		if f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666); err == nil {
			_ = f.Close()
		}
	}
	_ = os.Symlink("/etc/shadow", filepath.Join(dir, "shadow"))
	_ = os.Symlink(canaries, filepath.Join(dir, "canaries"))
	_ = os.Symlink("/etc", filepath.Join(dir, ".config"))
	_ = os.Link("/var/lib/bulkhead/canary", filepath.Join(dir, "hard"))
	_ = os.Link("/etc/shadow", filepath.Join(dir, "hardshadow"))
	_ = os.Link(filepath.Join(dir, "file"), filepath.Join(dir, "twice"))
	_ = unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666)
	names := []string{"folder", "file", "shadow", "canaries", ".config", "fifo", "twice", "hard"}
	for i := range names {
		a, b := filepath.Join(dir, names[i]), filepath.Join(dir, names[(i+3)%len(names)])
		if unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE) == nil {
			swaps++
		}
	}
	// The folder itself, and its siblings: they lie in root's.
	for _, sibling := range []string{"log", "data", "workspace", "home"} {
		other := filepath.Join(filepath.Dir(dir), sibling)
		_ = unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE)
		_ = os.Rename(other, filepath.Join(dir, fmt.Sprintf("taken-%s", sibling)))
		_ = os.Symlink("/etc", other)
	}
	return swaps
}
