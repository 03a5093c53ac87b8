package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/test/system/throwaway"
)

const state = "/var/lib/bulkhead"

var small = Size{Bytes: 32 << 20, Inodes: 1000}

func named(name string) Disk {
	return Disk{Image: filepath.Join(state, name+".img"), Point: filepath.Join(state, name)}
}

// inHost runs f in a throwaway host, and then sees that no loop device of it is left.
func inHost(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		if _, err := os.Stat(loopControl); err != nil {
			t.Skip("this machine has no loop devices: modprobe loop")
		}
		f(t)
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func ensured(t *testing.T, name string, s Size) Disk {
	t.Helper()
	d := named(name)
	must(t, d.Ensure(t.Context(), s))
	t.Cleanup(func() { _ = d.Unmount() })
	return d
}

// fill writes until the kernel says no, and returns how much that was.
func fill(t *testing.T, path string) (n int64, err error) {
	t.Helper()
	f, err := os.Create(path)
	must(t, err)
	defer func() { _ = f.Close() }()
	block := make([]byte, 1<<20)
	for n < 1<<30 {
		m, err := f.Write(block)
		n += int64(m)
		if err != nil {
			return n, err
		}
	}
	return n, f.Sync()
}

func TestADiskHoldsWhatItIsMadeForAndNoMore(t *testing.T) {
	inHost(t, func(t *testing.T) {
		a, b := ensured(t, "a", small), ensured(t, "b", small)
		n, err := fill(t, filepath.Join(a.Point, "big"))
		if !errors.Is(err, unix.ENOSPC) || n > small.Bytes {
			t.Errorf("wrote %d bytes, then %v", n, err)
		}
		u, ok, err := a.Usage()
		if err != nil || !ok || u.UsedBytes < n || u.Bytes > small.Bytes || u.Bytes-u.UsedBytes > 1<<20 {
			t.Errorf("usage %+v, %v, %v", u, ok, err)
		}
		if err := os.WriteFile(filepath.Join(b.Point, "x"), make([]byte, 1<<20), 0o600); err != nil {
			t.Errorf("the neighbour: %v", err)
		}
		i := 0
		for ; i < 5000; i++ {
			if err = os.WriteFile(filepath.Join(b.Point, fmt.Sprint(i)), nil, 0o600); err != nil {
				break
			}
		}
		if !errors.Is(err, unix.ENOSPC) || int64(i) > small.Inodes+64 {
			t.Errorf("made %d files, then %v", i, err)
		}
		if u, _, err := b.Usage(); err != nil || u.UsedInodes != u.Inodes {
			t.Errorf("usage %+v, %v", u, err)
		}
		var st unix.Statfs_t
		must(t, unix.Statfs(a.Point, &st))
		if st.Flags&unix.ST_NOSUID == 0 || st.Flags&unix.ST_NODEV == 0 {
			t.Errorf("mount flags %x", st.Flags)
		}
		var img unix.Stat_t
		must(t, unix.Stat(a.Image, &img))
		if img.Blocks*512 < small.Bytes || img.Mode&0o777 != 0o600 || img.Uid != 0 {
			t.Errorf("the image has %d bytes reserved, mode %o, owner %d", img.Blocks*512, img.Mode, img.Uid)
		}
	})
}

func TestADiskComesBackWithWhatWasOnIt(t *testing.T) {
	inHost(t, func(t *testing.T) {
		d := ensured(t, "a", small)
		must(t, os.WriteFile(filepath.Join(d.Point, "kept"), []byte("x"), 0o640))
		held, err := os.Open(d.Point) // somebody of the host looks into it
		must(t, err)
		must(t, d.Unmount())
		if _, err := os.Stat(filepath.Join(d.Point, "kept")); err == nil {
			t.Error("it is still mounted")
		}
		must(t, d.Ensure(t.Context(), small))
		must(t, d.Ensure(t.Context(), Size{Bytes: 1 << 30, Inodes: 1})) // safe to repeat; another size is Resize's
		if got, err := os.ReadFile(filepath.Join(d.Point, "kept")); err != nil || string(got) != "x" {
			t.Errorf("%q %v", got, err)
		}
		var a, b unix.Stat_t
		must(t, unix.Fstat(int(held.Fd()), &a))
		must(t, unix.Stat(d.Point, &b))
		if a.Dev != b.Dev {
			t.Error("one image is on two devices at once")
		}
		must(t, held.Close())
	})
}

func TestADiskIsGivenAnotherSize(t *testing.T) {
	inHost(t, func(t *testing.T) {
		d := ensured(t, "a", small)
		data := strings.Repeat("data", 1<<20)
		path := filepath.Join(d.Point, "home", "f")
		must(t, os.Mkdir(filepath.Dir(path), 0o700))
		must(t, os.WriteFile(path, []byte(data), 0o640))
		must(t, os.Chown(path, 12345, 54321))
		must(t, unix.Setxattr(path, "user.note", []byte("v"), 0))
		must(t, os.Link(path, path+"2"))
		must(t, os.Symlink("/etc/shadow", path+"3"))
		check := func(s Size) {
			t.Helper()
			got, err := os.ReadFile(path)
			var st, other unix.Stat_t
			must(t, unix.Lstat(path, &st))
			must(t, unix.Lstat(path+"2", &other))
			note := make([]byte, 8)
			n, xerr := unix.Getxattr(path, "user.note", note)
			link, lerr := os.Readlink(path + "3")
			if err != nil || string(got) != data || st.Uid != 12345 || st.Gid != 54321 || st.Mode&0o777 != 0o640 || st.Ino != other.Ino ||
				xerr != nil || string(note[:n]) != "v" || lerr != nil || link != "/etc/shadow" {
				t.Errorf("%d bytes, %v, %+v, link %q %v", len(got), err, st, link, lerr)
			}
			if have, made, err := d.Made(); err != nil || !made || have != s {
				t.Errorf("it is %+v, %v, %v", have, made, err)
			}
			if left, _ := filepath.Glob(state + "/a*.new"); len(left) > 0 {
				t.Errorf("left %v", left)
			}
		}
		for _, s := range []Size{{64 << 20, 1000}, {64 << 20, 3000}, {24 << 20, 500}} {
			must(t, d.Resize(t.Context(), s))
			check(s)
		}
		// What is on it does not fit: nothing is changed.
		must(t, os.WriteFile(filepath.Join(d.Point, "more"), make([]byte, 13<<20), 0o600))
		if err := d.Resize(t.Context(), Size{16 << 20, 500}); !errors.Is(err, ErrTooSmall) {
			t.Errorf("it fits: %v", err)
		}
		check(Size{24 << 20, 500})
		if on, err := d.Mounted(); err != nil || !on {
			t.Errorf("mounted %v, %v", on, err)
		}
	})
}

func TestWhatLayInTheFolderIsTakenOver(t *testing.T) {
	inHost(t, func(t *testing.T) {
		d := named("a")
		must(t, os.MkdirAll(filepath.Join(d.Point, "home"), 0o755))
		must(t, os.WriteFile(filepath.Join(d.Point, "home", "f"), []byte("x"), 0o600))
		must(t, d.Ensure(t.Context(), small))
		defer func() { _ = d.Unmount() }()
		if got, err := os.ReadFile(filepath.Join(d.Point, "home", "f")); err != nil || string(got) != "x" {
			t.Errorf("%q %v", got, err)
		}
		must(t, d.Unmount())
		if some, err := holds(d.Point); err != nil || some {
			t.Errorf("below the mount something is left: %v %v", some, err)
		}
	})
}

// Killed between any two steps, the next Ensure and Resize end in the same
// state. Every step leaves what is made here by hand.
func TestACrashInTheMiddleLeavesNothing(t *testing.T) {
	inHost(t, func(t *testing.T) {
		d := named("a")
		side := d.side()
		for name, crash := range map[string]func(){
			"an image half made": func() {
				must(t, os.WriteFile(side.Image, []byte("half"), 0o600))
			},
			"a copy half done": func() {
				must(t, side.makeImage(t.Context(), small))
				must(t, point(side.Point))
				must(t, side.mount())
				must(t, os.WriteFile(filepath.Join(side.Point, "half"), nil, 0o600))
			},
			"unmounted and not replaced": func() {
				must(t, side.makeImage(t.Context(), small))
				must(t, d.Unmount())
			},
		} {
			t.Run(name, func(t *testing.T) {
				must(t, d.Ensure(t.Context(), small))
				must(t, os.WriteFile(filepath.Join(d.Point, "kept"), []byte("x"), 0o600))
				crash()
				must(t, d.Ensure(t.Context(), small))
				must(t, d.Resize(t.Context(), Size{Bytes: 40 << 20, Inodes: 2000}))
				if got, err := os.ReadFile(filepath.Join(d.Point, "kept")); err != nil || string(got) != "x" {
					t.Errorf("%q %v", got, err)
				}
				if left, _ := filepath.Glob(state + "/*.new"); len(left) > 0 {
					t.Errorf("left %v", left)
				}
				must(t, d.Discard())
				if left, _ := filepath.Glob(state + "/*"); len(left) > 0 {
					t.Errorf("left %v", left)
				}
			})
		}
	})
}

func TestAForeignMountIsNotTakenForADisk(t *testing.T) {
	inHost(t, func(t *testing.T) {
		d := ensured(t, "a", small)
		must(t, unix.Mount("tmpfs", d.Point, "tmpfs", 0, ""))
		if _, err := d.Mounted(); err == nil {
			t.Error("a tmpfs passes for the disk")
		}
		must(t, unix.Unmount(d.Point, 0))
		must(t, d.Unmount())
		must(t, tryRename(d.Image))
		must(t, os.Symlink("/etc/passwd", d.Image))
		if err := d.Ensure(t.Context(), small); err == nil {
			t.Error("a link passes for the image")
		}
	})
}

func tryRename(p string) error { return os.Rename(p, p+".other") }

func FuzzSuperblock(f *testing.F) {
	good := make([]byte, labelAt+labelSize)
	good[magicAt], good[magicAt+1] = 0x53, 0xEF
	copy(good[labelAt:], "bh-rs")
	f.Add(good)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, super []byte) {
		n, err := parseSuper(super)
		if err == nil && (n <= 0 || n > maxInodes) {
			t.Errorf("%d inodes", n)
		}
	})
}

func FuzzMounts(f *testing.F) {
	f.Add("22 27 7:3 / /var/lib/bulkhead/a rw - ext4 /dev/loop3 rw\n", "/var/lib/bulkhead/a")
	f.Add("22 27 7:x / /a\\040b rw - ext4", "/a b")
	f.Fuzz(func(t *testing.T, text, path string) {
		if dev, on := parseMounts(text, path); !on && dev != 0 {
			t.Errorf("device %d of nothing", dev)
		}
	})
}

func TestToolsHoldTheLockOfWhoeverStartedThem(t *testing.T) {
	held, err := os.Open(t.TempDir())
	must(t, err)
	defer func() { _ = held.Close() }()
	d := Disk{Held: held}
	if err := d.run(t.Context(), "sh", "-c", "[ \"$(readlink /proc/self/fd/3)\" = "+held.Name()+" ]"); err != nil {
		t.Errorf("descriptor 3 of a tool: %v", err)
	}
}
