package podman

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/confine"
	"bulkhead/internal/engine"
	"bulkhead/internal/layout"
)

// sandboxCaps are those that a sandbox and its file server may have, in the user
// namespace of the container alone. The first line: the sentry serves files to
// every id of the guest, and connects to gateway.sock as the id that asked.
// CAP_SYS_PTRACE drives the guest's threads. The last two count for nothing: the
// network namespace is not that user namespace's but root's.
const sandboxCaps = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_FOWNER |
	1<<unix.CAP_FSETID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_MKNOD |
	1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_NET_ADMIN

// readBackSandbox says what is not in force for a sandbox, whose guest waits in
// stage 2. What confines the guest's processes is the sentry's word; what
// confines the sentry is the kernel's.
func (s *start) readBackSandbox(pid int) error {
	procs, err := s.group.Procs()
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range procs {
		if err := s.checkSandbox(p, p == pid); err != nil {
			errs = append(errs, fmt.Errorf("process %d of the sandbox is not confined as it must be: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

func (s *start) checkSandbox(pid int, first bool) error {
	dir := fmt.Sprintf("/proc/%d", pid)
	status, err := os.ReadFile(dir + "/status") // #nosec G304 -- procfs
	if errors.Is(err, os.ErrNotExist) && !first {
		return nil // it has ended
	}
	if err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	errs := []error{checkSandboxStatus(s.spec, string(status))}
	for _, kind := range []string{"user", "mnt", "pid", "ipc", "uts"} {
		theirs, err := os.Readlink(dir + "/ns/" + kind)
		if err != nil {
			return err
		}
		if ours, err := os.Readlink("/proc/self/ns/" + kind); err != nil || theirs == ours {
			errs = append(errs, fmt.Errorf("it shares our %s namespace", kind), err)
		}
	}
	net, err := os.Readlink(dir + "/ns/net")
	ours, oerr := os.Readlink("/proc/self/ns/net")
	if err = errors.Join(err, oerr); err != nil || net == ours {
		errs = append(errs, errors.New("it shares our network namespace"), err)
	}
	if !first {
		return errors.Join(errs...)
	}
	if net != s.netns {
		errs = append(errs, fmt.Errorf("its network is %s, not %s, which root made", net, s.netns))
	}
	for _, kind := range []string{"uid_map", "gid_map"} {
		raw, err := os.ReadFile(dir + "/" + kind) // #nosec G304 -- procfs
		if err == nil {
			err = checkMap(s.spec, string(raw))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", kind, err))
		}
	}
	return errors.Join(errs...)
}

// checkSandboxStatus wants every process of a sandbox to be an id of the Spec,
// without privileges beyond its own user namespace, behind a seccomp filter.
func checkSandboxStatus(s *engine.Spec, text string) error {
	st, err := confine.ParseStatus(text)
	if err != nil {
		return err
	}
	var errs []error
	if more := (st.CapInh | st.CapPrm | st.CapEff | st.CapBnd | st.CapAmb) &^ sandboxCaps; more != 0 {
		errs = append(errs, fmt.Errorf("it has capabilities beyond a sandbox's (%x)", more))
	}
	if !st.NoNewPrivs {
		errs = append(errs, errors.New("no_new_privs is not set"))
	}
	if st.Seccomp != unix.SECCOMP_MODE_FILTER {
		errs = append(errs, fmt.Errorf("seccomp mode is %d, not 2 (filter)", st.Seccomp))
	}
	ids := map[string]bool{}
	for _, m := range s.User.Map {
		if m.Inside == layout.EngineID || m.Inside == s.User.ID {
			ids[strconv.FormatUint(uint64(m.Host), 10)] = true
		}
	}
	seen := 0
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		switch key {
		case "Uid", "Gid", "Groups":
			seen++
			if f := strings.Fields(value); slices.ContainsFunc(f, func(id string) bool { return !ids[id] }) || key != "Groups" && len(f) != 4 {
				errs = append(errs, fmt.Errorf("%s is %s, of which not all are ids of this container", key, strings.Join(f, " ")))
			}
		}
	}
	if seen != 3 {
		errs = append(errs, errors.New("its status lacks Uid, Gid or Groups"))
	}
	return errors.Join(errs...)
}
