// Command bulkhead-probe attempts what ought to be refused, and says what
// happened.
//
// It reads one batch of requests from standard input, answers each with one
// line of JSON on standard output (internal/evidence/attempt) and ends with exit
// code 0 whatever the outcomes; 2 means that it refused the batch itself. It lies in
// every runtime and gateway from the start, on a read-only mount that root
// owns, so that an attack is made by a program that the agent cannot replace.
//
// Before it reads anything it makes itself non-dumpable: a process of the same
// id could otherwise rewrite its memory through /proc/PID/mem and forge a
// denial, for which neither ptrace nor any capability is needed.
//
// It is safe to run anywhere. Each attempt is built so that its success changes
// nothing that outlives it (signal 0, a mount on an own scratch folder that is
// undone at once, a file that is removed), and those that could still harm a
// machine are refused outside a contained place: see containment.go.
package main

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/evidence/attempt"
)

// lifetime bounds a batch, also on a host that is busy or emulated: attempts
// that have no answer by then are lost, which is a failure.
const lifetime = 2 * time.Minute

// The main thread is what /proc/self shows, and it outlives every attempt: none
// is made on it.
func init() { runtime.LockOSThread() }

func main() {
	if len(os.Args) > 1 && os.Args[1] == childArg {
		child()
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		fatal(fmt.Errorf("bulkhead-probe: become non-dumpable: %w", err))
	}
	hang := time.AfterFunc(lifetime, func() { os.Exit(3) })
	defer hang.Stop()
	b, err := attempt.ReadBatch(os.Stdin)
	if err != nil {
		fatal(err)
	}
	alone := len(os.Args) == 2 && os.Args[1] == aloneArg
	if err := performAll(b, alone, os.Stdout); err != nil {
		fatal(err)
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(2)
}
