package cell_test

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine/cell"
	"bulkhead/internal/thread"
	"bulkhead/test/system/throwaway"
)

// What a container's mount namespace begins with shows nothing of the host, and
// neither does what its root was put over.
func TestABareNamespaceHoldsNothing(t *testing.T) {
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		b, err := cell.MakeBare()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = b.Close() }()
		mustDo := func(what string, err error) {
			t.Helper()
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		for name, enter := range map[string]func() error{"a copy": b.Enter, "one for this alone": (*cell.Bare)(nil).Enter} {
			thread.Run(func() {
				root, err := cell.MemoryMount(0, map[string]string{"size": "64k", "mode": "0755"})
				mustDo("a root", err)
				// The host's, to look with: nothing of it is in a path later on.
				proc, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
				mustDo("procfs", err)
				mustDo("enter", enter())
				if entries, err := os.ReadDir("/"); err != nil || len(entries) > 0 {
					t.Errorf("%s: it shows %v, %v", name, entries, err)
				}
				if err := os.Mkdir("/x", 0o700); err == nil {
					t.Errorf("%s: it can be written", name)
				}
				mustDo("set the root", cell.SetRoot(root))
				mustDo("mark it", os.Mkdir("/mine", 0o700))
				if got, err := os.Getwd(); err != nil || got != "/" {
					t.Errorf("%s: working in %q, %v", name, got, err)
				}
				// In a chroot the kernel refuses this (user_namespaces(7)), and containers need it.
				mustDo("a user namespace", userNamespace())
				mounts := readAt(t, proc, "thread-self/mountinfo")
				if lines := strings.Count(mounts, "\n"); lines != 1 || !strings.Contains(mounts, " / / ") {
					t.Errorf("%s: mounts in sight:\n%s", name, mounts)
				}
				// The old way out of a root: a second one below the folder that one works in.
				mustDo("a folder", os.Mkdir("/deep", 0o700))
				mustDo("a second root", unix.Chroot("/deep"))
				for range 5 {
					mustDo("climb", unix.Chdir(".."))
				}
				mustDo("the top as root", unix.Chroot("."))
				entries, err := os.ReadDir("/")
				mustDo("look around", err)
				for _, e := range entries {
					if e.Name() != "mine" && e.Name() != "deep" {
						t.Errorf("%s: who climbs out of the root sees %s", name, e.Name())
					}
				}
			})
		}
	})
}

// userNamespace makes one in a child, which ends at once.
func userNamespace() error {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 {
		for {
			_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	_, err := unix.Wait4(int(pid), nil, 0, nil)
	return err
}

func readAt(t *testing.T, dir int, name string) string {
	t.Helper()
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer func() { _ = unix.Close(fd) }()
	var out []byte
	buf := make([]byte, 4096)
	for {
		n, err := unix.Read(fd, buf)
		if n <= 0 || err != nil {
			return string(out)
		}
		out = append(out, buf[:n]...)
	}
}
