package throwaway

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// plainState is the one folder of a host that lies on a plain filesystem.
const plainState = "/var/lib/bulkhead"

// devices are bound from the machine into the host's /dev, where they exist.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty", "fuse", "net/tun", "kvm"}

func mount(source, target, kind string, flags uintptr, data string) error {
	if err := syscall.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("throwaway: mount %s on %s (%s): %w", kind, target, data, err)
	}
	return nil
}

// makeRoot builds the host's tree and makes it the root of this mount
// namespace.
func (p *plan) makeRoot() error {
	if err := mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	upper, root, state := filepath.Join(p.Dir, "upper"), filepath.Join(p.Dir, "root"), filepath.Join(p.Dir, "state")
	for _, d := range []string{upper, root, state} {
		if err := os.Mkdir(d, 0o755); err != nil { // #nosec G301 -- becomes a root file system
			return fmt.Errorf("throwaway: %w", err)
		}
	}
	machine, err := readMounts()
	if err != nil {
		return err
	}
	if err := mount("tmpfs", upper, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	if err := copyOnWrite("/", root, filepath.Join(upper, "0")); err != nil {
		return err
	}
	if err := p.coverMounts(machine, root, upper); err != nil {
		return err
	}
	if err := p.freshMounts(root, state); err != nil {
		return err
	}
	shown, err := p.hidden()
	if err != nil {
		return err
	}
	for _, b := range shown {
		if err := bindReadOnly(b, root); err != nil {
			return err
		}
	}
	return pivot(root)
}

// hidden lists what of p.Bind the fresh mounts would hide: parents first, and
// nothing that a parent shows anyway.
func (p *plan) hidden() ([]string, error) {
	var all, out []string
	for _, b := range p.Bind {
		abs, err := filepath.Abs(b)
		if err != nil {
			return nil, fmt.Errorf("throwaway: %w", err)
		}
		all = append(all, abs)
	}
	slices.Sort(all)
	for _, b := range all {
		covered := slices.ContainsFunc(out, func(o string) bool { return b == o || strings.HasPrefix(b, o+"/") })
		if isFresh(b) && !covered {
			out = append(out, b)
		}
	}
	return out, nil
}

// copyOnWrite mounts an overlay over lower at target.
func copyOnWrite(lower, target, layer string) error {
	for _, d := range []string{layer, filepath.Join(layer, "u"), filepath.Join(layer, "w")} {
		if err := os.Mkdir(d, 0o755); err != nil { // #nosec G301 -- upper layer of a root file system
			return fmt.Errorf("throwaway: %w", err)
		}
	}
	return mount("overlay", target, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s/u,workdir=%s/w", overlayEscape(lower), layer, layer))
}

func overlayEscape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `,`, `\,`, `:`, `\:`).Replace(path)
}

// coverMounts gives the machine's other mounts (a separate /home, a build
// folder) a copy-on-write layer too: an overlay shows one mount only.
func (p *plan) coverMounts(machine []machineMount, root, upper string) error {
	for i, m := range machine {
		if m.Target == "/" || isFresh(m.Target) || strings.HasPrefix(m.Target, p.Dir) {
			continue
		}
		info, err := os.Lstat(m.Target)
		if err != nil {
			continue // covered by another mount, or gone: not visible on the machine either
		}
		target := filepath.Join(root, m.Target)
		if info.IsDir() {
			if _, err := os.Lstat(target); err != nil {
				continue
			}
			if copyOnWrite(m.Target, target, filepath.Join(upper, fmt.Sprint(i+1))) == nil {
				continue
			}
		}
		// Filesystems that cannot be a lower layer, and files: look, don't touch.
		if err := bindReadOnly(m.Target, root); err != nil {
			return err
		}
	}
	return nil
}

// isFresh says whether a path lies in a tree that the host has of its own.
func isFresh(path string) bool {
	for _, top := range []string{"/proc", "/sys", "/dev", "/run", "/tmp", plainState} {
		if path == top || strings.HasPrefix(path, top+"/") {
			return true
		}
	}
	return false
}

// freshMounts makes what is not the machine's.
func (p *plan) freshMounts(root, state string) error {
	at := func(path string) string { return filepath.Join(root, path) }
	if err := os.MkdirAll(at(plainState), 0o755); err != nil { // #nosec G301 -- as the product makes it
		return fmt.Errorf("throwaway: %w", err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(state, &st); err != nil {
		return fmt.Errorf("throwaway: statfs %s: %w", state, err)
	}
	if st.Type == unix.OVERLAYFS_SUPER_MAGIC { // the machine is a container or a throwaway host itself
		if err := mount("tmpfs", state, "tmpfs", 0, "mode=755"); err != nil {
			return err
		}
	}
	if err := mount(state, at(plainState), "", syscall.MS_BIND, ""); err != nil {
		return err
	}
	const quiet = syscall.MS_NOSUID | syscall.MS_NODEV
	for _, m := range []struct {
		target, kind string
		flags        uintptr
		data         string
	}{
		{"/run", "tmpfs", quiet, "mode=755"},
		{"/tmp", "tmpfs", quiet, "mode=1777"},
		{"/proc", "proc", quiet | syscall.MS_NOEXEC, ""},
		{"/sys", "sysfs", quiet | syscall.MS_NOEXEC | syscall.MS_RDONLY, ""},
		{"/dev", "tmpfs", syscall.MS_NOSUID, "mode=755,size=1m"},
	} {
		if err := mount(m.kind, at(m.target), m.kind, m.flags, m.data); err != nil {
			return err
		}
	}
	if _, err := os.Stat("/sys/kernel/security/lsm"); err == nil { // which LSMs are on is read here
		if err := mount("securityfs", at("/sys/kernel/security"), "securityfs", quiet|syscall.MS_NOEXEC|syscall.MS_RDONLY, ""); err != nil {
			return err
		}
	}
	// The kernel has one set of AppArmor profiles, which is the machine's: here
	// it is off (test/vm tries it on a whole host).
	const on = "/sys/module/apparmor/parameters/enabled"
	if _, err := os.Stat(on); err == nil {
		if err := mount("/dev/null", at(on), "", syscall.MS_BIND, ""); err != nil {
			return err
		}
	}
	return p.freshDev(at("/dev"))
}

func (p *plan) freshDev(dev string) error {
	for _, d := range []string{"pts", "shm", "net", "mqueue"} {
		if err := os.Mkdir(filepath.Join(dev, d), 0o755); err != nil { // #nosec G301 -- as on every machine
			return fmt.Errorf("throwaway: %w", err)
		}
	}
	for _, d := range devices {
		if _, err := os.Stat("/dev/" + d); err != nil {
			continue
		}
		if err := bind("/dev/"+d, filepath.Join(dev, d)); err != nil {
			return err
		}
	}
	if err := loopDevices(dev); err != nil {
		return err
	}
	if err := mount("devpts", filepath.Join(dev, "pts"), "devpts", syscall.MS_NOSUID|syscall.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5"); err != nil {
		return err
	}
	if err := mount("tmpfs", filepath.Join(dev, "shm"), "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "mode=1777"); err != nil {
		return err
	}
	for name, target := range map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(target, filepath.Join(dev, name)); err != nil {
			return fmt.Errorf("throwaway: %w", err)
		}
	}
	return nil
}

// Loop devices are the kernel's, not a host's: which of them are in use shows
// in every host. They are nodes of our own here, because the machine's /dev
// only gets those that somebody asked for, and only there.
const (
	loopMajor   = 7
	loopMax     = 256
	controlNode = 10<<8 | 237 // misc device (kernel: admin-guide/devices.txt)
)

func loopDevices(dev string) error {
	if _, err := os.Stat("/dev/loop-control"); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := syscall.Mknod(filepath.Join(dev, "loop-control"), syscall.S_IFCHR|0o600, controlNode); err != nil {
		return fmt.Errorf("throwaway: loop-control: %w", err)
	}
	for i := range loopMax {
		if err := syscall.Mknod(filepath.Join(dev, fmt.Sprintf("loop%d", i)), syscall.S_IFBLK|0o600, loopMajor<<8|i); err != nil {
			return fmt.Errorf("throwaway: loop device: %w", err)
		}
	}
	return nil
}

// bind binds source to target, which is made as a file or folder to match.
func bind(source, target string) error {
	info, err := os.Stat(source)
	if err != nil {
		return fmt.Errorf("throwaway: %w", err)
	}
	if info.IsDir() {
		err = os.MkdirAll(target, 0o755) // #nosec G301 -- a mount point
	} else if err = os.MkdirAll(filepath.Dir(target), 0o755); err == nil { // #nosec G301 -- a mount point
		var f *os.File
		if f, err = os.OpenFile(target, os.O_CREATE, 0o644); err == nil { // #nosec G302 G304 -- a mount point in a tree that this package made
			err = f.Close()
		}
	}
	if err != nil {
		return fmt.Errorf("throwaway: mount point: %w", err)
	}
	return mount(source, target, "", syscall.MS_BIND, "")
}

// bindReadOnly shows path of the machine below root unless it is there.
func bindReadOnly(path, root string) error {
	target := filepath.Join(root, path)
	if err := bind(path, target); err != nil {
		return err
	}
	return mount("", target, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY|syscall.MS_NOSUID|syscall.MS_NODEV, "")
}

// pivot makes root the root of the mount namespace and drops the machine's.
func pivot(root string) error {
	if err := os.Chdir(root); err != nil {
		return fmt.Errorf("throwaway: %w", err)
	}
	// pivot_root(2), "pivot_root(\".\", \".\")": no folder for the old root.
	if err := syscall.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("throwaway: pivot_root: %w", err)
	}
	if err := syscall.Unmount(".", syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("throwaway: drop the machine's root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("throwaway: %w", err)
	}
	return nil
}

func olderThanAMinute(path string) bool {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err != nil {
		return false
	}
	return time.Since(info.ModTime()) > time.Minute
}
