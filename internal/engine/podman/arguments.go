package podman

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"bulkhead/internal/confine"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/layout"
)

// Where Podman keeps what it writes: on a tmpfs of this one start.
const (
	scratchDir = "/tmp"
	shmDir     = "/dev/shm"
)

// program is the shim's program inside the container: Init names it.
func program(s *engine.Spec) string { return s.Init[0] }

// preserved is how many descriptors go down to stage 2: the plan and the
// status socket. Everything else comes with the order.
const preserved = 2

// arguments turns a Spec into Podman's command line. Mounts, network, command,
// environment and limits are not in it: they are made by root, or come with
// the order, see the package comment. What is here says no to everything that
// Podman would add by itself.
func arguments(s *engine.Spec, runtime, root, conf, shim string) []string {
	program0 := runtime
	if runtime == runsc {
		program0 = shim
	}
	out := []string{
		"podman",
		"--root", scratchDir + "/store", "--runroot", scratchDir + "/run", "--tmpdir", scratchDir + "/tmp",
		"--storage-driver", "vfs", // no image is stored; overlay would only probe the kernel
		"--cgroup-manager", "cgroupfs", "--events-backend", "none", "--log-level", "warn", "--runtime", program0,
	}
	if runtime == runsc {
		out = append(out, "--runtime-flag", runscWord)
	}
	out = append(
		out, "run", "--detach", "--name", s.Name,
		"--preserve-fds", strconv.Itoa(preserved),
		"--log-driver", "none", // the order brings stdin, stdout and stderr
		"--pull", "never", "--image-volume", "ignore", "--no-healthcheck", "--systemd", "false", "--sdnotify", "ignore",
		"--unsetenv-all", "--passwd=false", "--no-hosts", "--dns", "none", "--umask", "0022",
		"--read-only", "--read-only-tmpfs=false",
		"--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--security-opt", "label=disable",
		"--security-opt", "seccomp="+filepath.Join(conf, seccompFile(s.Role)),
		"--network", "host", // the one that the launcher made for this container, not the host's
		"--ipc", "none", // a namespace without a /dev/shm of Podman's, see places
		"--pid", "private", "--uts", "private", "--cgroupns", "private",
		"--hostname", s.Hostname,
		"--user", fmt.Sprintf("%d:%d", s.User.ID, s.User.ID),
		"--workdir", "/",
	)
	if runtime == "crun" {
		out = append(out, "--cgroups", "disabled") // runc does not know it, and finds none to write to
	}
	l := s.Limits.WithDefaults()
	out = append(
		out, "--ulimit", fmt.Sprintf("nofile=%d:%d", l.NoFile, l.NoFile),
		"--ulimit", fmt.Sprintf("core=%d:%d", l.CoreBytes, l.CoreBytes),
	)
	for _, m := range inner(s) {
		one := fmt.Sprintf("%d:%d:1", m.Inside, m.Host)
		out = append(out, "--uidmap", one, "--gidmap", one)
	}
	if runtime == runsc { // /proc is the guest kernel's own
		return append(append(out, volumes(s, root)...), "--rootfs", root, program(s), "stage2", "0")
	}
	// Podman's own list has some of them.
	out = append(out, "--security-opt", "mask="+strings.Join(cell.Masked(), ":"))
	return append(append(out, places()...), "--rootfs", root, program(s), "stage2", "3")
}

// places are the two mounts below Podman's own that its versions do not agree
// about. The guest's kernel of runsc has both by itself.
func places() []string {
	return []string{
		// Version 5 makes it read-only when the root is.
		"--mount", "type=tmpfs,destination=/dev/shm,tmpfs-size=64m,tmpfs-mode=1777,notmpcopyup,nosuid,nodev,noexec",
		// Version 5 would have the OCI runtime mount the control groups there. The
		// account cell's is an empty folder.
		"--mount", "type=bind,source=/sys/fs/cgroup,destination=/sys/fs/cgroup,ro,nosuid,nodev,noexec",
	}
}

// inner maps the container's ids to those of Podman's own user namespace: to
// themselves, but for the one that the OCI runtime takes for root, which is
// Podman's own user. So Podman finds itself mapped in the container, as it is
// for whoever runs it by hand; see docs/decisions/0075-podman-5.md for what it
// does when it is not.
func inner(s *engine.Spec) []engine.IDMap {
	out := []engine.IDMap{{Inside: 0, Host: 0}}
	for _, m := range s.User.Map {
		if m.Inside != layout.EngineID {
			out = append(out, engine.IDMap{Inside: m.Inside, Host: m.Inside})
		}
	}
	slices.SortFunc(out, func(a, b engine.IDMap) int { return int(a.Inside) - int(b.Inside) })
	return out
}

// outer maps the ids of Podman's user namespace to the host's: what the Spec
// maps, with the id that owns nothing as user 0.
func outer(s *engine.Spec) []syscall.SysProcIDMap {
	var out []syscall.SysProcIDMap
	for _, m := range s.User.Map {
		inside := m.Inside
		if inside == layout.EngineID {
			inside = 0
		}
		out = append(out, syscall.SysProcIDMap{ContainerID: int(inside), HostID: int(m.Host), Size: 1})
	}
	slices.SortFunc(out, func(a, b syscall.SysProcIDMap) int { return a.ContainerID - b.ContainerID })
	return out
}

// runs is the host id that Podman runs as, its user 0.
func runs(s *engine.Spec) string {
	for _, m := range s.User.Map {
		if m.Inside == layout.EngineID {
			return strconv.FormatUint(uint64(m.Host), 10)
		}
	}
	return "" // refused by Check
}

// environment is Podman's. The first two tell it that its user namespace is
// made already, as `podman unshare` does for its children.
func environment(id, conf string) []string {
	return []string{
		"_CONTAINERS_USERNS_CONFIGURED=done", "_CONTAINERS_ROOTLESS_UID=" + id, "_CONTAINERS_ROOTLESS_GID=" + id,
		"PATH=" + searchPath,
		"HOME=" + scratchDir, "TMPDIR=" + scratchDir, "XDG_RUNTIME_DIR=" + scratchDir, "XDG_CONFIG_HOME=" + scratchDir,
		"CONTAINERS_CONF=" + filepath.Join(conf, containersConf), "CONTAINERS_STORAGE_CONF=" + filepath.Join(conf, storageConf),
		"CONTAINERS_REGISTRIES_CONF=/dev/null",
		// Version 5 sees no control groups in the account cell and takes that for
		// version 1. Groups are the warden's (Spec.Cgroup), whatever Podman thinks.
		"PODMAN_IGNORE_CGROUPSV1_WARNING=1",
	}
}

const (
	containersConf = "containers.conf"
	storageConf    = "storage.conf"
)

// helperFolders are where Podman looks for its helpers unless containers.conf
// says otherwise (containers.conf(5), helper_binaries_dir).
var helperFolders = []string{"/usr/local/libexec/podman", "/usr/local/lib/podman", "/usr/libexec/podman", "/usr/lib/podman"}

// networkBackend names one that this host's Podman has. No container of ours
// has a network, but Podman does not start without: version 5 knows netavark
// alone, and version 4 without that helper only cni.
func networkBackend() string {
	for _, dir := range helperFolders {
		if unix.Access(filepath.Join(dir, "netavark"), unix.X_OK) == nil {
			return "netavark"
		}
	}
	return "cni"
}

func seccompFile(r engine.Role) string { return "seccomp-" + string(r) + ".json" }

// Files gives what root writes for Podman, by file name.
func Files() (map[string]string, error) {
	out := map[string]string{
		// Everything that a host's own files could say is said here: with
		// CONTAINERS_CONF set they are not read (containers.conf(5)).
		containersConf: `[containers]
annotations = []
apparmor_profile = "unconfined"
default_capabilities = []
default_sysctls = []
devices = []
dns_servers = []
env = []
env_host = false
http_proxy = false
init = false
keyring = false
label = false
no_hosts = true
volumes = []
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
hooks_dir = []
no_pivot_root = false
[network]
network_backend = "` + networkBackend() + `"
`,
		storageConf: "[storage]\ndriver = \"vfs\"\n",
	}
	for _, r := range []engine.Role{engine.RoleRuntime, engine.RoleGateway} {
		profile, err := confine.OCIProfile(r)
		if err != nil {
			return nil, err
		}
		out[seccompFile(r)] = string(profile)
	}
	return out, nil
}
