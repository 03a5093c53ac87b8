package throwaway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

// The world outside of a throwaway host: two addresses of TEST-NET-3 (RFC
// 5737) on its loopback interface. Tests list one and not the other.
var (
	Listed   = netip.MustParseAddr("203.0.113.10")
	Unlisted = netip.MustParseAddr("203.0.113.11")
)

// prefix starts the name of everything that a throwaway host makes on the
// machine: its temporary folder and its cgroup folders.
const prefix = "bulkhead-test-"

// scratch is where temporary folders go: /var/tmp rather than /tmp, because
// /tmp is memory on many machines and images are large.
const scratch = "/var/tmp"

// The environment variables by which the stages of a start talk. They are
// removed before the host's command starts.
const (
	stageVar = "BULKHEAD_THROWAWAY_STAGE"
	planVar  = "BULKHEAD_THROWAWAY_PLAN"
)

// plan is what the starter tells the stages inside.
type plan struct {
	ID     string      `json:"id"`
	Dir    string      `json:"dir"`  // the temporary folder, on the machine
	Exe    string      `json:"exe"`  // this program
	Cwd    string      `json:"cwd"`  // where the command starts
	Bind   []string    `json:"bind"` // paths of the machine that fresh mounts would hide
	Argv   []string    `json:"argv"` // the host's command
	Groups []hierarchy `json:"groups"`
}

// Option changes what a host sees of the machine.
type Option func(*plan)

// Bind keeps files or folders of the machine visible, read-only, that a fresh
// /run, /tmp or /dev would hide.
func Bind(paths ...string) Option {
	return func(p *plan) { p.Bind = append(p.Bind, paths...) }
}

// Command is a command that runs in a throwaway host of its own.
type Command struct {
	Argv           []string // looked up inside, by PATH
	Env            []string // nil: this process's
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	ExtraFiles     []*os.File // descriptors 3 and up
	Options        []Option
}

// Run starts the host, waits for the command and removes the host. When ctx
// ends, everything in it is killed. The command's failure is an
// *exec.ExitError, as from os/exec.
func (c Command) Run(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("throwaway: a host is made of namespaces and mounts, which needs root: run it with sudo (sudo make test)")
	}
	sweep()
	p, unlock, err := newPlan(c.Argv, c.Options)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, p.remove())
		unlock()
	}()
	if err := p.makeGroups(); err != nil {
		return err
	}
	text, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("throwaway: plan: %w", err)
	}

	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{"throwaway-init"}
	cmd.Env = c.Env
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, stageVar+"=init", planVar+"="+string(text))
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = c.Stdin, c.Stdout, c.Stderr, c.ExtraFiles
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	// Pdeathsig fires when the starting THREAD ends, not the process
	// (prctl(2)): hold it until the host is gone.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return cmd.Run()
}

// newPlan makes the temporary folder and locks it: a folder that nobody holds
// belonged to a starter that was killed, see sweep.
func newPlan(argv []string, opts []Option) (*plan, func(), error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, nil, fmt.Errorf("throwaway: this program's path: %w", err)
	}
	cwd, err := os.Getwd()
	if err != nil {
		return nil, nil, fmt.Errorf("throwaway: working folder: %w", err)
	}
	dir, err := os.MkdirTemp(scratch, prefix)
	if err != nil {
		return nil, nil, fmt.Errorf("throwaway: temporary folder: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, nil, err
	}
	p := &plan{ID: filepath.Base(dir), Dir: dir, Exe: exe, Cwd: cwd, Argv: argv, Bind: []string{exe, cwd, moduleOf(cwd)}}
	for _, o := range opts {
		o(p)
	}
	if p.Groups, err = hierarchies(); err != nil {
		_ = os.RemoveAll(dir)
		_ = lock.Close()
		return nil, nil, err
	}
	return p, func() { _ = lock.Close() }, nil
}

// moduleOf is the Go module that holds dir, from which tests build programs
// inside a host; dir itself when there is none.
func moduleOf(dir string) string {
	for d := dir; d != "/"; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d
		}
	}
	return dir
}

// remove takes the host's traces off the machine: cgroup folders first, the
// temporary folder last, so that sweep finds both by the folder.
func (p *plan) remove() error {
	if err := p.removeGroups(); err != nil {
		return err
	}
	if err := os.RemoveAll(p.Dir); err != nil {
		return fmt.Errorf("throwaway: remove temporary folder: %w", err)
	}
	return nil
}

// lockDir takes the lock of a temporary folder, or fails when it is held.
func lockDir(dir string) (*os.File, error) {
	f, err := os.Open(dir) // #nosec G304 -- a folder that this package made
	if err != nil {
		return nil, fmt.Errorf("throwaway: open temporary folder: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("throwaway: lock %s: %w", dir, err)
	}
	return f, nil
}

// sweep removes what killed starters left. A folder younger than its lock
// would be in use, and is: MkdirTemp and Flock are not one step, so a folder
// must also be empty of nothing yet, hence the age.
func sweep() {
	dirs, err := filepath.Glob(filepath.Join(scratch, prefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		if !olderThanAMinute(dir) {
			continue
		}
		lock, err := lockDir(dir)
		if err != nil {
			continue // in use
		}
		if groups, err := hierarchies(); err == nil {
			stale := &plan{ID: filepath.Base(dir), Dir: dir, Groups: groups}
			_ = stale.remove() // another sweep gets what this one could not
		}
		_ = lock.Close()
	}
}
