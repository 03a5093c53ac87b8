package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/evidence/attempt"
)

// processIDs lists every process that /proc shows.
func processIDs() ([]int, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// owner gives the real user id of a process as this namespace sees it.
func owner(pid int) (uint32, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for _, line := range strings.Split(string(raw), "\n") {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "Uid:" {
			id, err := strconv.ParseUint(f[1], 10, 32)
			return uint32(id), err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no Uid", pid)
}

// mine says whether pid is a process of the attacker's own: in a PID namespace
// of its own, a number of the host can mean one of its own processes.
func (t *trial) mine(pid int) bool {
	id, err := owner(pid)
	return err == nil && t.own(id)
}

func (t *trial) own(id uint32) bool {
	return slices.ContainsFunc(t.Own, func(s attempt.Span) bool { return s.Holds(id) })
}

// seeProcesses looks for any process of somebody else, and for the targets by
// their host numbers.
func seeProcesses(t *trial) error {
	pids, err := processIDs()
	if err != nil {
		return err
	}
	found := absent
	for _, pid := range pids {
		if pid == 1 || pid == os.Getpid() {
			continue // its own init, and itself; the host's init never comes alone
		}
		// One look: a process of our own that ends between two of them would
		// pass for somebody else's.
		if id, err := owner(pid); err == nil && !t.own(id) {
			t.saw("sees process %d of id %d", pid, id)
			found = ""
			break
		}
	}
	if found == "" {
		t.step("scan /proc for foreign processes", nil)
		return nil
	}
	t.step("scan /proc for foreign processes", absent)
	return t.eachTarget("stat /proc/", func(pid int) error {
		return unix.Access(fmt.Sprintf("/proc/%d", pid), unix.F_OK)
	})
}

// eachTarget tries try on each target. What succeeds on a process of the
// attacker's own did not find the target.
func (t *trial) eachTarget(what string, try func(pid int) error) error {
	if len(t.PIDs) == 0 {
		return errors.New("the request names no process")
	}
	for _, pid := range t.PIDs {
		err := t.confirm(pid, try)
		if t.step(what+strconv.Itoa(pid), err) {
			t.saw("reached process %d", pid)
			return nil
		}
	}
	return nil
}

// confirm tries until it is clear whose process was reached. One that went
// through, but cannot be looked at, may have been a short-lived process of the
// attacker's own which has just ended: then the number soon means nobody.
func (t *trial) confirm(pid int, try func(pid int) error) error {
	for range 5 {
		if err := try(pid); err != nil {
			return err
		}
		if t.mine(pid) {
			return absent
		}
		if _, err := owner(pid); err == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

// signalProcesses sends signal 0, which only asks whether it might.
func signalProcesses(t *trial) error {
	return t.eachTarget("kill 0 ", func(pid int) error { return unix.Kill(pid, 0) })
}

// ptraceProcesses seizes each target, which does not stop it; the trace ends
// with this process.
func ptraceProcesses(t *trial) error {
	return t.eachTarget("ptrace seize ", seize)
}

func seize(pid int) error {
	_, _, n := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0, 0, 0)
	return number(n)
}

// readMemory opens each target's memory, without reading it, and asks the
// kernel for a byte of it.
func readMemory(t *trial) error {
	if err := t.eachTarget("open memory of ", func(pid int) error { return openClose(fmt.Sprintf("/proc/%d/mem", pid)) }); err != nil {
		return err
	}
	return t.eachTarget("process_vm_readv of ", func(pid int) error {
		b := make([]byte, 1)
		local := []unix.Iovec{{Base: &b[0]}}
		local[0].SetLen(1)
		_, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: 0x400000, Len: 1}}, 0)
		if errors.Is(err, unix.EFAULT) {
			return nil // permitted; that address holds nothing
		}
		return err
	})
}

func openClose(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// readInit reads what PID 1 of the container knows: the shim holds the
// gateway's token.
func readInit(t *trial) error {
	for _, f := range []string{"environ", "mem", "maps"} {
		if t.step("open /proc/1/"+f, openClose("/proc/1/"+f)) {
			t.saw("opened /proc/1/%s", f)
			return nil
		}
	}
	return nil
}

// ptraceChild traces a process of its own, the surface that most local kernel
// exploits start from.
func ptraceChild(t *trial) error {
	c, end, err := spawn(nil, "")
	if err != nil {
		return fmt.Errorf("start a child: %w", err)
	}
	if t.step("ptrace seize of its own child", seize(c.Process.Pid)) {
		t.saw("traces its child")
	}
	return end()
}
