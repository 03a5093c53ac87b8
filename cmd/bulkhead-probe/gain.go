package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// privilegeKinds are attempts to become more than one is.
func privilegeKinds() map[string]kind {
	return map[string]kind{
		"gain.setgroups":  {do: setGroups},
		"gain.setgid":     {do: calls(called{"setresgid(0,0,0)", raw(unix.SYS_SETRESGID, 0, 0, 0), nil})},
		"gain.setfsuid":   {do: setFileUser},
		"gain.foreign_id": {do: becomeForeign},
		"gain.file_caps":  {do: grantByFile},
		"gain.securebits": {do: calls(called{"prctl(PR_SET_SECUREBITS)", raw(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, 1), nil})},
		"gain.ambient":    {do: calls(called{"prctl(PR_CAP_AMBIENT_RAISE, CAP_NET_RAW)", raw(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_NET_RAW), nil})},
		"gain.nice":       {do: calls(called{"setpriority(-20)", raw(unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 0, ^uintptr(19)), nil})},
		"gain.files":      {do: raiseLimit("RLIMIT_NOFILE", unix.RLIMIT_NOFILE), alone: true},
		"gain.core":       {do: raiseLimit("RLIMIT_CORE", unix.RLIMIT_CORE), alone: true},
		"gain.oom":        {do: spareMyself, alone: true},
		"gain.mknod":      {do: makeDevice},
	}
}

func setGroups(t *trial) error {
	zero := [1]uint32{0}
	_, _, n := unix.RawSyscall(unix.SYS_SETGROUPS, 1, pointerTo(&zero[0]), 0)
	if t.step("setgroups([0])", number(n)) {
		t.saw("is in group 0")
	}
	return nil
}

// setFileUser changes the id by which files are judged. The call never says
// whether it did; asking with an id that nobody has does.
func setFileUser(t *trial) error {
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, 0, 0, 0)
	now, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, ^uintptr(0), 0, 0)
	var err error = unix.EPERM
	if uint32(now) == 0 { // #nosec G115 -- an id
		err = nil
	}
	if t.step("setfsuid(0)", err) {
		t.saw("files are judged by id 0")
	}
	return nil
}

// becomeForeign takes an id that another agent has.
func becomeForeign(t *trial) error {
	for _, id := range t.IDs {
		n := uintptr(id)
		_, _, e := unix.RawSyscall(unix.SYS_SETRESUID, n, n, n)
		if t.step(fmt.Sprintf("setresuid to %d", id), number(e)) {
			t.saw("is id %d", id)
			return nil
		}
	}
	return nil
}

// grantByFile gives a file of its own the capability CAP_SYS_ADMIN, which
// whoever executes it would have (capabilities(7), file capabilities). The file
// is empty and goes again.
func grantByFile(t *trial) error {
	dir, remove, err := scratch()
	if err != nil {
		return err
	}
	p := filepath.Join(dir, "file")
	if err := os.WriteFile(p, nil, 0o600); err != nil {
		return errors.Join(err, remove())
	}
	// struct vfs_cap_data, revision 2 with the effective bit.
	data := make([]byte, 20)
	data[3], data[0], data[6] = 2, 1, 1<<(unix.CAP_SYS_ADMIN-16)
	if t.step("setxattr(security.capability)", unix.Setxattr(p, "security.capability", data, 0)) {
		t.saw("made a file that grants CAP_SYS_ADMIN")
	}
	return errors.Join(os.Remove(p), remove())
}

// raiseLimit asks for a higher hard limit, in a process of its own.
func raiseLimit(name string, which int) func(*trial) error {
	return func(t *trial) error {
		var now unix.Rlimit
		if err := unix.Prlimit(0, which, nil, &now); err != nil {
			return err
		}
		if now.Max == unix.RLIM_INFINITY {
			t.step(name+" is not limited", nil)
			return nil
		}
		more := unix.Rlimit{Cur: now.Cur, Max: now.Max + 1}
		if t.step(fmt.Sprintf("raise %s above %d", name, now.Max), unix.Prlimit(0, which, &more, nil)) {
			t.saw("%s is %d", name, more.Max)
		}
		return nil
	}
}

// spareMyself asks the kernel to end somebody else when memory is short.
func spareMyself(t *trial) error {
	err := os.WriteFile("/proc/self/oom_score_adj", []byte("-999"), 0)
	if t.step("write -999 to oom_score_adj", err) {
		t.saw("the kernel spares this process")
	}
	return nil
}

// makeDevice makes a node of a device, and removes it. Which device does not
// matter to who may; it is the one that holds nothing.
func makeDevice(t *trial) error {
	dir, remove, err := scratch()
	if err != nil {
		return err
	}
	p := filepath.Join(dir, "null")
	if t.step("mknod of a character device", unix.Mknod(p, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))) { // #nosec G115 -- a small constant
		t.saw("made a device node")
		err = os.Remove(p)
	}
	return errors.Join(err, remove())
}
