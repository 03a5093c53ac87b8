package warden

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
)

// feature is one thing that a layer needs of this host.
type feature struct {
	layer deny.Layer
	name  string
	why   string
	mend  string
	probe func() error
}

// minLandlock is the Landlock ABI that the profile needs: 6 (Linux 6.12) is
// the first that scopes abstract sockets and signals.
// Source: https://docs.kernel.org/userspace-api/landlock.html
const minLandlock = 6

func features() []feature {
	return []feature{
		{deny.LayerAccount, "useradd", "agents get Linux accounts of their own", "install the package passwd", lookTool("useradd")},
		{deny.LayerAccount, "userdel", "accounts are removed by down", "install the package passwd", lookTool("userdel")},
		{
			deny.LayerPod, "user namespaces", "containers map exactly one id", "raise user.max_user_namespaces above 0",
			func() error { return positive("/proc/sys/user/max_user_namespaces") },
		},
		{deny.LayerPod, "seccomp filters", "system calls are an allow-list", "boot a kernel with CONFIG_SECCOMP_FILTER", seccompFilter},
		{
			deny.LayerPod, fmt.Sprintf("Landlock ABI %d", minLandlock), "files, abstract sockets and signals are bounded by a second subsystem",
			"boot Linux 6.12 or later with landlock in the lsm= list", landlockABI,
		},
		{
			deny.LayerPod, "cgroup controllers memory, pids and cpu", "an agent must not exhaust the host",
			"boot with these controllers enabled (cgroup_enable=memory on some ARM boards)", cgroupControllers,
		},
		{
			deny.LayerEgress, "nftables", "destinations are kept by the kernel, by id",
			"load the module nf_tables", nftablesFamily,
		},
	}
}

// missing lists the features that this host lacks, and the layers lost by it.
func missing() (lost []deny.Layer, reasons []*deny.Reason) {
	for _, f := range features() {
		err := f.probe()
		if err == nil {
			continue
		}
		if !slices.Contains(lost, f.layer) {
			lost = append(lost, f.layer)
		}
		reasons = append(reasons, &deny.Reason{
			Layer: f.layer, Code: deny.MissingFeature, What: f.name,
			Why:  fmt.Sprintf("this host lacks it (%v), but %s", err, f.why),
			Mend: f.mend + "; or go on without the layer: --accept-missing " + string(f.layer),
		})
	}
	return lost, reasons
}

func lookTool(name string) func() error {
	return func() error {
		_, err := exec.LookPath(name)
		return err
	}
}

func positive(path string) error {
	raw, err := os.ReadFile(path) // #nosec G304 -- constant paths below /proc
	if err != nil {
		return err
	}
	if v := strings.TrimSpace(string(raw)); v == "0" {
		return fmt.Errorf("%s is 0", path)
	}
	return nil
}

func seccompFilter() error {
	// SECCOMP_GET_ACTION_AVAIL (seccomp(2), Linux 4.14) asks without changing anything.
	action := uint32(unix.SECCOMP_RET_ERRNO)
	return seccompActionAvailable(&action)
}

func cgroupControllers() error {
	raw, err := os.ReadFile("/proc/cgroups")
	if err != nil {
		return err
	}
	var absent []string
	for _, want := range []string{"memory", "pids", "cpu"} {
		found := false
		for line := range strings.SplitSeq(string(raw), "\n") {
			f := strings.Fields(line)
			if len(f) == 4 && f[0] == want && f[3] == "1" {
				found = true
			}
		}
		if !found {
			absent = append(absent, want)
		}
	}
	if len(absent) > 0 {
		return errors.New("not enabled: " + strings.Join(absent, ", "))
	}
	return nil
}

func nftablesFamily() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}
