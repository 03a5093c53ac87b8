package podman

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
)

// runsc is gVisor's OCI runtime. It puts a kernel of its own (the sentry)
// between the container and the host's: what the container's processes call is
// answered by the sentry, and only the sentry's own few calls, and its file
// server's (the gofer), reach the host. What differs for us:
//
//   - No descriptor of the guest can be passed out, and of sockets only unix
//     ones in. So the shim is told to expect what is passed in, and to relay
//     (engine.ShimConfig.Relayed); see relay.go.
//   - The host sees the sandbox and the gofer in place of the container's
//     processes. They are what is read back: see sandbox.go.
//   - Landlock does not exist inside. The role's seccomp filter does, and is
//     kept by the sentry.
const runsc = "runsc"

// runscWord is what makes bulkhead-shim stand in for runsc, as an option that
// Podman hands to every call of its OCI runtime.
const runscWord = "oci-runsc"

// RunscWord is the first argument of a bulkhead-shim that Podman starts as its
// OCI runtime.
const RunscWord = "--" + runscWord

// runscOptions are the sandbox's.
func runscOptions() []string {
	return []string{
		"--root=" + scratchDir + "/runsc",
		"--platform=systrap",
		// The groups are root's, and the sandbox is in the right one already.
		"--ignore-cgroups",
		// The network namespace that root made for this container, as Podman's
		// own --network=host: its loopback addresses are the Spec's.
		"--network=host",
		// gateway.sock, and whatever else of sockets the Spec mounts.
		"--host-uds=open",
		// What is written goes where the mount leads, not into the sandbox's memory.
		"--overlay2=none",
	}
}

// RunscMain runs runsc the way Podman wants an OCI runtime, with the arguments
// that Podman gave. It returns only when that failed, with the exit code.
func RunscMain(args []string) int {
	fmt.Fprintln(os.Stderr, "bulkhead-shim:", standIn(args))
	return 1
}

func standIn(args []string) error {
	path, err := find(runsc)
	if err != nil {
		return err
	}
	argv, create := runscArguments(args)
	if create {
		// runsc passes no other descriptors than these into a container that it
		// creates: the plan and the status socket take their places.
		for i := range preserved {
			if err := unix.Dup3(3+i, i, 0); err != nil {
				return fmt.Errorf("descriptor %d for runsc: %w", 3+i, err)
			}
			unix.CloseOnExec(3 + i)
		}
	}
	err = syscall.Exec(path, argv, os.Environ()) // #nosec G204 -- root's program, from the host's own folders
	return fmt.Errorf("run %s: %w", path, err)
}

// runscArguments makes runsc's command line from that of an OCI runtime, and
// says whether it creates a container.
func runscArguments(args []string) (argv []string, create bool) {
	argv = append([]string{runsc}, runscOptions()...)
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "--preserve-fds": // with its number
			i++
		case strings.HasPrefix(a, "--preserve-fds="), a == "--systemd-cgroup", a == "--no-new-keyring":
		default:
			create = create || a == "create"
			argv = append(argv, a)
		}
	}
	return argv, create
}

// volumes are the Spec's mounts for runsc, which would else see them as parts
// of the read-only root. Root placed them in the tree already, with their
// flags; these say the same to the sentry.
func volumes(s *engine.Spec, root string) []string {
	var out []string
	for _, m := range s.Mounts {
		options := []string{"ro", "noexec", "nosuid", "nodev"}
		if m.Writable {
			options[0] = "rw"
		}
		if m.Exec {
			options[1] = "exec"
		}
		out = append(out, "--volume", filepath.Join(root, m.Target)+":"+m.Target+":"+strings.Join(options, ","))
	}
	return out
}

// Relayed says whether containers of this Spec take what is passed in and pass
// nothing out.
func Relayed(s *engine.Spec) bool {
	return s.Engine == engine.Podman && s.OCIRuntime == runsc
}

// guest is the Spec as far as the guest's kernel can keep it.
func guest(s *engine.Spec) *engine.Spec {
	out := *s
	out.Off = append(slices.Clone(s.Off), engine.MechLandlock)
	return &out
}
