// Package threads reads what the kernel holds for every thread of a process: its
// seccomp filters, as programs (ptrace(2), PTRACE_SECCOMP_GET_FILTER), and its
// credentials. Seccomp is a thread's own: a process whose main thread is
// filtered may have another one that is not.
//
// Reading stops a thread for a moment, which it cannot notice but by the time.
// It needs CAP_SYS_ADMIN in the initial user namespace and a kernel with
// CONFIG_CHECKPOINT_RESTORE.
package threads
