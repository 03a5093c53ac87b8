package containerfile

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"bulkhead/internal/confine"
)

// stepFD has the step, as JSON.
const stepFD = 3

// safe are the flags of every mount that is made.
const safe = unix.MS_NOSUID | unix.MS_NOEXEC

// devices are all that a step finds in /dev.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// RunStep becomes one RUN step: it makes the current folder the root, confines
// itself (confine.Step) and execs. It returns only an error. It must be PID 1 of
// namespaces that [Build] made, and refuses anything else.
func RunStep() error {
	if os.Getpid() != 1 {
		return fmt.Errorf("step: started by hand")
	}
	if err := nobodyOutside(); err != nil {
		return fmt.Errorf("step: %w", err)
	}
	runtime.LockOSThread() // its capabilities are dropped, and it execs
	in := os.NewFile(stepFD, "step")
	var s Step
	if err := json.NewDecoder(in).Decode(&s); err != nil {
		return fmt.Errorf("step: request: %w", err)
	}
	if err := in.Close(); err != nil {
		return fmt.Errorf("step: %w", err)
	}
	if err := enterTree(); err != nil {
		return fmt.Errorf("step: %w", err)
	}
	if err := os.Chdir(s.Dir); err != nil {
		return fmt.Errorf("step: %w", err)
	}
	program, err := find(s.Argv[0], s.Env)
	if err != nil {
		return fmt.Errorf("step: %w", err)
	}
	if err := confine.Step(); err != nil {
		return fmt.Errorf("step: %w", err)
	}
	return fmt.Errorf("step: %s: %w", program, syscall.Exec(program, s.Argv, s.Env)) // #nosec G204 -- what the Containerfile asks for
}

// enterTree makes the current folder the root, with /proc, /dev and /dev/shm of
// its own. Whatever is mounted goes with the namespace.
func enterTree() error {
	tree, err := os.Getwd()
	if err != nil {
		return err
	}
	at := func(name string) string { return path.Join(tree, name) }
	mount := func(source, target, kind string, flags uintptr, data string) error {
		if err := unix.Mount(source, target, kind, flags, data); err != nil {
			return fmt.Errorf("mount %s: %w", target, err)
		}
		return nil
	}
	if err := mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := mount(tree, tree, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if err := mount("proc", at("proc"), "proc", safe|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("%w (is /proc of this host fully visible?)", err)
	}
	if err := mount("tmpfs", at("dev"), "tmpfs", safe, "size=64k,mode=0755"); err != nil {
		return err
	}
	for _, name := range devices {
		target := at("dev/" + name)
		if err := os.WriteFile(target, nil, 0o600); err != nil {
			return err
		}
		if err := mount("/dev/"+name, target, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	for name, to := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(to, at("dev/"+name)); err != nil {
			return err
		}
	}
	if err := os.Mkdir(at("dev/shm"), 0o700); err != nil {
		return err
	}
	if err := mount("tmpfs", at("dev/shm"), "tmpfs", safe|unix.MS_NODEV, "size=64m,mode=1777"); err != nil {
		return err
	}
	if err := os.Chdir(tree); err != nil { // the bind mount, not what it covers
		return err
	}
	// The old root comes to lie over the new one and is taken off (pivot_root(2)).
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("take the old root off: %w", err)
	}
	return os.Chdir("/")
}

// find looks a program up in the step's PATH.
func find(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, v := range env {
		list, ok := strings.CutPrefix(v, "PATH=")
		if !ok {
			continue
		}
		for dir := range strings.SplitSeq(list, ":") {
			p := path.Join(dir, name)
			if info, err := os.Stat(p); path.IsAbs(p) && err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return p, nil
			}
		}
	}
	return "", fmt.Errorf("%s is not in PATH of the image", name)
}
