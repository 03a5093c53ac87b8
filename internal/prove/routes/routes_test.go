package routes

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"bulkhead/test/system/throwaway"
)

func sh(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "sh", "-ec", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// found asks everything about one address, as prove does.
func found(t *testing.T, uid uint32, to string) (interfaces string, between, odd []string) {
	t.Helper()
	h, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}()
	w := h.Way(uid, netip.MustParseAddrPort(to))
	between, err = h.Between(w.Interfaces)
	if err != nil {
		t.Fatal(err)
	}
	return h.Names(w.Interfaces), between, w.Odd
}

// TestWhatLiesOnTheWayIsFound sets things up with the tools that operators use, in
// the network of a throwaway host.
func TestWhatLiesOnTheWayIsFound(t *testing.T) {
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		sh(t, `ip link add name lan type veth peer name lan-end; ip addr add 198.51.100.2/24 dev lan; ip addr add 2001:db8::2/64 dev lan nodad; ip link set lan-end up; ip link set lan up
ip link add name vpn type veth peer name vpn-end; ip addr add 198.51.101.2/24 dev vpn; ip link set vpn-end up; ip link set vpn up
ip link add name br type bridge; ip link add name port type veth peer name port-end; ip link set dev port master br; ip addr add 198.51.102.2/24 dev br; ip link set dev port up; ip link set port-end up; ip link set dev br up`)
		names, between, odd := found(t, 1000, "198.51.100.9:443")
		if !strings.Contains(names, "lan") || strings.Contains(names, "vpn") || len(between) != 0 || len(odd) != 0 {
			t.Fatalf("a plain host: %q, %v, %v", names, between, odd)
		}
		for _, tc := range []struct{ name, set, unset, to, between, odd string }{
			{"a filter at clsact's egress", "tc qdisc add dev lan clsact; tc filter add dev lan egress u32 match u32 0 0", "tc qdisc del dev lan clsact", "198.51.100.9:443", "interface lan has a filter u32", ""},
			{"a filter of a bridge's port", "tc qdisc add dev port clsact; tc filter add dev port egress u32 match u32 0 0", "tc qdisc del dev port clsact", "198.51.102.9:443", "interface port has a filter u32", ""},
			{"a filter at the ingress, which is not on the way out", "tc qdisc add dev lan clsact; tc filter add dev lan ingress u32 match u32 0 0", "tc qdisc del dev lan clsact", "198.51.100.9:443", "", ""},
			{"a filter of a class", "tc qdisc add dev lan root handle 1: htb; tc class add dev lan parent 1: classid 1:1 htb rate 1mbit; tc filter add dev lan parent 1:1 u32 match u32 0 0", "tc qdisc del dev lan root", "2001:db8::9|443", "interface lan has a filter u32", ""},
			{"a rule for one user", "ip rule add uidrange 1000-1000 lookup 77; ip route add default dev vpn table 77; tc qdisc add dev vpn clsact; tc filter add dev vpn egress u32 match u32 0 0", "ip rule del uidrange 1000-1000 lookup 77; ip route flush table 77; tc qdisc del dev vpn clsact", "198.51.100.9:443", "interface vpn has a filter u32", ""},
			{"a rule for another user", "ip rule add uidrange 1001-1001 lookup 77; ip route add local default dev lo table 77", "ip rule del uidrange 1001-1001 lookup 77; ip route flush table 77", "198.51.100.9:443", "", ""},
			{"a rule for a mark, which these packets lack", "ip rule add fwmark 1 lookup 77; ip route add local default dev lo table 77", "ip rule del fwmark 1 lookup 77; ip route flush table 77", "198.51.100.9:443", "", ""},
			{"a rule that delivers everything here", "ip rule add from all lookup 77; ip route add local default dev lo table 77", "ip rule del from all lookup 77; ip route flush table 77", "198.51.100.9:443", "", "route to 0.0.0.0/0 in table 77 delivers to this host itself"},
			{"a rule for what has no mark, as VPNs set it", "ip rule add not fwmark 7 lookup 77; ip route add local default dev lo table 77", "ip rule del not fwmark 7 lookup 77; ip route flush table 77", "198.51.100.9:443", "", "in table 77 delivers to this host itself"},
			{"a range that is this host's", "ip route add local 198.51.100.0/28 dev lo table local", "ip route del local 198.51.100.0/28 dev lo table local", "198.51.100.9:443", "", "delivers a whole range"},
			{"an IPsec policy", "ip xfrm policy add dst 198.51.100.9/32 dir out tmpl dst 198.51.100.7 proto esp mode tunnel", "ip xfrm policy flush", "198.51.100.9:443", "1 IPsec policies", ""},
		} {
			t.Run(tc.name, func(t *testing.T) {
				sh(t, tc.set)
				defer sh(t, tc.unset)
				to := tc.to
				if addr, port, ok := strings.Cut(to, "|"); ok {
					to = "[" + addr + "]:" + port
				}
				_, between, odd := found(t, 1000, to)
				for _, c := range []struct {
					got  []string
					want string
				}{{between, tc.between}, {odd, tc.odd}} {
					if tc := strings.Join(c.got, "; "); c.want == "" && tc != "" || !strings.Contains(tc, c.want) {
						t.Errorf("found %q, want %q", tc, c.want)
					}
				}
			})
		}
		for _, tc := range []struct {
			name         string
			kind, attach uint32
			want         string
		}{
			{"a TCX program", 3, tcxEgress, "interface lan has 1 BPF programs at tcx"},
			{"an XDP program", 6, 37, "interface lan has an XDP program"},
		} {
			t.Run(tc.name, func(t *testing.T) {
				lan, err := net.InterfaceByName("lan")
				if err != nil {
					t.Fatal(err)
				}
				defer attach(t, program(t, tc.kind, tc.attach), uint32(lan.Index), tc.attach)()
				if _, between, _ := found(t, 1000, "198.51.100.9:443"); !slices.Contains(between, tc.want) {
					t.Errorf("found %v", between)
				}
			})
		}
		t.Run("programs of a cgroup, and of the one above it", func(t *testing.T) {
			top, err := openCgroup("/")
			if err != nil {
				t.Skipf("expected: %v", err)
			}
			defer func() { _ = unix.Close(top) }()
			name := fmt.Sprintf("bulkhead-routes-%d", os.Getpid())
			for _, dir := range []string{name, name + "/child"} {
				if err := unix.Mkdirat(top, dir, 0o755); err != nil {
					t.Skipf("expected: %v", err)
				}
				defer func() { _ = unix.Unlinkat(top, dir, unix.AT_REMOVEDIR) }()
			}
			open := func(dir string) int {
				fd, err := unix.Openat(top, dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
				if err != nil {
					t.Fatal(err)
				}
				return fd
			}
			group, child := open(name), open(name+"/child")
			defer func() { _, _ = unix.Close(group), unix.Close(child) }()
			if list, err := programsOf(child, "child"); err != nil || len(list) != 0 {
				t.Fatalf("before: %v, %v", list, err)
			}
			const connect4 = 10
			end := attach(t, program(t, 18, connect4), uint32(group), connect4)
			for fd, name := range map[int]string{group: "group", child: "child"} {
				if list, err := programsOf(fd, name); err != nil || !slices.Equal(list, []string{"cgroup " + name + " has 1 BPF programs at connect4"}) {
					t.Errorf("%s: %v, %v", name, list, err)
				}
			}
			end()
		})
		t.Run("the cgroup of a process can be asked", func(t *testing.T) {
			list, err := CgroupPrograms(os.Getpid())
			if err != nil || len(list) != 0 {
				t.Errorf("%v, %v", list, err)
			}
		})
	})
}

// program loads the shortest program of a kind: it returns 1.
func program(t *testing.T, kind, attach uint32) int {
	t.Helper()
	code := []uint64{0x00000001_000000b7, 0x95} // r0 = 1; exit
	license := []byte("GPL\x00")
	attr := struct {
		kind, count     uint32
		code, license   uint64
		logLevel, size  uint32
		log             uint64
		version, flags  uint32
		name            [16]byte
		ifindex, attach uint32
	}{kind: kind, count: uint32(len(code)), code: uint64(uintptr(unsafe.Pointer(&code[0]))), license: uint64(uintptr(unsafe.Pointer(&license[0]))), attach: attach}
	const load = 5 // BPF_PROG_LOAD
	fd, _, errno := unix.Syscall(unix.SYS_BPF, load, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	runtime.KeepAlive(code)
	runtime.KeepAlive(license)
	if errno != 0 {
		t.Skipf("expected: this kernel loads no BPF program: %v", errno)
	}
	return int(fd)
}

// attach links a program to an interface or cgroup; the link ends with end.
func attach(t *testing.T, program int, target, kind uint32) (end func()) {
	t.Helper()
	defer func() { _ = unix.Close(program) }()
	attr := struct {
		program, target, kind, flags uint32
		rest                         [4]uint64
	}{program: uint32(program), target: target, kind: kind}
	const create = 28 // BPF_LINK_CREATE
	fd, _, errno := unix.Syscall(unix.SYS_BPF, create, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		t.Skipf("expected: this kernel attaches no such program: %v", errno)
	}
	return func() { _ = unix.Close(int(fd)) }
}

func TestTheGroupOfVersion2IsFound(t *testing.T) {
	for text, want := range map[string]string{
		"9:name=systemd:/\n0::/\n": "/", "0::/system.slice/x.service\n": "/system.slice/x.service", "1:cpu:/a\n": "", "0::/../above\n": "", "": "",
	} {
		if got, ok := unified(text); ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q, %v", text, got, ok)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(make([]byte, 12))
	f.Add(append(make([]byte, 12), 8, 0, 15, 0, 77, 0, 0, 0))
	f.Add(append(make([]byte, 16), 20, 0, 43, 0, 5, 0, 2, 0, 1, 0, 0, 0))
	f.Fuzz(func(t *testing.T, body []byte) {
		to := netip.MustParseAddrPort("192.0.2.1:443")
		if r, err := parseRule(body); err == nil {
			r.mayApply(7, to)
		}
		if r, err := parseRoute(body); err == nil && !r.dst.IsValid() && r.family == unix.AF_INET {
			t.Fatalf("a route without a destination: %v", r)
		}
		if l, err := parseLink(body); err == nil && slices.Contains([]string{"\x00"}, l.name) {
			t.Fatal("a name holds a NUL")
		}
		_, _, _ = parseTCM(body)
	})
}
