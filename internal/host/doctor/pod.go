package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"strings"

	"bulkhead/internal/confine"
	"bulkhead/internal/deny"
	"bulkhead/internal/host/apparmor"
)

func podChecks() []Check {
	return []Check{
		{
			Layer: deny.LayerPod, Name: "user namespaces", Need: Required,
			Why:  "containers map only the ids they need",
			Mend: "sysctl user.max_user_namespaces=10000",
			Look: sysctl("/proc/sys/user/max_user_namespaces", Answer{State: Missing, Found: "this kernel has none", Mend: "boot a kernel with CONFIG_USER_NS"}, func(n int) Answer {
				if n <= 0 {
					return Answer{State: Missing}
				}
				return Answer{State: OK, Found: fmt.Sprintf("up to %d", n)}
			}),
		},
		{
			Layer: deny.LayerPod, Name: "user namespaces without root", Look: withoutRoot,
			Why: "rootless Podman and the fetching of images make theirs without root; cells are made by root, which neither switch binds",
		},
		{
			Layer: deny.LayerPod, Name: "seccomp filters", Need: Required, Look: seccomp,
			Why: "system calls are an allow-list", Mend: "boot a kernel with CONFIG_SECCOMP_FILTER",
		},
		{
			Layer: deny.LayerPod, Name: fmt.Sprintf("Landlock ABI %d", confine.WantedABI), Need: Optional, Look: landlock,
			Why:  "files, abstract sockets and signals are bounded by a second subsystem",
			Mend: "boot Linux 6.12 or later with landlock in the lsm= list",
		},
		{
			Layer: deny.LayerPod, Name: "security modules", Look: modules,
			Why:  "the modules that are switched on decide which walls can be had",
			Mend: "mount -t securityfs securityfs /sys/kernel/security, where the kernel lists them",
		},
		{
			Layer: deny.LayerPod, Name: "AppArmor", Look: appArmor,
			Why:  "a third subsystem bounds runtimes and gateways",
			Mend: "apt install apparmor, and boot with apparmor in the lsm= list",
		},
		{
			Layer: deny.LayerPod, Name: "AppArmor profiles", Need: Optional, Look: appArmorProfiles,
			Why:  "where the kernel has AppArmor, each container gets a profile of its own",
			Mend: "apt install apparmor",
		},
		{
			Layer: deny.LayerPod, Name: "SELinux", Look: seLinux,
			Why:  "its policy may refuse what the warden and agents do",
			Mend: "see `ausearch -m avc` after an up; nobody ran Bulkhead under it yet",
		},
	}
}

// The two switches of distributions. Ubuntu's is documented in its AppArmor's
// wiki (unprivileged user namespace restriction); a profile with "userns,"
// lifts it for one program.
const (
	debianSwitch = "/proc/sys/kernel/unprivileged_userns_clone"
	ubuntuSwitch = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
	podmanRules  = "/etc/apparmor.d/podman"
)

// UserNamespaceProfile is an AppArmor profile that lets rootless Podman and
// Bulkhead's image builder make user namespaces on Ubuntu.
const UserNamespaceProfile = `abi <abi/4.0>,
include <tunables/global>
profile podman /usr/bin/podman flags=(unconfined) {
  userns,
}
profile bulkhead /usr/{,local/}{,lib/bulkhead/,bin/}bulkhead flags=(unconfined) {
  userns,
}
`

func withoutRoot(_ context.Context, h Host) Answer {
	if n, err := h.number(debianSwitch); err == nil && n == 0 {
		return Answer{State: Weak, Found: "switched off", Where: debianSwitch, Mend: "sysctl kernel.unprivileged_userns_clone=1"}
	} else if err != nil && !absent(err) {
		return unread(debianSwitch, err)
	}
	n, err := h.number(ubuntuSwitch)
	switch {
	case absent(err) || err == nil && n == 0:
		return Answer{State: OK, Found: "not restricted", Where: debianSwitch + ", " + ubuntuSwitch}
	case err != nil:
		return unread(ubuntuSwitch, err)
	}
	if rules, err := h.text(podmanRules); err == nil && grantsUserns(rules) {
		return Answer{State: OK, Found: "restricted by AppArmor, but not for Podman", Where: ubuntuSwitch + ", " + podmanRules}
	}
	return Answer{
		State: Weak, Found: "restricted by AppArmor", Where: ubuntuSwitch,
		Mend: "write this to " + podmanRules + ", then run apparmor_parser -r " + podmanRules + ":\n" + UserNamespaceProfile,
	}
}

// grantsUserns looks for the rule outside of comments.
func grantsUserns(profile string) bool {
	for line := range strings.Lines(profile) {
		line, _, _ = strings.Cut(line, "#")
		for f := range strings.FieldsSeq(line) {
			if f == "userns," {
				return true
			}
		}
	}
	return false
}

func seccomp(_ context.Context, h Host) Answer {
	const where = "seccomp(2)"
	if err := h.Kernel.Seccomp(); err != nil {
		return Answer{State: Missing, Found: reason(err), Where: where}
	}
	return Answer{State: OK, Found: "there", Where: where}
}

func landlock(_ context.Context, h Host) Answer {
	a := Answer{State: OK, Where: "landlock_create_ruleset(2)"}
	n := h.Kernel.LandlockABI()
	a.Found = fmt.Sprintf("the kernel has Landlock ABI %d", n)
	if n == 0 {
		a.Found = "this kernel has no Landlock, or it is switched off"
	}
	if n < confine.WantedABI {
		a.State = Missing
	}
	return a
}

const lsmList = "/sys/kernel/security/lsm"

func modules(_ context.Context, h Host) Answer {
	s, err := h.text(lsmList)
	if err != nil {
		return unread(lsmList, err)
	}
	return Answer{State: OK, Found: s, Where: lsmList}
}

func appArmor(_ context.Context, h Host) Answer {
	const where = apparmor.Enabled
	s, err := h.text(where)
	switch {
	case err != nil && !absent(err):
		return unread(where, err)
	case s == "Y":
		return Answer{State: OK, Found: "on", Where: where}
	case !h.release().family():
		return Answer{State: NotSupported, Found: "off", Where: where}
	}
	return Answer{State: Weak, Found: "off", Where: where}
}

// appArmorProfiles says whether the profiles that the kernel would enforce can
// be made.
func appArmorProfiles(_ context.Context, h Host) Answer {
	on, err := h.text(apparmor.Enabled)
	switch {
	case err != nil && !absent(err):
		return unread(apparmor.Enabled, err)
	case on != "Y":
		return Answer{State: OK, Found: "AppArmor is off: none are made", Where: apparmor.Enabled}
	}
	for _, p := range apparmor.Parsers {
		if _, err := fs.Stat(h.Files, strings.TrimPrefix(p, "/")); err == nil {
			return Answer{State: OK, Found: "can be made", Where: p}
		}
	}
	return Answer{State: Missing, Found: "there is no apparmor_parser", Where: strings.Join(apparmor.Parsers, ", ")}
}

func seLinux(_ context.Context, h Host) Answer {
	const where = "/sys/fs/selinux/enforce"
	n, err := h.number(where)
	switch {
	case absent(err):
		return Answer{State: OK, Found: "off", Where: where}
	case err != nil:
		return unread(where, err)
	case n == 0:
		return Answer{State: NotSupported, Found: "permissive: it refuses nothing now", Where: where}
	}
	return Answer{State: NotSupported, Found: "enforcing", Where: where}
}
