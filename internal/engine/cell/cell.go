// Package cell is the engine that starts a container by itself, in
// milliseconds, without Podman.
//
// [Start] turns one engine.Spec into one confined process. Root (the caller)
// does what needs root: it makes the network namespace, which therefore
// belongs to the initial user namespace and not to the agent; it opens every
// mount source beneath root-owned parents without following links and turns
// it into a detached mount with its flags set; it makes the cgroup and reads
// its limits back. It puts the mounts in place in a mount namespace of a thread's
// own, and forks from there. The child, in the new user, mount, PID, IPC, UTS
// and cgroup namespaces, mounts its procfs, drops every capability, applies
// the profile of internal/confine and reads it back before it executes the
// container's first process: a list of system calls that was written down
// before (internal/forked), not a program.
//
// # Prepared containers
//
// [Prepare] makes everything but the command ahead: a seat up to the fork, or
// a process up to the exec. What is prepared holds nothing of any run and
// shares nothing writable with another: cgroup, network and mount namespaces,
// tmpfs mounts and procfs are each container's own. A prepared process is a
// copy of its starter that waits: it has closed every descriptor but its own
// and runs nothing of the container's until exec replaces it.
//
// What is not kept here: who may start what (the warden), and what runs
// inside (the shim).
package cell

import (
	"net"
	"os"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/confine"
	"bulkhead/internal/engine"
)

// Options is what a Spec cannot carry: open files and places of this host.
type Options struct {
	// Cgroups is where Spec.Cgroup is made. Nil: the process stays in the
	// caller's cgroup (tests only).
	Cgroups *cgroup.Tree
	// Bare is what the container's mount namespace is a copy of. Nil: one is
	// made for this start, from the caller's.
	Bare *Bare
	// Stdin, Stdout, Stderr are the container's; nil is /dev/null.
	Stdin, Stdout, Stderr *os.File
	// Shim is the configuration of Spec.Init, passed as a sealed memfd on
	// descriptor 3. Required with Init, refused without.
	Shim *engine.ShimConfig
	// Control is the shim's control listener, descriptor 4. The caller keeps
	// and closes its own copy.
	Control *net.UnixListener
	// Files follow: from descriptor 5 on with Init (the shim passes them to the
	// command from 3 on), from 3 on without.
	Files []*os.File
}

// Report is what was read back just before the command ran.
type Report = confine.Result
