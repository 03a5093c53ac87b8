package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"bulkhead/internal/evidence/attempt"
)

// trial gathers the steps of one attempt.
type trial struct {
	attempt.Request
	steps   []attempt.Step
	witness string
}

// errUnsupported is wrapped when the kernel, or the agent, lacks what an attack would
// use, so that neither denial nor success can be had.
var errUnsupported = errors.New("not supported here")

// kind is one attempt: what it does, whether it may only be made in a contained
// place, and whether it takes a process of its own, because it changes more
// than the thread that makes it.
type kind struct {
	do      func(*trial) error
	harmful bool
	alone   bool
	// starves says that it takes processes until there are no more: that Go's own
	// runtime then gets no thread is the kernel's refusal as well.
	starves bool
}

// kinds lists every attempt by the name that requests use.
func kinds() map[string]kind {
	all := firstKinds()
	for _, more := range []map[string]kind{callKinds(), archKinds(), privilegeKinds(), exposedKinds(), foreignKinds(), familyKinds(), mountKinds(), rawProxyKinds(), keptKinds(), serverKinds(), topicKinds(), gatewayKinds(), toolKinds(), secretKinds(), exhaustKinds()} {
		maps.Copy(all, more)
	}
	return all
}

func firstKinds() map[string]kind {
	return map[string]kind{
		"file.read":         {do: readFiles},
		"file.root":         {do: writeRoot, harmful: true},
		"file.core_pattern": {do: openCorePattern},
		"file.handle":       {do: openByHandle},

		"socket.connect":    {do: connectSockets},
		"socket.vsock":      {do: vsock},
		"socket.vsock_high": {do: vsockHigh},

		"process.see":    {do: seeProcesses},
		"process.signal": {do: signalProcesses},
		"process.ptrace": {do: ptraceProcesses},
		"process.memory": {do: readMemory},
		"process.init":   {do: readInit},
		"process.child":  {do: ptraceChild},

		"net.tcp":       {do: connectTCP},
		"net.dns_udp":   {do: dnsUDP},
		"net.dns_tcp":   {do: dnsTCP},
		"proxy.connect": {do: proxyConnect},
		"dialer.dial":   {do: dialerDial},
		"dialer.aim":    {do: dialerAim},
		"dialer.mark":   {do: dialerMark},
		"dialer.listen": {do: dialerListen},
		"adapter.token": {do: adapterToken},

		"messages.forge":   {do: messagesForge},
		"messages.foreign": {do: messagesForeign},

		"mount.tmpfs":         {do: mountTmpfs, harmful: true},
		"mount.new_api":       {do: mountNewAPI, harmful: true},
		"mount.remount":       {do: remountRoot, harmful: true},
		"mount.release_agent": {do: mountCgroup, harmful: true},

		"namespace.unshare": {do: unshareUser},
		"namespace.clone":   {do: cloneUser},
		"namespace.others":  {do: unshareOthers},

		"rules.flush": {do: flushRules, harmful: true},

		"privilege.setuid":   {do: setuidRoot},
		"privilege.capset":   {do: raiseCapabilities},
		"kernel.keyctl":      {do: keyring},
		"kernel.io_uring":    {do: ioUring},
		"kernel.bpf":         {do: bpf},
		"kernel.userfaultfd": {do: userfault},
		"kernel.i386":        {do: i386},
		"terminal.inject":    {do: injectTerminal, alone: true},
	}
}

// perform makes the attempt that q asks for.
func perform(q attempt.Request) attempt.Answer {
	a := attempt.Answer{Version: attempt.Version, Nonce: q.Nonce, Attempt: q.Attempt}
	k, known := kinds()[q.Attempt]
	if !known {
		a.Outcome, a.Detail = attempt.Error, "this probe does not know the attempt"
		return a
	}
	if k.harmful {
		if err := contained(q.Spare); err != nil {
			a.Outcome, a.Detail = attempt.Error, err.Error()
			return a
		}
	}
	t := &trial{Request: q}
	err := k.do(t)
	a.Steps, a.Witness = t.steps, t.witness
	through := false
	for _, s := range t.steps {
		through = through || s.Refusal == ""
	}
	switch {
	case through: // whatever else went wrong, something went through
		a.Outcome = attempt.Succeeded
	case errors.Is(err, errUnsupported):
		a.Outcome = attempt.Unsupported
	case err != nil || len(t.steps) == 0:
		a.Outcome = attempt.Error
	default:
		a.Outcome, a.Errno = attempt.Denied, t.steps[0].Refusal
	}
	if err != nil {
		a.Detail = err.Error()
	} else if len(t.steps) == 0 {
		a.Detail = "nothing was tried: the request names no target"
	}
	return a
}

// step records what came of one thing tried: nil means that it went through.
func (t *trial) step(what string, err error) bool {
	t.steps = append(t.steps, attempt.Step{What: what, Refusal: refusal(err)})
	return err == nil
}

// saw keeps the first proof of a success.
func (t *trial) saw(format string, args ...any) {
	if t.witness == "" {
		t.witness = fmt.Sprintf(format, args...)
	}
}

// refused is a refusal that is not an errno: a deny.Code, "absent", "SIGSYS".
type refused string

func (r refused) Error() string { return string(r) }

// absent is the refusal of something that was searched for and is not there.
const absent = refused("absent")

// refusal names an error: an errno where there is one.
func refusal(err error) string {
	if err == nil {
		return ""
	}
	var r refused
	if errors.As(err, &r) {
		return string(r)
	}
	var n syscall.Errno
	if errors.As(err, &n) {
		if name := unix.ErrnoName(n); name != "" {
			return name
		}
		return fmt.Sprintf("errno %d", int(n))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return "ETIMEDOUT"
	}
	return "error: " + err.Error()
}

// number turns the errno of a raw system call into an error.
func number(n syscall.Errno) error {
	if n == 0 {
		return nil
	}
	return n
}
