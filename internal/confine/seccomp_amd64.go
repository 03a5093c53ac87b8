package confine

import "golang.org/x/sys/unix"

const (
	auditArch = unix.AUDIT_ARCH_X86_64
	hasX32    = true
)

// archCalls exist on amd64 only: older forms of common calls.
var archCalls = []uint32{
	unix.SYS_ACCESS, unix.SYS_ALARM, unix.SYS_ARCH_PRCTL, unix.SYS_CHMOD, unix.SYS_CHOWN, unix.SYS_CREAT, unix.SYS_DUP2,
	unix.SYS_EPOLL_CREATE, unix.SYS_EPOLL_WAIT, unix.SYS_EVENTFD, unix.SYS_FORK, unix.SYS_FUTIMESAT, unix.SYS_GETDENTS,
	unix.SYS_GETPGRP, unix.SYS_INOTIFY_INIT, unix.SYS_LCHOWN, unix.SYS_LINK, unix.SYS_LSTAT, unix.SYS_MKDIR,
	unix.SYS_MKNOD, unix.SYS_OPEN, unix.SYS_PAUSE, unix.SYS_PIPE, unix.SYS_POLL, unix.SYS_READLINK, unix.SYS_RENAME,
	unix.SYS_RMDIR, unix.SYS_SELECT, unix.SYS_SIGNALFD, unix.SYS_STAT, unix.SYS_SYMLINK, unix.SYS_TIME, unix.SYS_UNLINK,
	unix.SYS_URETPROBE, unix.SYS_UTIME, unix.SYS_UTIMES, unix.SYS_VFORK,
}

var archRefused = []uint32{
	unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT,
}

// ociArch is the architecture's name in an OCI seccomp profile.
const ociArch = "SCMP_ARCH_X86_64"

// archNames are the calls of this architecture alone, see [commonNames].
var archNames = map[uint32]string{
	unix.SYS_ACCESS: "access", unix.SYS_ALARM: "alarm", unix.SYS_ARCH_PRCTL: "arch_prctl", unix.SYS_CHMOD: "chmod",
	unix.SYS_CHOWN: "chown", unix.SYS_CREAT: "creat", unix.SYS_DUP2: "dup2", unix.SYS_EPOLL_CREATE: "epoll_create",
	unix.SYS_EPOLL_WAIT: "epoll_wait", unix.SYS_EVENTFD: "eventfd", unix.SYS_FORK: "fork",
	unix.SYS_FUTIMESAT: "futimesat", unix.SYS_GETDENTS: "getdents", unix.SYS_GETPGRP: "getpgrp",
	unix.SYS_INOTIFY_INIT: "inotify_init", unix.SYS_IOPERM: "ioperm", unix.SYS_IOPL: "iopl", unix.SYS_LCHOWN: "lchown",
	unix.SYS_LINK: "link", unix.SYS_LSTAT: "lstat", unix.SYS_MKDIR: "mkdir", unix.SYS_MKNOD: "mknod",
	unix.SYS_MODIFY_LDT: "modify_ldt", unix.SYS_OPEN: "open", unix.SYS_PAUSE: "pause", unix.SYS_PIPE: "pipe",
	unix.SYS_POLL: "poll", unix.SYS_READLINK: "readlink", unix.SYS_RENAME: "rename", unix.SYS_RMDIR: "rmdir",
	unix.SYS_SELECT: "select", unix.SYS_SIGNALFD: "signalfd", unix.SYS_STAT: "stat", unix.SYS_SYMLINK: "symlink",
	unix.SYS_TIME: "time", unix.SYS_UNLINK: "unlink", unix.SYS_URETPROBE: "uretprobe", unix.SYS_UTIME: "utime",
	unix.SYS_UTIMES: "utimes", unix.SYS_VFORK: "vfork",
}
