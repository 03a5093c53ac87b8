// Package reap lets a Go program be PID 1 of a PID namespace: it reaps the
// orphans that the kernel hands to it, and leaves alone the children that the
// program waits for itself.
package reap

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Orphans reaps what nobody else waits for. The zero value is ready.
type Orphans struct {
	mu   sync.Mutex
	ours map[int]bool
}

// Spawn runs start, which makes one child and gives its process id. Until it
// returns nothing is reaped, so a child that ends at once is not mistaken for
// an orphan. Its parent calls Gone once it has waited.
func (o *Orphans) Spawn(start func() (int, error)) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	pid, err := start()
	if err != nil {
		return err
	}
	if o.ours == nil {
		o.ours = map[int]bool{}
	}
	o.ours[pid] = true
	return nil
}

// Gone says that a child was waited for.
func (o *Orphans) Gone(pid int) {
	o.mu.Lock()
	delete(o.ours, pid)
	o.mu.Unlock()
	o.Sweep()
}

// Sweep reaps every orphan that has ended. The kernel names ended children one
// at a time: when it names one that somebody else waits for, the sweep goes on
// with that one's Gone.
func (o *Orphans) Sweep() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		pid, err := peek()
		if err != nil || pid == 0 || o.ours[pid] {
			return
		}
		if _, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// peek gives an ended child without reaping it; 0 when there is none.
func peek() (int, error) {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	if err != nil || info.Signo == 0 {
		return 0, err
	}
	// struct siginfo on 64-bit Linux: signo, errno, code, padding, pid
	// (asm-generic/siginfo.h); x/sys has no name for the union.
	const pidOffset = 16
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), pidOffset))), nil // #nosec G103 -- fixed layout
}

// Run sweeps on every SIGCHLD until ctx ends.
func (o *Orphans) Run(ctx context.Context) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, unix.SIGCHLD)
	defer signal.Stop(ch)
	for {
		o.Sweep()
		select {
		case <-ctx.Done():
			return
		case <-ch:
		}
	}
}
