package system

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/test/system/stage"
)

// TestSwapsBelowAHomeLeadRootNowhere has the agent exchange everything below
// its own folders, all the time, while the host works with them: restart,
// rotation of its log, stop, down and up again under other ids, by turns.
// BULKHEAD_SWAP_ROUNDS sets how many; docs/benchmarks.md says what was run.
func TestSwapsBelowAHomeLeadRootNowhere(t *testing.T) {
	rounds := 40
	if testing.Short() {
		rounds = 6
	}
	if n, err := strconv.Atoi(os.Getenv("BULKHEAD_SWAP_ROUNDS")); err == nil && n > 0 {
		rounds = n
	}
	eachEngine(t, func(t *testing.T, _ engine.Kind, c stage.CLI) {
		stage.Sh(t, `
echo canary > /var/lib/bulkhead/canary; chmod 600 /var/lib/bulkhead/canary; mkdir -m 700 /var/lib/bulkhead/canaries; echo x > /var/lib/bulkhead/canaries/f
mkdir -p /srv/swap; go version > /dev/null 2>&1 || true`)
		look := func() string {
			return stage.Sh(t, "stat -c '%n %u %g %a %s' /etc/shadow /etc/passwd /etc/group /var/lib/bulkhead/canary /var/lib/bulkhead/canaries /var/lib/bulkhead/canaries/f; sha256sum /var/lib/bulkhead/canary /var/lib/bulkhead/canaries/f /etc/hosts")
		}
		c.Run(t, "up")
		before := look()
		home := "/var/lib/bulkhead/teams/pair/agents/writer/runtime"
		swaps := startSwapping(t, []string{filepath.Join(home, "home"), filepath.Join(home, "workspace")}, func() uint32 {
			return ownerIDOf(filepath.Join(home, "home"))
		})
		for i := range rounds {
			switch i % 5 {
			case 0, 1:
				c.Run(t, "restart", "writer")
			case 2: // a rotation, while what is logged comes from the agent
				c.Run(t, "exec", "writer", "--", "sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x | fold -w 1000 > /proc/1/fd/1 2>/dev/null || true")
			case 3:
				c.Run(t, "stop", "writer")
			case 4:
				c.Run(t, "down")
				// Another account takes the ids, so that everything is given away anew.
				stage.Sh(t, fmt.Sprintf("useradd -M -s /usr/sbin/nologin other%d", i))
			}
			c.Run(t, "up")
		}
		running(t, c)
		if n := swaps.stop(); n < rounds {
			t.Errorf("only %d swaps in %d rounds", n, rounds)
		} else {
			t.Logf("%d swaps in %d rounds", n, rounds)
		}
		c.Run(t, "down")
		stage.Sh(t, "for u in $(grep -o '^other[0-9]*' /etc/passwd); do userdel $u; done")
		after := look()
		// The account files change with accounts; who owns them does not.
		if cutSizes(before) != cutSizes(after) {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	})
}

// cutSizes drops the sizes of the account files.
func cutSizes(s string) string {
	var out []string
	for line := range strings.Lines(s) {
		if f := strings.Fields(line); strings.HasPrefix(line, "/etc/") && len(f) == 5 {
			line = strings.Join(f[:4], " ") + "\n"
		}
		out = append(out, line)
	}
	return strings.Join(out, "")
}

func ownerIDOf(path string) uint32 {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return 0
	}
	return st.Uid
}

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
