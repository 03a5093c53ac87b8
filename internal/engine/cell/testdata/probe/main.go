// Command probe tries what a confined process must not be able to do, with
// raw system calls, and prints the kernel's answer to each.
package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"unsafe"

	"golang.org/x/sys/unix"
)

func try(name string, nr uintptr, args ...uintptr) {
	var a [6]uintptr
	copy(a[:], args)
	_, _, e := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	if e == 0 {
		fmt.Println(name, "SUCCEEDED")
		return
	}
	fmt.Println(name, unix.ErrnoName(e))
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "x32" {
		_, _, e := unix.RawSyscall(0x40000000|39, 0, 0, 0)
		fmt.Println("x32 lived", e)
		return
	}
	path := []byte("/tmp\x00")
	p := uintptr(unsafe.Pointer(&path[0]))
	try("vsock", unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	try("vsock-high-bit", unix.SYS_SOCKET, 0x100000028, unix.SOCK_STREAM, 0)
	try("packet", unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW, 0)
	try("netlink-audit", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, 9)
	try("mptcp", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP)
	try("packet-by-inet", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_PACKET|unix.SOCK_CLOEXEC, 0)
	try("dccp-by-type", unix.SYS_SOCKET, unix.AF_INET6, unix.SOCK_DCCP, 0)
	try("ping", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP)
	try("ping6", unix.SYS_SOCKET, unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6)
	try("unshare", unix.SYS_UNSHARE, unix.CLONE_NEWUSER)
	try("clone-newuser", unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD))
	try("clone3", unix.SYS_CLONE3, 0, 0)
	try("setns", unix.SYS_SETNS, 0, 0)
	try("mount", unix.SYS_MOUNT, p, p, p, 0, 0)
	try("umount", unix.SYS_UMOUNT2, p, unix.MNT_DETACH)
	try("open_tree", unix.SYS_OPEN_TREE, ^uintptr(99), p, unix.OPEN_TREE_CLONE)
	try("fsopen", unix.SYS_FSOPEN, p, 0)
	try("ptrace", unix.SYS_PTRACE, unix.PTRACE_TRACEME)
	try("process_vm_readv", unix.SYS_PROCESS_VM_READV, 1)
	try("pidfd_getfd", unix.SYS_PIDFD_GETFD, 0, 0, 0)
	try("keyctl", unix.SYS_KEYCTL, 0, 0)
	try("add_key", unix.SYS_ADD_KEY, p, p)
	try("bpf", unix.SYS_BPF, 0, 0, 0)
	try("perf", unix.SYS_PERF_EVENT_OPEN, 0, 0, 0)
	try("io_uring", unix.SYS_IO_URING_SETUP, 1, 0)
	try("userfaultfd", unix.SYS_USERFAULTFD, 0)
	try("open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, 0, 0, 0)
	try("personality", unix.SYS_PERSONALITY, 0x0040000)
	try("tiocsti", unix.SYS_IOCTL, 0, 0x5412, p)
	try("tiocsti-high-bit", unix.SYS_IOCTL, 0, 0x100005412, p)
	try("sethostname", unix.SYS_SETHOSTNAME, p, 1)
	try("setuid-0", unix.SYS_SETUID, 0)
	_, err := net.Dial("tcp", "127.0.0.1:1")
	fmt.Println("connect:", err)
	_, err = net.Listen("tcp", "127.0.0.1:0")
	fmt.Println("listen:", err)
	c, err := net.Dial("unix", "@bulkhead-test-outside")
	fmt.Println("abstract:", err)
	if err == nil {
		_ = c.Close()
	}
	if err := unix.Kill(os.Getppid(), 0); os.Getppid() != 0 {
		fmt.Println("signal:", err)
	}
	err = exec.Command("/proc/self/exe", "x32").Run()
	fmt.Println("x32:", err)
}
