package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// called is one system call. Where the call itself would do harm it is made
// with an argument that the kernel refuses only after it has asked whether the
// caller may: that errno means that the caller may.
type called struct {
	what string
	do   func() error
	past []syscall.Errno
}

// calls makes each call until one goes through.
func calls(list ...called) func(*trial) error {
	return func(t *trial) error {
		for _, c := range list {
			err := c.do()
			if n, ok := errnoOf(err); ok && slices.Contains(c.past, n) {
				t.saw("%s: the kernel asked for no permission, and minded the argument alone (%s)", c.what, unix.ErrnoName(n))
				err = nil
			}
			if t.step(c.what, err) {
				t.saw("%s: done", c.what)
				return nil
			}
		}
		return nil
	}
}

// raw makes a system call whose arguments are numbers.
func raw(nr uintptr, args ...uintptr) func() error {
	var a [6]uintptr
	copy(a[:], args)
	return func() error {
		_, _, n := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		return number(n)
	}
}

// named makes a system call whose first argument is a string.
func named(nr uintptr, name string, args ...uintptr) func() error {
	return func() error {
		p, err := unix.BytePtrFromString(name)
		if err != nil {
			return err
		}
		var a [5]uintptr
		copy(a[:], args)
		_, _, n := unix.Syscall6(nr, uintptr(unsafe.Pointer(p)), a[0], a[1], a[2], a[3], a[4]) // #nosec G103 -- a system call's argument
		return number(n)
	}
}

// opening makes a call that gives a descriptor, and closes it.
func opening(nr uintptr, args ...uintptr) func() error {
	var a [6]uintptr
	copy(a[:], args)
	return func() error {
		fd, _, n := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		if n != 0 {
			return n
		}
		return unix.Close(int(fd)) // #nosec G115 -- a descriptor
	}
}

const (
	noFile    = "/.bulkhead-probe-none" // nobody has it
	noFD      = ^uintptr(0)
	emptyPath = unix.AT_EMPTY_PATH
)

// callKinds are attempts that are a system call or two.
func callKinds() map[string]kind {
	return map[string]kind{
		"call.module": {do: calls(
			called{"init_module", func() error { return initModule() }, []syscall.Errno{unix.ENOEXEC, unix.EFAULT}},
			called{"finit_module", named3(unix.SYS_FINIT_MODULE), []syscall.Errno{unix.EBADF, unix.EINVAL}},
			called{"delete_module", named(unix.SYS_DELETE_MODULE, "bulkhead_probe_none", unix.O_NONBLOCK), []syscall.Errno{unix.ENOENT}},
		)},
		"call.kexec": {do: calls(
			called{"kexec_load of 17 segments, one too many", raw(unix.SYS_KEXEC_LOAD, 0, 17, 0, 0), []syscall.Errno{unix.EINVAL}},
			called{"kexec_file_load", raw(unix.SYS_KEXEC_FILE_LOAD, noFD, noFD, 0, 0, 0), []syscall.Errno{unix.EBADF, unix.EINVAL}},
		)},
		"call.reboot": {do: calls(called{"reboot without its magic numbers", raw(unix.SYS_REBOOT, 0, 0, 0, 0), []syscall.Errno{unix.EINVAL}})},
		"call.swap": {do: calls(
			called{"swapon of a file that is not there", named(unix.SYS_SWAPON, noFile), []syscall.Errno{unix.ENOENT}},
			called{"swapoff of a file that is not there", named(unix.SYS_SWAPOFF, noFile), []syscall.Errno{unix.ENOENT, unix.EINVAL}},
		)},
		"call.acct":     {do: calls(called{"acct to a file that is not there", named(unix.SYS_ACCT, noFile), []syscall.Errno{unix.ENOENT}})},
		"call.syslog":   {do: calls(called{"syslog(SYSLOG_ACTION_SIZE_UNREAD)", raw(unix.SYS_SYSLOG, 9, 0, 0), nil})},
		"call.clock":    {do: calls(called{"settimeofday of neither time nor zone", raw(unix.SYS_SETTIMEOFDAY, 0, 0), nil}, called{"clock_adjtime of a tick of 1", adjustClock, []syscall.Errno{unix.EINVAL}})},
		"call.hostname": {do: calls(called{"sethostname to the name that it has", sameHostname, nil})},
		"call.quota":    {do: calls(called{"quotactl(Q_SYNC)", raw(unix.SYS_QUOTACTL, 0x800001<<8, 0, 0, 0), nil})},
		"call.memory_policy": {do: calls(
			called{"set_mempolicy(MPOL_DEFAULT)", raw(unix.SYS_SET_MEMPOLICY, 0, 0, 0), nil},
			called{"move_pages of none", raw(unix.SYS_MOVE_PAGES, 0, 0, 0, 0, 0, 0), nil},
		)},
		"call.process_madvise":  {do: ofMyself("process_madvise of itself", adviseProcess)},
		"call.process_mrelease": {do: ofMyself("process_mrelease of itself", releaseProcess)},
		"call.pidfd_getfd":      {do: ofMyself("pidfd_getfd of its own standard input", getDescriptor)},
		"call.process_vm":       {do: calls(called{"process_vm_readv of itself", readMyself, nil}, called{"process_vm_writev to itself", writeMyself, nil})},
		"call.kcmp":             {do: calls(called{"kcmp of itself with itself", compareMyself, nil})},
		"call.perf":             {do: calls(called{"perf_event_open of a software clock", openPerf, nil})},
		"call.fanotify":         {do: calls(called{"fanotify_init", opening(unix.SYS_FANOTIFY_INIT, 0x200, 0), nil})}, // FAN_REPORT_FID: open to everybody since Linux 5.13
		"call.memfd_secret":     {do: calls(called{"memfd_secret", opening(unix.SYS_MEMFD_SECRET, 0), nil})},
		"call.setns":            {do: calls(called{"setns into its own UTS namespace", enterOwnUTS, nil})},
		"call.chroot":           {do: calls(called{"chroot to /", named(unix.SYS_CHROOT, "/"), nil})},
		"call.add_key":          {do: calls(called{"add_key to its thread's keyring", addKey, nil})},
		"call.request_key":      {do: calls(called{"request_key", requestKey, []syscall.Errno{unix.ENOKEY, unix.ENOENT}})},
		"call.clone3":           {do: calls(called{"clone3 with arguments of no size", raw(unix.SYS_CLONE3, 0, 0), []syscall.Errno{unix.EINVAL, unix.EFAULT}})},
		"call.personality":      {do: calls(called{"personality(ADDR_NO_RANDOMIZE)", raw(unix.SYS_PERSONALITY, 0x0040000), nil})},
		"call.tioclinux":        {do: calls(called{"ioctl(TIOCLINUX)", raw(unix.SYS_IOCTL, 0, 0x541c, uintptr(unsafe.Pointer(&shiftState))), []syscall.Errno{unix.ENOTTY, unix.EINVAL}})}, // #nosec G103 -- a system call's argument
		"call.descriptors": {do: calls(
			called{"move_mount without a mount", raw(unix.SYS_MOVE_MOUNT, noFD, uintptr(unsafe.Pointer(&nothingNamed)), noFD, uintptr(unsafe.Pointer(&nothingNamed)), unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH), []syscall.Errno{unix.EBADF}}, // #nosec G103 -- a system call's argument
			called{"mount_setattr without a mount", setNoMount, []syscall.Errno{unix.EBADF}},
			called{"fspick without a mount", raw(unix.SYS_FSPICK, noFD, uintptr(unsafe.Pointer(&nothingNamed)), 8), []syscall.Errno{unix.EBADF}}, // #nosec G103 -- FSPICK_EMPTY_PATH
		)},
		"call.pivot_root": {do: calls(called{"pivot_root to a folder that is not there", pivotNowhere, []syscall.Errno{unix.ENOENT}})},
		"call.umount":     {do: calls(called{"umount2 of /, by a flag that / cannot have", named(unix.SYS_UMOUNT2, "/", unix.MNT_EXPIRE), []syscall.Errno{unix.EINVAL}})},
	}
}

// shiftState is the subcode of TIOCLINUX that only reads (ioctl_console(2)).
var shiftState = [2]byte{6, 0}

// nothingNamed is an empty path.
var nothingNamed byte

func named3(nr uintptr) func() error {
	return func() error {
		var none byte
		_, _, n := unix.Syscall(nr, noFD, uintptr(unsafe.Pointer(&none)), 0) // #nosec G103 -- a system call's argument
		return number(n)
	}
}

func initModule() error {
	var none byte
	_, _, n := unix.Syscall(unix.SYS_INIT_MODULE, uintptr(unsafe.Pointer(&none)), 0, uintptr(unsafe.Pointer(&none))) // #nosec G103 -- a system call's argument
	return number(n)
}

func adjustClock() error {
	t := &unix.Timex{Modes: unix.ADJ_TICK, Tick: 1}
	_, err := unix.ClockAdjtime(unix.CLOCK_REALTIME, t)
	return err
}

func sameHostname() error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	return unix.Sethostname([]byte(name))
}

// ofMyself does something to the probe's own process by a pidfd.
func ofMyself(what string, do func(pidfd int) error) func(*trial) error {
	return func(t *trial) error {
		fd, err := unix.PidfdOpen(os.Getpid(), 0)
		if err != nil {
			return fmt.Errorf("pidfd_open: %w", err)
		}
		defer unix.Close(fd)
		err = do(fd)
		if t.step(what, err) {
			t.saw("%s: done", what)
		}
		return nil
	}
}

func adviseProcess(fd int) error {
	page := make([]byte, os.Getpagesize())
	iov := []unix.Iovec{{Base: &page[0]}}
	iov[0].SetLen(len(page))
	const cold = 20                                                                                                                // MADV_COLD
	_, _, n := unix.Syscall6(unix.SYS_PROCESS_MADVISE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(iov))), 1, cold, 0, 0) // #nosec G103 G115 -- a system call's argument
	return number(n)
}

func releaseProcess(fd int) error {
	err := raw(unix.SYS_PROCESS_MRELEASE, uintptr(fd), 0)() // #nosec G115 -- a descriptor
	if errors.Is(err, unix.EINVAL) {
		return nil // permitted; this process is not dying
	}
	return err
}

func getDescriptor(fd int) error {
	got, err := unix.PidfdGetfd(fd, 0, 0)
	if err != nil {
		return err
	}
	return unix.Close(got)
}

func readMyself() error {
	from, to := []byte{1}, []byte{0}
	local := []unix.Iovec{{Base: &to[0], Len: 1}}
	_, err := unix.ProcessVMReadv(os.Getpid(), local, []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&from[0])), Len: 1}}, 0) // #nosec G103 -- a system call's argument
	return err
}

func writeMyself() error {
	from, to := []byte{1}, []byte{0}
	local := []unix.Iovec{{Base: &from[0], Len: 1}}
	_, err := unix.ProcessVMWritev(os.Getpid(), local, []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&to[0])), Len: 1}}, 0) // #nosec G103 -- a system call's argument
	return err
}

func compareMyself() error {
	me := uintptr(os.Getpid()) // #nosec G115 -- a process number
	return raw(unix.SYS_KCMP, me, me, 0, 0, 0)()
}

func openPerf() error {
	const software, onlyUser = 1, unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv | unix.PerfBitDisabled
	attr := &unix.PerfEventAttr{Type: software, Bits: onlyUser}
	attr.Size = uint32(unsafe.Sizeof(*attr))
	fd, err := unix.PerfEventOpen(attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func enterOwnUTS() error {
	fd, err := unix.Open("/proc/thread-self/ns/uts", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Setns(fd, unix.CLONE_NEWUTS)
}

func addKey() error {
	_, err := unix.AddKey("user", "bulkhead-probe", []byte("x"), unix.KEY_SPEC_THREAD_KEYRING)
	return err
}

func requestKey() error {
	_, err := unix.RequestKey("user", "bulkhead-probe-none", "", 0)
	return err
}

func setNoMount() error {
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	return unix.MountSetattr(-1, "", emptyPath, attr)
}

func pivotNowhere() error { return unix.PivotRoot(noFile, noFile) }

// childPatience is how long a call may take that has nothing to do.
const childPatience = 10 * time.Second

// inChild makes a call in a child that a filter may kill, and reads how it
// ended: see child.go.
func inChild(t *trial, what, mode string, numbered uintptr) error {
	if numbered == 0 {
		return errUnsupported
	}
	c, end, err := spawn(nil, mode)
	if err != nil {
		return err
	}
	// gVisor's systrap on a kernel with IA32 emulation neither answers int 0x80 nor
	// ends who made it.
	hung := time.AfterFunc(childPatience, func() { _ = c.Process.Kill() })
	_ = end() // its end is read from the state below
	if !hung.Stop() {
		return fmt.Errorf("%w: %s neither answered nor ended within %s", errUnsupported, what, childPatience)
	}
	ws, ok := c.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case !ok:
		return errors.New("no wait status")
	case ws.Signaled() && ws.Signal() == syscall.SIGSYS:
		t.step(what, refused("SIGSYS"))
	case ws.Signaled():
		return fmt.Errorf("%w: %s ended by %s", errUnsupported, what, ws.Signal())
	case ws.ExitStatus() == childAnswered:
		t.step(what, nil)
		t.saw("%s answers", what)
	case ws.ExitStatus() == childRefused:
		t.step(what, unix.ENOSYS)
	default:
		// A fault, which Go's runtime turns into an exit.
		return fmt.Errorf("%w: %s is a fault (exit status %d)", errUnsupported, what, ws.ExitStatus())
	}
	return nil
}
