package main

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/evidence/attempt"
)

func TestANumberThatMeantAProcessOfItsOwnIsNoTarget(t *testing.T) {
	me := uint32(os.Getuid())
	own := &trial{Request: attempt.Request{Own: []attempt.Span{{First: me, Last: me}}}}
	yes := func(int) error { return nil }
	if err := own.confirm(os.Getpid(), yes); !errors.Is(err, absent) {
		t.Errorf("its own process: %v, want absent", err)
	}
	stranger := &trial{}
	if err := stranger.confirm(os.Getpid(), yes); err != nil {
		t.Errorf("a foreign process that is there: %v, want a success", err)
	}
	// Account cells number their processes from 1, as the host does: the first
	// answer came from a probe of the same account that ended right then.
	const nobody = 1 << 22 // above every pid_max
	tries := 0
	if err := own.confirm(nobody, func(int) error {
		if tries++; tries > 1 {
			return unix.ESRCH
		}
		return nil
	}); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a process that ended: %v, want ESRCH", err)
	}
	if err := own.confirm(nobody, yes); err != nil {
		t.Errorf("one that stays reachable, but hidden: %v, want a success", err)
	}
}
