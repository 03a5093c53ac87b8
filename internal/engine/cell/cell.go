// Package cell is the engine that starts a container by itself, in
// milliseconds, without Podman.
//
// [Start] turns one engine.Spec into one confined process. Root (the caller)
// does what needs root: it makes the network namespace, which therefore
// belongs to the initial user namespace and not to the agent; it opens every
// mount source beneath root-owned parents without following links and turns
// it into a detached mount with its flags set; it makes the cgroup and reads
// its limits back. A small second stage, "bulkhead-shim stage2", then runs in
// the new user, mount, PID, IPC, UTS and cgroup namespaces: it puts the mounts
// in place, pivots, drops every capability, and applies the profile of
// internal/confine before it becomes the container's first process.
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
	// Program is the path of bulkhead-shim; root-owned, executable by all.
	Program string
	// Cgroups is where Spec.Cgroup is made. Nil: the process stays in the
	// caller's cgroup (tests only).
	Cgroups *cgroup.Tree
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

// Report is what stage 2 read back just before it ran the command.
type Report = confine.Result
