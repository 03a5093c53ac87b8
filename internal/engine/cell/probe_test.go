package cell_test

import (
	"net"
	"runtime"
	"strings"
	"testing"

	"bulkhead/internal/engine"
)

// TestKernelRefusesWhatTheProfileForbids runs a real program in each role.
func TestKernelRefusesWhatTheProfileForbids(t *testing.T) {
	inHost(t, func(t *testing.T, b *bench) {
		build(t, "bulkhead/internal/engine/cell/testdata/probe", "/var/lib/bulkhead/programs/t/probe")
		// An abstract socket of the host, reachable from every network namespace
		// that is the same: the decoy's, which stays in the host's.
		l, err := net.Listen("unix", "@bulkhead-test-outside")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		probe := func(role engine.Role, change func(*engine.Spec)) string {
			s := b.spec("probe-"+string(role), "")
			s.Role, s.Command = role, []string{"/bulkhead/probe"}
			s.Mounts = append(s.Mounts, engine.Mount{Kind: engine.MountBind, Source: "/var/lib/bulkhead/programs/t", Target: "/bulkhead", Exec: true})
			change(&s)
			out, exit := b.run(s)
			if exit.Code != 0 {
				t.Errorf("%s: %v\n%s", role, exit, out)
			}
			return out
		}
		has := func(role, out string, lines ...string) {
			t.Helper()
			for _, want := range lines {
				if !strings.Contains(out, want+"\n") {
					t.Errorf("%s: missing %q in\n%s", role, want, out)
				}
			}
		}
		everywhere := []string{
			"vsock EAFNOSUPPORT", "vsock-high-bit EAFNOSUPPORT", "packet EAFNOSUPPORT", "netlink-audit EPROTONOSUPPORT", "mptcp EPROTONOSUPPORT",
			"packet-by-inet EPERM", "dccp-by-type EPERM", "ping EPROTONOSUPPORT", "ping6 EPROTONOSUPPORT",
			"unshare EPERM", "clone-newuser EPERM", "clone3 ENOSYS", "setns EPERM", "mount EPERM", "umount EPERM", "open_tree EPERM", "fsopen EPERM",
			"ptrace EPERM", "process_vm_readv EPERM", "pidfd_getfd EPERM", "keyctl EPERM", "add_key EPERM", "bpf EPERM", "perf EPERM", "io_uring EPERM",
			"userfaultfd EPERM", "open_by_handle_at EPERM", "personality EPERM", "tiocsti EPERM", "tiocsti-high-bit EPERM", "sethostname EPERM", "setuid-0 EINVAL",
		}
		if runtime.GOARCH == "amd64" {
			everywhere = append(everywhere, "x32: signal: bad system call")
		}
		runtimeOut := probe(engine.RoleRuntime, func(*engine.Spec) {})
		has("runtime", runtimeOut, everywhere...)
		has("runtime", runtimeOut, "connect: dial tcp 127.0.0.1:1: connect: connection refused", "listen: <nil>")
		gatewayOut := probe(engine.RoleGateway, func(*engine.Spec) {})
		has("gateway", gatewayOut, everywhere...)
		has("gateway", gatewayOut, "connect: dial tcp 127.0.0.1:1: connect: permission denied")
		if !strings.Contains(gatewayOut, "listen: listen tcp 127.0.0.1:0: bind: operation not permitted") {
			t.Errorf("gateway: it may listen\n%s", gatewayOut)
		}
		// The control of Landlock's scope: the same network, with and without it.
		shared := func(off ...engine.Mechanism) func(*engine.Spec) {
			return func(s *engine.Spec) { s.Decoy, s.Off = true, append(off, engine.MechNetNS) }
		}
		if out := probe(engine.RoleRun, shared()); !strings.Contains(out, "abstract: dial unix @bulkhead-test-outside: connect: operation not permitted") {
			t.Errorf("an abstract socket of the host is in reach:\n%s", out)
		}
		has("without Landlock", probe(engine.RoleRun, shared(engine.MechLandlock)), "abstract: <nil>")
	})
}
