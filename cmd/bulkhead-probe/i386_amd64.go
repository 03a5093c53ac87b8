package main

// getpidI386 is getpid in the i386 table (arch/x86/entry/syscalls/syscall_32.tbl).
const getpidI386 = 20

// callI386 makes a system call without arguments by int 0x80, the entry that a
// filter for x86-64 numbers alone would not see.
func callI386(nr uintptr) int
