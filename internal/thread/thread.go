// Package thread runs functions on threads of their own, for what the kernel
// keeps for each thread: namespaces, control groups of version 1, ids.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs f on a thread that ends with it, and returns when f has returned.
// The thread may end a moment later.
//
// It is never the process's main thread: that one never ends, would keep what f
// made of it, and is what /proc/self shows. When the scheduler offers it, it is
// held while another is asked for.
func Run(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			Run(f)
			return
		}
		f()
	}()
	<-done
}
