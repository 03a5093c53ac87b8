package main

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setuidRoot becomes 0, in this thread alone.
func setuidRoot(t *trial) error {
	_, _, n := unix.RawSyscall(unix.SYS_SETRESUID, 0, 0, 0)
	if t.step("setresuid(0,0,0)", number(n)) {
		t.saw("is id 0")
	}
	return nil
}

// raiseCapabilities asks for CAP_SYS_ADMIN and CAP_NET_ADMIN.
func raiseCapabilities(t *trial) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	const want = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_ADMIN
	data[0].Effective, data[0].Permitted = want, want
	if t.step("capset(SYS_ADMIN, NET_ADMIN)", unix.Capset(&head, &data[0])) {
		t.saw("has CAP_SYS_ADMIN")
	}
	return nil
}

// keyring asks for the session keyring, which is not namespaced by container.
func keyring(t *trial) error {
	_, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
	if errors.Is(err, unix.ENOKEY) {
		err = nil // answered: there is none yet
	}
	if t.step("keyctl(GET_KEYRING_ID)", err) {
		t.saw("reaches its session keyring")
	}
	return nil
}

// ioUring sets up a ring, by which work is done that no seccomp filter sees.
func ioUring(t *trial) error {
	var params [120]byte                                                                         // struct io_uring_params, include/uapi/linux/io_uring.h
	fd, _, n := unix.RawSyscall(unix.SYS_IO_URING_SETUP, 2, uintptr(unsafe.Pointer(&params)), 0) // #nosec G103 -- a system call's argument
	if t.step("io_uring_setup", number(n)) {
		t.saw("has a ring")
		return unix.Close(int(fd)) // #nosec G115 -- a descriptor
	}
	return nil
}

// bpf makes a small array map.
func bpf(t *trial) error {
	attr := struct{ kind, keySize, valueSize, entries uint32 }{2, 4, 4, 1}                            // BPF_MAP_TYPE_ARRAY
	fd, _, n := unix.RawSyscall(unix.SYS_BPF, 0, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr)) // #nosec G103 -- a system call's argument
	if t.step("bpf(MAP_CREATE)", number(n)) {
		t.saw("has a BPF map")
		return unix.Close(int(fd)) // #nosec G115 -- a descriptor
	}
	return nil
}

// userfault makes a userfaultfd, which lets a program stop the kernel in the
// middle of a copy and so win races.
func userfault(t *trial) error {
	const userModeOnly = 1 // UFFD_USER_MODE_ONLY
	fd, _, n := unix.RawSyscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|userModeOnly, 0, 0)
	if t.step("userfaultfd", number(n)) {
		t.saw("has a userfaultfd")
		return unix.Close(int(fd)) // #nosec G115 -- a descriptor
	}
	return nil
}

// i386 calls the kernel by the entry for 32-bit programs, in a child: a filter
// that knows this entry kills the caller.
func i386(t *trial) error { return inChild(t, "int 0x80", "i386", getpidI386) }
