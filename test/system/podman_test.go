package system

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/internal/evidence"
	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// podmanHost is a throwaway host whose writer runs under Podman and whose
// reviewer is a cell, unless both shall be the same.
func podmanHost(t *testing.T, f func(t *testing.T, c stage.CLI)) {
	t.Helper()
	needPodman(t)
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		write(t, c.Dir, mixed(""))
		f(t, c)
	})
}

// mixed is [pair] with the writer under Podman. more are further keys of it.
func mixed(more string) string {
	return strings.Replace(pair, "    role: writes\n", "    role: writes\n    engine: podman\n"+more, 1)
}

// cell is a shell as the bare account inside the agent's account cell, with
// every namespace of its launcher: where an escape from a container ends. Its
// seccomp filter is not inherited that way; what it must stop is tested by
// verify, which attacks from a real child of the launcher.
func cellShell(t *testing.T, a wire.AgentStatus, script string) string {
	t.Helper()
	return stage.Sh(t, enter(t, a)+" sh -c "+quote(script))
}

func enter(t *testing.T, a wire.AgentStatus) string {
	t.Helper()
	uid := accountID(t, a)
	return fmt.Sprintf("nsenter -t %d -m -p -n -i -u setpriv --reuid %s --regid %s --clear-groups --reset-env", launcherOf(t, a), uid, uid)
}

func accountID(t *testing.T, a wire.AgentStatus) string {
	t.Helper()
	return strings.TrimSpace(stage.Sh(t, "id -u "+a.Account))
}

func launcherOf(t *testing.T, a wire.AgentStatus) int {
	t.Helper()
	out := stage.Sh(t, fmt.Sprintf("awk '/^PPid/{print $2}' /proc/%d/status", stage.Container(t, a, "runtime").PID))
	n, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func status(t *testing.T, pid int, field string) string {
	t.Helper()
	return strings.TrimSpace(stage.Sh(t, fmt.Sprintf("awk -F'\t' '$1==\"%s:\"{print $2}' /proc/%d/status", field, pid)))
}

func TestTeamOfBothEnginesHoldsEveryAttack(t *testing.T) {
	podmanHost(t, func(t *testing.T, c stage.CLI) {
		before := stage.Picture(t)
		c.Run(t, "up")
		running(t, c)
		r, report := verify(t, c)
		if r.Exit != 0 || !report.OK() {
			t.Errorf("verify ends with %d:\n%s", r.Exit, report.Text())
		}
		for _, a := range evidence.Attacks() {
			for _, p := range a.From {
				if p == evidence.FromCode || p == evidence.FromServer {
					continue // this team has none: TestVerifyAttacksServersCodeAndWhatIsKept
				}
				for _, agent := range []string{"writer", "reviewer"} {
					if !slices.ContainsFunc(report.Rows, func(x evidence.Row) bool {
						return x.Attack == a.ID && x.Position == p && x.Agent == agent
					}) && !isLeftOut(report, a.ID) {
						t.Errorf("%s was not made from %s of %s", a.ID, p, agent)
					}
				}
			}
		}
		r, report = verify(t, c, "--engine", "podman", "--no-controls")
		if r.Exit != 0 || len(report.Rows) == 0 || slices.ContainsFunc(report.Rows, func(x evidence.Row) bool { return x.Agent == "reviewer" }) {
			t.Errorf("verify --engine podman attacks from an agent of the other one, or not at all:\n%s\n%s", report.Text(), r.Stderr)
		}
		if r := c.Try(t, "verify", "--engine", "docker"); r.Exit != 2 || !strings.Contains(r.Stderr, "cell or podman") {
			t.Errorf("%s", r)
		}
		running(t, c)
		c.Run(t, "down")
		stage.Leaves(t, before)
	})
}

func TestPodmanContainerIsConfined(t *testing.T) {
	for _, oci := range []string{"", "crun", "runc"} {
		t.Run("oci "+oci, func(t *testing.T) {
			if oci == "runc" || oci == "crun" {
				if _, err := os.Stat("/usr/bin/" + oci); err != nil {
					t.Skip("needs " + oci)
				}
			}
			podmanHost(t, func(t *testing.T, c stage.CLI) {
				if oci != "" {
					write(t, c.Dir, mixed("    ociRuntime: "+oci+"\n"))
				}
				c.Run(t, "up")
				confinedByPodman(t, c)
				c.Run(t, "down")
			})
		})
	}
}

func confinedByPodman(t *testing.T, c stage.CLI) {
	t.Helper()
	a := c.Agent(t, "writer")
	launcher := launcherOf(t, a)
	for _, name := range []string{"runtime", "gateway"} {
		pid := stage.Container(t, a, name).PID
		// One by the OCI profile, one by stage 2, one by the account cell.
		if n := status(t, pid, "Seccomp_filters"); n != "3" {
			t.Errorf("%s: %s seccomp filters", name, n)
		}
		if status(t, pid, "NoNewPrivs") != "1" || strings.Trim(status(t, pid, "CapBnd"), "0") != "" {
			t.Errorf("%s: privileges are left", name)
		}
		for _, kind := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
			theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
			if err != nil {
				t.Fatal(err)
			}
			for who, other := range map[string]int{"host": os.Getpid(), "launcher": launcher} {
				if ours, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", other, kind)); ours == theirs {
					t.Errorf("%s shares the %s namespace of the %s", name, kind, who)
				}
			}
		}
		// The network namespace belongs to root: no capability of any user
		// namespace of the agent counts in it.
		stage.Sh(t, fmt.Sprintf("test \"$(nsenter -t %d -n -- readlink /proc/self/ns/user)\" = \"$(readlink /proc/self/ns/user)\"", pid))
		if owner := netnsOwner(t, pid); owner != inode(t, "/proc/self/ns/user") {
			t.Errorf("%s: its network namespace belongs to user namespace %d", name, owner)
		}
		if ppid := status(t, pid, "PPid"); ppid != strconv.Itoa(launcher) {
			t.Errorf("%s: its parent is %s, not the launcher %d", name, ppid, launcher)
		}
	}
	t.Run("nobody of the account stands beside the containers", func(t *testing.T) {
		// Nor of the ids to which the user namespaces of the container and of
		// Podman belong: such a process would have every capability in them, and
		// what is counted by user is counted against them.
		runtime := stage.Container(t, a, "runtime")
		ids, range0 := []string{accountID(t, a)}, int(runtime.HostID)+1-layout.RuntimeID
		for _, owner := range namespaceOwners(t, runtime.PID) {
			if owner < range0 || owner >= range0+layout.RangeSize {
				t.Errorf("a user namespace of the runtime belongs to %d, which is not of the agent's range: root, the account %s or a stranger", owner, ids[0])
			}
			ids = append(ids, strconv.Itoa(owner))
		}
		if out := stage.Sh(t, "ps -o pid,args --no-headers -U "+strings.Join(ids, ",")+" || true"); out != "" {
			t.Errorf("%s", out)
		}
		if out := stage.Sh(t, "pidof podman conmon runc crun || true"); out != "" {
			t.Errorf("%s", out)
		}
	})
	t.Run("an exec'd process has the Landlock domain", func(t *testing.T) {
		// A mode of 1777 and a writable mount: nothing but Landlock says no.
		if r := c.Try(t, "exec", "writer", "--", "touch", "/dev/mqueue/x"); r.Exit == 0 || !strings.Contains(r.Stderr, "Permission denied") {
			t.Errorf("%s", r)
		}
		pid := stage.Container(t, a, "runtime").PID
		stage.Sh(t, fmt.Sprintf("nsenter -t %d -m -U --preserve-credentials touch /dev/mqueue/control 2>/dev/null || setpriv --reuid %d --regid %d --clear-groups nsenter --version > /dev/null",
			pid, stage.Container(t, a, "runtime").HostID, stage.Container(t, a, "runtime").HostID))
		if got := c.Run(t, "exec", "writer", "--", "sh", "-c", "ls -ld /dev/mqueue"); !strings.HasPrefix(got, "drwxrwxrwt") {
			t.Errorf("the control does not hold: %s", got)
		}
		if got := c.Run(t, "exec", "writer", "--", "sh", "-c", "touch /dev/shm/x /tmp/x /workspace/x /home/agent/x && echo ok"); got != "ok\n" {
			t.Errorf("%q", got)
		}
	})
	t.Run("its environment and files are ours alone", func(t *testing.T) {
		env := c.Run(t, "exec", "writer", "--", "env")
		for _, foreign := range []string{"container=", "HOSTNAME=", "_CONTAINERS", "TERM="} {
			if strings.Contains(env, "\n"+foreign) || strings.HasPrefix(env, foreign) {
				t.Errorf("Podman's %s is in the environment:\n%s", foreign, env)
			}
		}
		if got := c.Run(t, "exec", "writer", "--", "sh", "-c", "cat /etc/hosts; cat /etc/resolv.conf; hostname; cat /proc/self/cgroup"); !strings.Contains(got, "listed.example") || !strings.Contains(got, "No name server") || !strings.Contains(got, "writer") || strings.Contains(got, "bulkhead") {
			t.Errorf("%s", got)
		}
	})
	t.Run("limits bite", func(t *testing.T) {
		r := c.Try(t, "exec", "writer", "--", "sh", "-c", "i=0; while [ $i -lt 90 ]; do sleep 3 & i=$((i+1)); done; wait")
		if !strings.Contains(r.Stderr, "can't fork") {
			t.Errorf("pids: %s", r)
		}
		// The sleeps hold the agent's process numbers until they end.
		stage.Until(t, "there is room for a process again", func() bool {
			r = c.Try(t, "exec", "writer", "--", "sh", "-c", "cat /proc/self/limits")
			return r.Exit == 0
		})
		if !strings.Contains(r.Stdout, "Max open files            1024                 1024") || !strings.Contains(r.Stdout, "Max core file size        0                    0") {
			t.Errorf("%s", r)
		}
		// tail keeps what it reads; 300 MiB are more than the agent's 256.
		r = c.Try(t, "exec", "writer", "--", "sh", "-c", "dd if=/dev/zero bs=1M count=400 2>/dev/null | tail -c 400M | wc -c")
		if strings.TrimSpace(r.Stdout) == strconv.Itoa(400<<20) {
			t.Errorf("memory: %s", r)
		}
		stage.Until(t, "the writer runs", func() bool { return c.Agent(t, "writer").State == "running" })
	})
}

// namespaceOwners asks to which ids a process's user namespace, and the one
// above it, belong (ioctl_nsfs(2)).
func namespaceOwners(t *testing.T, pid int) (ids [2]int) {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	fd := int(f.Fd())
	for i := range ids {
		if ids[i], err = unix.IoctlGetInt(fd, unix.NS_GET_OWNER_UID); err != nil {
			t.Fatal(err)
		}
		if fd, err = unix.IoctlRetInt(fd, unix.NS_GET_PARENT); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(fd) }()
	}
	return ids
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// netnsOwner asks which user namespace owns a network namespace
// (ioctl_nsfs(2), NS_GET_USERNS).
func netnsOwner(t *testing.T, pid int) uint64 {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	fd, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func TestSetuidFilesOfAHostileImageGiveNothing(t *testing.T) {
	podmanHost(t, func(t *testing.T, c stage.CLI) {
		stage.Sh(t, "mkdir /srv/rootfs/sbin; cp /srv/rootfs/bin/busybox /srv/rootfs/sbin/busybox; chown 0:0 /srv/rootfs/sbin/busybox; chmod 4755 /srv/rootfs/sbin/busybox")
		c.Run(t, "up")
		a := c.Agent(t, "writer")
		if got := c.Run(t, "exec", "writer", "--", "/sbin/busybox", "id", "-u"); got != "1000\n" {
			t.Errorf("inside it is user %q", got)
		}
		// By its host path, where the account cell shows it; busybox drops what
		// it gained itself, so the kernel's word is asked.
		got := cellShell(t, a, "/srv/rootfs/sbin/busybox grep Uid /proc/self/status; ls -l /srv/rootfs/sbin/busybox")
		want := "Uid:\t" + strings.Repeat(accountID(t, a)+"\t", 4)
		if !strings.Contains(got, strings.TrimRight(want, "\t")) || !strings.Contains(got, "rws") {
			t.Errorf("in the account cell: %s", got)
		}
		t.Run("and no other setuid program of the host works there", func(t *testing.T) {
			if got := cellShell(t, a, "grep ' /usr ' /proc/self/mountinfo; /usr/bin/su -c id; true"); !strings.Contains(got, "nosuid") || strings.Contains(got, "uid=0") {
				t.Errorf("%s", got)
			}
		})
		c.Run(t, "down")
	})
}

// TestWhatTheAccountPreparedForPodmanIsNeverRead plays an attacker who is the
// bare account in its cell, and waits there for the next start.
func TestWhatTheAccountPreparedForPodmanIsNeverRead(t *testing.T) {
	podmanHost(t, func(t *testing.T, c stage.CLI) {
		c.Run(t, "up")
		a := c.Agent(t, "writer")
		uid, launcher := accountID(t, a), launcherOf(t, a)
		cellShell(t, a, `
cd /tmp; mkdir -p store/libpod store/vfs-containers/x/userdata run tmp/exits .config/containers
for f in store/libpod/bolt_state.db store/storage.lock run/alive.lck tmp/alive store/vfs-containers/x/userdata/config.json run/pidfile run/conmon.pid; do mkdir -p $(dirname $f); echo 1 > $f; done
printf '[engine]\nruntime="/tmp/evil"\nhooks_dir=["/tmp"]\n' > .config/containers/containers.conf
printf '#!/bin/sh\ntouch /tmp/was-run\n' > evil; chmod 755 evil; cp evil conmon; cp evil podman
mkfifo store/userns.lock
head -c 4096 /dev/zero > /dev/shm/libpod_rootless_lock_`+uid+`; chmod 400 /dev/shm/libpod_rootless_lock_`+uid+`
ls -R /tmp`)
		// The store's lock is held as well, for as long as the test runs.
		stage.Sh(t, "("+enter(t, a)+" flock /tmp/store/storage.lock sleep 60) > /dev/null 2>&1 &")
		for _, name := range []string{"runtime", "gateway"} {
			pid := stage.Container(t, c.Agent(t, "writer"), name).PID
			kill9(t, pid)
			stage.Until(t, name+" is made anew", func() bool {
				now := c.Agent(t, "writer")
				got := stage.Container(t, now, name)
				return now.State == "running" && got.Running && got.PID != pid
			})
		}
		now := c.Agent(t, "writer")
		if launcherOf(t, now) != launcher {
			t.Error("the launcher is another one: nothing was tried")
		}
		if got := cellShell(t, now, "ls /tmp; cat /tmp/store/libpod/bolt_state.db"); strings.Contains(got, "was-run") || !strings.Contains(got, "bolt_state") && !strings.Contains(got, "1\n") {
			t.Errorf("%s", got)
		}
		for _, l := range now.Layers {
			if !l.InForce {
				t.Errorf("layer %s: %s", l.Layer, l.Witness)
			}
		}
		c.Run(t, "down")
	})
}

// TestStartThatIsNotConfinedIsRefused puts other programs in Podman's place:
// what it says counts for nothing.
func TestStartThatIsNotConfinedIsRefused(t *testing.T) {
	// What it is asked for first is not what this test is of.
	const asked = `[ "$1" = --version ] && exec /usr/bin/podman --version; `
	const word = `echo '{"result":{"landlock":6,"seccomp":99}}' >&4`
	for name, x := range map[string]struct{ script, want string }{
		"it fails, and its words are shown":     {"echo out of luck >&2; exit 3", "out of luck"},
		"it ends well without a container":      {"exit 0", "no container came"},
		"it vouches for an unconfined process":  {"sh -c '" + strings.ReplaceAll(word, "'", `'\''`) + "; exec sleep 1000' & sleep 0.3; exit 0", "is not confined as it must be"},
		"it vouches for a process that is gone": {word, "is not in cgroup"},
		"it says nonsense":                      {"echo nonsense >&4; exit 0", "first word"},
		"it hangs":                              {"exec sleep 1000", "not done after"},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.Contains(name, "hangs") && testing.Short() {
				t.Skip("waits for the time limit")
			}
			podmanHost(t, func(t *testing.T, c stage.CLI) {
				before := stage.Picture(t)
				stage.Sh(t, "printf '%s\n' '#!/bin/bash' "+quote(asked+x.script)+" > /usr/local/bin/podman; chmod 755 /usr/local/bin/podman")
				r := c.Try(t, "up")
				if r.Exit == 0 || !strings.Contains(r.Stderr, x.want) {
					t.Errorf("%s", r)
				}
				if a := c.Agent(t, "reviewer"); a.State != "running" {
					t.Errorf("the other agent is %s: %s", a.State, a.Why)
				}
				c.Run(t, "down")
				stage.Leaves(t, before)
			})
		})
	}
}

func TestEngineIsChangedByUpAndFilesStay(t *testing.T) {
	podmanHost(t, func(t *testing.T, c stage.CLI) {
		c.Run(t, "up")
		other := pids(c.Agent(t, "reviewer"))
		c.Run(t, "exec", "writer", "--", "sh", "-c", "echo kept > /workspace/f")
		for _, kind := range []engine.Kind{engine.Cell, engine.Podman} {
			manifest := pair
			if kind == engine.Podman {
				manifest = mixed("")
			}
			write(t, c.Dir, manifest)
			c.Run(t, "up")
			running(t, c)
			if got := c.Run(t, "exec", "writer", "--", "sh", "-c", "cat /workspace/f; stat -c %u /workspace/f"); got != "kept\n1000\n" {
				t.Errorf("%s: %q", kind, got)
			}
			filters := status(t, stage.Container(t, c.Agent(t, "writer"), "runtime").PID, "Seccomp_filters")
			if want := map[engine.Kind]string{engine.Cell: "2", engine.Podman: "3"}[kind]; filters != want {
				t.Errorf("%s: %s filters, want %s", kind, filters, want)
			}
		}
		if now := pids(c.Agent(t, "reviewer")); fmt.Sprint(now) != fmt.Sprint(other) {
			t.Errorf("the other agent's processes changed from %v to %v", other, now)
		}
		write(t, c.Dir, mixed("    ociRuntime: krun\n"))
		if r := c.Try(t, "up"); r.Exit != wire.ExitBadInput || !strings.Contains(r.Stderr, "kernel of its own") {
			t.Errorf("%s", r)
		}
		running(t, c)
		c.Run(t, "down")
	})
}
