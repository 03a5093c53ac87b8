package engine

import "time"

// TimerSlack is how late the kernel may fire timers of a container with this
// role (prctl(2), PR_SET_TIMERSLACK); zero leaves the kernel's 50 microseconds.
//
// While a Go program works, a thread of its runtime (sysmon) looks about every
// 20 microseconds, 70 with the kernel's slack: more wake-ups than the program
// itself has, and a tenth of a gateway's processor time under load. What it is
// for, taking a processor back from a thread that the kernel holds, may wait: a
// dialer never blocks, an adapter has nothing else to do while it waits for the
// disk, and a gateway has another processor meanwhile, unless the host has one
// alone. Runtimes are strangers and stay as they are.
func TimerSlack(r Role) time.Duration {
	switch r {
	case RoleGateway, RoleDialer, RoleAdapter:
		return time.Millisecond
	}
	return 0
}
