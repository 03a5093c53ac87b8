package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// foreignKinds are attempts at what another agent has.
func foreignKinds() map[string]kind {
	return map[string]kind{
		"process.environ":    {do: eachFile("environ")},
		"process.arguments":  {do: eachFile("cmdline")},
		"process.maps":       {do: eachFile("maps")},
		"process.fds":        {do: eachFile("fd")},
		"process.namespaces": {do: eachFile("ns/net")},
		"process.root":       {do: readLinks},
		"process.oom":        {do: writeScore},
		"process.limits":     {do: readLimits},
		"process.affinity":   {do: pinProcesses},
		"process.priority":   {do: niceProcesses},
		"process.queue":      {do: queueSignals},
		"process.pidfd":      {do: signalByDescriptor},
		"foreign.write":      {do: writeForeign},
		"foreign.watch":      {do: watchForeign},
		"foreign.mode":       {do: chmodForeign},
		"foreign.symlink":    {do: bySymlink},
		"foreign.traverse":   {do: byTraversal},
		"token.search":       {do: searchTokens},
		"file.descriptors":   {do: inheritedDescriptors},
	}
}

// eachFile opens a file below /proc/PID of each target.
func eachFile(name string) func(*trial) error {
	return func(t *trial) error {
		return t.eachTarget("open "+name+" of ", func(pid int) error { return openClose(fmt.Sprintf("/proc/%d/%s", pid, name)) })
	}
}

// readLinks reads where each target's root, folder and program are.
func readLinks(t *trial) error {
	return t.eachTarget("read root, cwd and exe of ", func(pid int) error {
		var err error
		for _, l := range []string{"root", "cwd", "exe"} {
			_, lerr := os.Readlink(fmt.Sprintf("/proc/%d/%s", pid, l))
			if lerr == nil {
				return nil
			}
			err = lerr
		}
		return err
	})
}

// writeScore opens, without writing, what decides whom the kernel ends first.
func writeScore(t *trial) error {
	return t.eachTarget("open oom_score_adj for writing, of ", func(pid int) error { return openAndClose(fmt.Sprintf("/proc/%d/oom_score_adj", pid)) })
}

func readLimits(t *trial) error {
	return t.eachTarget("prlimit of ", func(pid int) error {
		var now unix.Rlimit
		return unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &now)
	})
}

// pinProcesses gives each target the processors that it has.
func pinProcesses(t *trial) error {
	return t.eachTarget("sched_setaffinity of ", func(pid int) error {
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(pid, &set); err != nil {
			return err
		}
		return unix.SchedSetaffinity(pid, &set)
	})
}

// niceProcesses gives each target the priority that it has.
func niceProcesses(t *trial) error {
	return t.eachTarget("setpriority of ", func(pid int) error {
		now, err := unix.Getpriority(unix.PRIO_PROCESS, pid)
		if err != nil {
			return err
		}
		return unix.Setpriority(unix.PRIO_PROCESS, pid, 20-now) // getpriority(2): the call's own form
	})
}

// queueSignals queues signal 0, which only asks whether it might.
func queueSignals(t *trial) error {
	return t.eachTarget("rt_sigqueueinfo 0 of ", func(pid int) error {
		var info [128]byte                                                                                 // siginfo_t
		code := int32(-1)                                                                                  // SI_QUEUE
		*(*int32)(unsafe.Pointer(&info[8])) = code                                                         // #nosec G103 -- the call's own form
		_, _, n := unix.Syscall(unix.SYS_RT_SIGQUEUEINFO, uintptr(pid), 0, uintptr(unsafe.Pointer(&info))) // #nosec G103 G115 -- a system call's argument
		return number(n)
	})
}

// signalByDescriptor sends signal 0 by a descriptor of each target.
func signalByDescriptor(t *trial) error {
	return t.eachTarget("pidfd_send_signal 0 of ", func(pid int) error {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.PidfdSendSignal(fd, 0, nil, 0)
	})
}

// name is one that nobody else uses.
func (t *trial) name() string { return mark + t.Nonce[:min(8, len(t.Nonce))] }

// mark begins the names of what attempts make.
const mark = ".bulkhead-probe-"

// writeForeign makes a file in each folder, and removes it.
func writeForeign(t *trial) error {
	for _, dir := range t.Paths {
		p := filepath.Join(dir, t.name())
		fd, err := unix.Open(p, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if t.step("create a file in "+dir, err) {
			t.saw("made %s", p)
			return errors.Join(unix.Close(fd), unix.Unlink(p))
		}
	}
	return nil
}

// watchForeign asks to hear of what happens in each folder.
func watchForeign(t *trial) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("inotify: %w", err)
	}
	defer unix.Close(fd)
	for _, dir := range t.Paths {
		_, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE)
		if t.step("watch "+dir, err) {
			t.saw("hears of what happens in %s", dir)
			return nil
		}
	}
	return nil
}

// chmodForeign gives each folder the mode that only its owner reads: what it
// has.
func chmodForeign(t *trial) error {
	for _, dir := range t.Paths {
		if t.step("chmod 0700 "+dir, unix.Chmod(dir, 0o700)) {
			t.saw("may change the mode of %s", dir)
			return nil
		}
	}
	return nil
}

// bySymlink reads each path by a symbolic link of its own.
func bySymlink(t *trial) error {
	dir, remove, err := scratch()
	if err != nil {
		return err
	}
	link := filepath.Join(dir, "link")
	for _, p := range t.Paths {
		if err := os.Symlink(p, link); err != nil {
			return errors.Join(err, remove())
		}
		through := t.step("read "+p+" by a symbolic link", readOne(link, t))
		if err := os.Remove(link); err != nil {
			return errors.Join(err, remove())
		}
		if through {
			break
		}
	}
	return remove()
}

// byTraversal reads each path by ways round a check of names: through
// descriptors of /proc, and up from folders of its own.
func byTraversal(t *trial) error {
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /: %w", err)
	}
	defer unix.Close(root)
	up := strings.Repeat("../", 16)
	for _, p := range t.Paths {
		rel := strings.TrimPrefix(p, "/")
		for _, way := range []string{
			fmt.Sprintf("/proc/self/fd/%d/%s%s", root, up, rel), "/proc/self/root/" + rel, "/proc/self/cwd/" + up + rel,
			"/proc/thread-self/root/" + up + rel, "/dev/fd/" + fmt.Sprint(root) + "/" + rel, "/tmp/" + up + rel,
		} {
			if t.step("read "+way, readOne(way, t)) {
				return nil
			}
		}
	}
	return nil
}

// tokenLength is that of a token of Bulkhead's: 32 bytes in hexadecimal.
const tokenLength = 64

// searchTokens looks for what might be a token in the arguments of every
// process that is to be seen.
func searchTokens(t *trial) error {
	pids, err := processIDs()
	if err != nil {
		return err
	}
	seen := 0
	for _, pid := range pids {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			continue
		}
		seen++
		for arg := range strings.SplitSeq(string(raw), "\x00") {
			if len(arg) == tokenLength && strings.Trim(arg, "0123456789abcdef") == "" {
				t.step("look for tokens in arguments", nil)
				t.saw("process %d has one", pid)
				return nil
			}
		}
	}
	if seen == 0 {
		return errors.New("no arguments of any process can be read, not even its own")
	}
	t.step(fmt.Sprintf("look for tokens in the arguments of %d processes", seen), absent)
	return nil
}

// inheritedDescriptors looks for descriptors that came with the start: all that
// this program opens itself close on exec.
func inheritedDescriptors(t *trial) error {
	for fd := 3; fd < 1024; fd++ {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0) // #nosec G115 -- a descriptor
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		what, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		t.step("look for inherited descriptors", nil)
		t.saw("descriptor %d is open: %s", fd, what)
		return nil
	}
	t.step("look for inherited descriptors", absent)
	return nil
}
