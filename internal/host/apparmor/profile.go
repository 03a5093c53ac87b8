package apparmor

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"strings"

	"bulkhead/internal/engine"
)

// Name is the name of the profile of a container: no other container has it.
func Name(s *engine.Spec) string { return prefix(s.Team, s.Agent) + string(s.Role) }

// prefix begins the names of an agent's profiles, and of no other's: names of
// teams and agents hold no dot.
func prefix(team, agent string) string { return "bulkhead." + team + "." + agent + "." }

// Profile is the policy of a container, made of its Spec. AppArmor allows only
// what is named (apparmor.d(5)), so most of the protection is what is absent:
// capabilities, mounts, user namespaces, io_uring, changing the profile, raw
// and packet sockets, other processes' signals and memory.
//
// abi names the version of the policy's language, as [ABI] finds it; empty
// leaves the parser's own.
func Profile(s *engine.Spec, abi string) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	if abi != "" {
		line("abi <%s>,", abi)
	}
	name := Name(s)
	// attach_disconnected: descriptors that are passed in belong to trees that
	// the container does not see.
	line("profile %s flags=(attach_disconnected) {", name)
	for _, family := range []string{"unix", "inet", "inet6"} {
		line("  network %s stream,", family)
		line("  network %s dgram,", family)
	}
	line("  network unix seqpacket,")
	line("  network netlink raw,") // of NETLINK_ROUTE alone: seccomp looks at the protocol
	if newer(abi) {
		line("  unix,") // abstract names end at the network namespace
		line("  mqueue,")
	}
	line("  signal (send, receive) peer=%s,", name)
	line("  signal (receive) peer=unconfined,")
	// The host reads what confines a process back (PTRACE_SECCOMP_GET_FILTER).
	line("  ptrace (readby, tracedby) peer=unconfined,")
	line("  ptrace (read, readby) peer=%s,", name)

	line("  / r,")
	line("  /** mrix,") // noexec mounts and Landlock say where programs may lie
	for _, f := range []string{"null", "zero", "full", "random", "urandom", "tty", "ptmx"} {
		line("  /dev/%s rw,", f)
	}
	line("  /dev/pts/** rw,")
	line("  /dev/shm/ rw,")
	line("  /dev/shm/** rwkl,")
	line("  /proc/[0-9]*/{comm,oom_score_adj,timerslack_ns,clear_refs,coredump_filter} w,")
	line("  /proc/[0-9]*/task/[0-9]*/comm w,")
	for _, m := range s.Mounts {
		if !m.Writable {
			continue
		}
		line("  %s rw,", quote(m.Target))
		line("  %s rw,", quote(m.Target+"/"))
		line("  %s rwkl,", quote(m.Target+"/**"))
		if !m.Exec {
			line("  deny %s mx,", quote(m.Target+"/**"))
		}
	}
	line("}")
	return b.String()
}

// digest tells one text from another.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// newer says whether the language has rules for UNIX sockets and message queues.
func newer(abi string) bool { return path.Base(abi) >= "4.0" }

// special are the characters that mean something in a quoted path.
const special = `*?[]{}^"\,@$#`

// quote writes a path so that nothing in it is a pattern or ends the rule. The
// two that end a path here are ours.
func quote(p string) string {
	suffix := ""
	for _, s := range []string{"/**", "/"} {
		if rest, ok := strings.CutSuffix(p, s); ok {
			p, suffix = rest, s
			break
		}
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range []byte(p) {
		switch {
		case strings.IndexByte(special, c) >= 0:
			b.WriteByte('\\')
			b.WriteByte(c)
		case c <= ' ' || c >= 0x7f:
			fmt.Fprintf(&b, "\\%03o", c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String() + suffix + `"`
}
