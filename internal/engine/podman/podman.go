// Package podman is the engine that lets rootless Podman and an OCI runtime
// make a container, inside the account cell.
//
// The Spec is the same as for the cell engine, and so is nearly everything
// around the container; what differs is who calls clone and pivot_root. Step
// by step:
//
//  1. Root (the launcher) makes what needs root, with the code of the cell
//     engine: the network namespace with its loopback addresses, the file tree
//     as mounts with their flags set, the cgroup. A thread that is thrown away
//     joins them.
//  2. From that thread Podman starts as an id of the agent's range that owns
//     no files ([layout.EngineID]), in a user namespace that root made and that
//     belongs to [layout.OwnerID]. Podman is user 0 there; of other ids only
//     those of this container exist, and the account is not among them. There
//     is no setuid newuidmap and no pause process. It sees an empty /tmp and
//     /dev/shm of its own: there is no database, lock, pid file or config.json
//     that anybody could have prepared, and nothing of them is read later.
//  3. Podman, conmon and the OCI runtime make the container: namespaces of its
//     own below, with the ids of the Spec and Podman's own as its user 0,
//     without capabilities, with no_new_privs and our seccomp filter, on the
//     tree as its root (--rootfs). Its first process is bulkhead-shim stage2,
//     which adds Landlock and the last seccomp filter and waits.
//  4. The launcher, over a socket that came all the way down, learns which
//     process that is from the kernel (SCM_CREDENTIALS), and reads from /proc
//     and cgroup.procs what is in force ([readBack]). Podman and conmon are
//     killed. The launcher is the container's parent from then on, sets the
//     limits, and gives stage 2 its order: the shim with its descriptors.
//
// So from the first instruction of the shim on nothing differs from a cell,
// and no process of Podman's stands beside the container. There is no
// podman pod object: see docs/decisions/0020-podman-rootfs.md. Versions 4 and 5
// get the same command line: docs/decisions/0075-podman-5.md.
package podman

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/layout"
	"bulkhead/internal/reap"
)

// Options is what a Spec cannot carry.
type Options struct {
	cell.Options
	// Account is the host id of the agent's account, which no container may have.
	Account uint32
	// Conf is root's folder with what [Files] gives.
	Conf string
	// Program is bulkhead-shim, as the account cell shows it.
	Program string
	// Root is an empty folder of the caller's mount namespace, where the tree
	// of the container is placed. Skeleton is a folder that holds [Points].
	Root, Skeleton string
	// Groups is where the caller's mount namespace has the control groups, out
	// of the account's reach, and ShownGroups an empty folder that it can enter.
	Groups, ShownGroups string
	// Orphans reaps for the caller, which is PID 1 of its PID namespace.
	Orphans *reap.Orphans
}

// Points are the mount points that Podman and the OCI runtimes need in every
// root, whether or not something is mounted there in the end.
func Points() []cell.Point {
	return []cell.Point{
		{Path: "/proc"},
		{Path: "/dev"},
		{Path: "/sys"},
		{Path: "/etc/mtab", Link: "/proc/mounts"},
		{Path: "/etc/hostname", File: true},
		{Path: "/etc/hosts", File: true},
		{Path: "/etc/resolv.conf", File: true},
		{Path: "/run/.containerenv", File: true},
	}
}

// OCIRuntimes are those that can be named. krun is none: no descriptor at all
// can be passed into its virtual machine, so the shim's control socket would
// not arrive.
func OCIRuntimes() []string { return []string{"crun", "runc", runsc} }

// usual are those of which one is taken when none is named.
var usual = []string{"crun", "runc"}

// ociRuntime picks the OCI runtime for a Spec. crun goes first: it is faster,
// and knows how to leave cgroups alone (which refuses it on hosts that mix
// version 1 and 2 only when it sees them; here it does not).
func ociRuntime(named string, unified bool) (string, error) {
	if named == "" {
		named = "runc"
		if _, err := find("crun"); err == nil {
			named = "crun"
		}
	}
	if named == "runc" && unified {
		return "", errors.New("runc insists on making cgroups of its own where version 2 is mounted, which are root's here: install crun, or write ociRuntime: crun")
	}
	return named, nil
}

// searchPath is where Podman and its helpers are looked for, by us and by
// Podman: the host's own folders, which the account cell shows.
const searchPath = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"

// find finds a program in [searchPath].
func find(name string) (string, error) {
	for dir := range strings.SplitSeq(searchPath, ":") {
		if path := filepath.Join(dir, name); unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no program %s in %s", name, searchPath)
}

// programs are what has to be installed, with an OCI runtime.
var programs = []string{"podman", "conmon"}

// Installed says what this host lacks to start a Spec with this OCI runtime,
// which may be empty.
func Installed(runtime string) error {
	var errs []error
	for _, p := range programs {
		if _, err := find(p); err != nil {
			errs = append(errs, err)
		}
	}
	if runtime != "" {
		if !slices.Contains(OCIRuntimes(), runtime) {
			errs = append(errs, fmt.Errorf("OCI runtime %s cannot take the descriptors of the shim, because it has a kernel of its own", runtime))
		} else if _, err := find(runtime); err != nil {
			errs = append(errs, err)
		}
		if runtime != runsc { // the gateway of an agent under runsc takes a usual one
			return errors.Join(errs...)
		}
	}
	for _, r := range usual {
		if _, err := find(r); err == nil {
			return errors.Join(errs...)
		}
	}
	return errors.Join(append(errs, errors.New("neither crun nor runc is in PATH"))...)
}

// Check refuses a Spec that this engine cannot keep.
func Check(s *engine.Spec, opt *Options) error {
	if err := cell.Check(s); err != nil {
		return err
	}
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if s.Engine != engine.Podman {
		bad("engine %q is not podman", s.Engine)
	}
	if s.Role != engine.RoleRuntime && s.Role != engine.RoleGateway {
		bad("role %s: only a runtime and a gateway are started by podman", s.Role)
	}
	if len(s.Off) > 0 || s.Decoy {
		bad("decoys are made by the cell engine alone")
	}
	if len(s.Init) == 0 || opt.Shim == nil {
		bad("a container without an init is not started by podman")
	}
	if Relayed(s) && s.Role != engine.RoleRuntime {
		bad("only a runtime runs under runsc: descriptors of a gateway's dialer do not get in")
	}
	if s.OCIRuntime != "" && !slices.Contains(OCIRuntimes(), s.OCIRuntime) {
		bad("OCI runtime %q cannot keep every field: use one of %v", s.OCIRuntime, OCIRuntimes())
	}
	if !slices.ContainsFunc(s.User.Map, func(m engine.IDMap) bool { return m.Inside == layout.EngineID }) {
		bad("the user id map lacks %d, which an OCI runtime needs as its own user 0", layout.EngineID)
	}
	for _, m := range s.User.Map {
		if m.Host == opt.Account {
			bad("the user id map hands out %d, the account itself", m.Host)
		}
	}
	if opt.Account == 0 || opt.Cgroups == nil || opt.Orphans == nil || opt.Conf == "" || opt.Root == "" {
		bad("an option is missing")
	}
	if len(errs) > 0 {
		return fmt.Errorf("podman: container %s/%s/%s: %w", s.Team, s.Agent, s.Name, errors.Join(errs...))
	}
	return nil
}
