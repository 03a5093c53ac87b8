package warden

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/confine"
	"bulkhead/internal/deny"
)

// feature is one thing that a layer needs of this host.
type feature struct {
	layer deny.Layer
	name  string
	why   string
	mend  string
	probe func() error
	// optional features are kept by a second mechanism as well, so that an
	// operator may accept to go on without them. Without the others no agent
	// could be started at all.
	optional bool
}

func features() []feature {
	return []feature{
		{
			layer: deny.LayerAccount, name: "useradd", why: "agents get Linux accounts of their own",
			mend: "install the package passwd", probe: lookTool("useradd"),
		},
		{
			layer: deny.LayerAccount, name: "userdel", why: "accounts are removed by down",
			mend: "install the package passwd", probe: lookTool("userdel"),
		},
		{
			layer: deny.LayerPod, name: "user namespaces", why: "containers map only the ids they need",
			mend:  "raise user.max_user_namespaces above 0",
			probe: func() error { return positive("/proc/sys/user/max_user_namespaces") },
		},
		{
			layer: deny.LayerPod, name: "seccomp filters", why: "system calls are an allow-list",
			mend: "boot a kernel with CONFIG_SECCOMP_FILTER", probe: seccompFilter,
		},
		{
			layer: deny.LayerPod, name: fmt.Sprintf("Landlock ABI %d", confine.WantedABI),
			why:  "files, abstract sockets and signals are bounded by a second subsystem",
			mend: "boot Linux 6.12 or later with landlock in the lsm= list", probe: landlockABI, optional: true,
		},
		{
			layer: deny.LayerPod, name: "cgroup controllers memory, pids and cpu", why: "an agent must not exhaust the host",
			mend: "boot with these controllers enabled (cgroup_enable=memory on some ARM boards)", probe: cgroupControllers,
		},
		{
			layer: deny.LayerEgress, name: "nftables", why: "destinations are kept by the kernel, by id",
			mend: "load the module nf_tables", probe: nftablesFamily,
		},
	}
}

// missing probes the host and returns the layers that are lost with the
// operator's agreement, and a reason for each feature that is missing without.
func missing(all []feature, accepted []string) (lost []string, refused []*deny.Reason) {
	for _, f := range all {
		err := f.probe()
		if err == nil {
			continue
		}
		if f.optional && slices.Contains(accepted, string(f.layer)) {
			if !slices.Contains(lost, string(f.layer)) {
				lost = append(lost, string(f.layer))
			}
			continue
		}
		mend := f.mend
		if f.optional {
			mend += "; or go on with a weaker layer: --accept-missing " + string(f.layer)
		}
		refused = append(refused, &deny.Reason{
			Layer: f.layer, Code: deny.MissingFeature, What: f.name,
			Why: fmt.Sprintf("this host lacks it (%v), but %s", err, f.why), Mend: mend,
		})
	}
	return lost, refused
}

// lacking names what of a layer this host does not have now.
func lacking(all []feature, layer string) string {
	var out []string
	for _, f := range all {
		if string(f.layer) != layer {
			continue
		}
		if err := f.probe(); err != nil {
			out = append(out, fmt.Sprintf("%s (%v)", f.name, err))
		}
	}
	if len(out) == 0 {
		return "this host has all of it by now (run up again without --accept-missing)"
	}
	return "this host lacks " + strings.Join(out, ", ")
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

func landlockABI() error {
	abi := confine.LandlockABI()
	if abi < confine.WantedABI {
		return fmt.Errorf("the kernel has Landlock ABI %d", abi)
	}
	return nil
}
