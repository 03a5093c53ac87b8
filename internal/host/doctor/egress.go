package doctor

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
)

// ours is the table that the warden keeps (internal/host/nft).
var ours = Table{"inet", "bulkhead"}

func egressChecks() []Check {
	return []Check{
		{
			Layer: deny.LayerEgress, Name: "nftables", Need: Required, Look: nftables,
			Why: "destinations are kept by the kernel, by id", Mend: "load the module nf_tables",
		},
		{
			Layer: deny.LayerEgress, Name: "who else writes rules", Look: writers,
			Why:  "a packet has to pass every table: another's rules can refuse what the manifest lists, and its owner may flush all tables",
			Mend: "leave the table inet bulkhead to the warden; let what writes the others reload by itself, never by `nft flush ruleset`",
		},
		{
			Layer: deny.LayerEgress, Name: "nftables.service", Look: flusher,
			Why:  "its configuration begins with `flush ruleset`: each reload takes the warden's table away until the warden has put it back",
			Mend: "in /etc/nftables.conf replace `flush ruleset` by a flush of your own tables, or systemctl disable nftables",
		},
		{
			Layer: deny.LayerEgress, Name: "name servers", Look: nameServers,
			Why:  "the resolver asks them for every listed name; nobody else in a team can ask",
			Mend: "name a server in /etc/resolv.conf",
		},
		{
			Layer: deny.LayerEgress, Name: "way out", Look: wayOut,
			Why:  "where a company lets nothing out but its forward proxy, listed names are reached only through that",
			Mend: "name the proxy in the manifest: upstreamProxy: {url: http://HOST:PORT}",
		},
	}
}

func nftables(_ context.Context, h Host) Answer {
	const where = "netlink(7), NETLINK_NETFILTER"
	if err := h.Kernel.Netfilter(); err != nil {
		return Answer{State: Missing, Found: reason(err), Where: where}
	}
	if !h.Kernel.Root() {
		return Answer{State: OK, Found: "there; only root can read the tables", Where: where}
	}
	tables, err := h.Kernel.Tables()
	if err != nil {
		return Answer{State: Missing, Found: "the tables cannot be read: " + reason(err), Where: where}
	}
	if slices.Contains(tables, ours) {
		return Answer{State: OK, Found: "in use: table " + ours.String(), Where: where}
	}
	return Answer{State: OK, Found: "usable", Where: where}
}

// foreign are other programs that write rules, by a file that is there while
// they are at work or will be at the next boot.
var foreign = []struct{ name, file, holds string }{
	{"Docker", "/run/docker.sock", ""},
	{"Docker", "/sys/class/net/docker0", ""},
	{"ufw", "/etc/ufw/ufw.conf", "ENABLED=yes"},
	{"firewalld", "/run/firewalld", ""},
	{"firewalld", "/etc/systemd/system/multi-user.target.wants/firewalld.service", ""},
	{"fail2ban", "/run/fail2ban", ""},
	{"fail2ban", "/etc/systemd/system/multi-user.target.wants/fail2ban.service", ""},
	{"iptables-persistent", "/etc/iptables/rules.v4", ""},
	{"libvirt", "/run/libvirt", ""},
}

func writers(_ context.Context, h Host) Answer {
	var who []string
	add := func(s string) {
		if !slices.Contains(who, s) {
			who = append(who, s)
		}
	}
	for _, f := range foreign {
		if f.holds == "" && h.exists(f.file) {
			add(f.name)
		}
		if s, err := h.text(f.file); f.holds != "" && err == nil && hasLine(s, f.holds) {
			add(f.name)
		}
	}
	// Only root can read it; elsewhere the tables below are unread anyway.
	if s, err := h.text("/proc/net/ip_tables_names"); err == nil && s != "" {
		add("iptables-legacy (" + strings.Join(strings.Fields(s), ", ") + ")")
	}
	tables, err := h.Kernel.Tables()
	where := "netlink(7), /etc, /run"
	if err != nil {
		a := Answer{State: Unknown, Found: "the tables cannot be read: " + reason(err), Where: where}
		if errors.Is(err, unix.EPERM) || errors.Is(err, fs.ErrPermission) {
			a.Mend = "run bulkhead doctor with sudo"
		}
		if len(who) > 0 {
			a.Found = strings.Join(who, ", ") + "; " + a.Found
		}
		return a
	}
	for _, t := range tables {
		if t != ours {
			add("table " + t.String())
		}
	}
	if len(who) == 0 {
		return Answer{State: OK, Found: "nobody", Where: where}
	}
	return Answer{State: Weak, Found: strings.Join(who, ", "), Where: where}
}

func hasLine(text, want string) bool {
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == want {
			return true
		}
	}
	return false
}

const nftConf = "/etc/nftables.conf"

func flusher(_ context.Context, h Host) Answer {
	if o := h.release(); !o.family() {
		return Answer{State: NotSupported, Found: "where its rules lie is not known on " + o.String(), Where: nftConf}
	}
	enabled := ""
	for _, target := range []string{"sysinit", "multi-user"} {
		if f := "/etc/systemd/system/" + target + ".target.wants/nftables.service"; h.exists(f) {
			enabled = f
		}
	}
	if enabled == "" {
		return Answer{State: OK, Found: "not enabled", Where: "/etc/systemd/system"}
	}
	s, err := h.text(nftConf)
	if err != nil {
		return unread(nftConf, err)
	}
	for line := range strings.Lines(s) {
		line, _, _ = strings.Cut(line, "#")
		if strings.Contains(strings.Join(strings.Fields(line), " "), "flush ruleset") {
			return Answer{State: Weak, Found: "enabled, and flushes everything", Where: enabled + ", " + nftConf}
		}
	}
	return Answer{State: OK, Found: "enabled; flushes only its own", Where: enabled + ", " + nftConf}
}

func nameServers(_ context.Context, h Host) Answer {
	const where = "/etc/resolv.conf"
	s, err := h.text(where)
	if absent(err) {
		return Answer{State: Weak, Found: "not there: this host itself is asked", Where: where}
	}
	if err != nil {
		return unread(where, err)
	}
	var servers []string
	for line := range strings.Lines(s) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "nameserver" {
			servers = append(servers, f[1])
		}
	}
	if len(servers) == 0 {
		return Answer{State: Weak, Found: "names none: this host itself is asked (resolv.conf(5))", Where: where}
	}
	return Answer{State: OK, Found: strings.Join(servers, ", "), Where: where}
}
