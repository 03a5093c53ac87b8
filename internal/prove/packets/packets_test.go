package packets

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/host/nft"
	"bulkhead/internal/layout"
	"bulkhead/test/system/throwaway"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// load replaces the ruleset of the throwaway host.
func load(t *testing.T, rules string) *Ruleset {
	t.Helper()
	if out, err := nftLoad(t, rules); err != nil {
		t.Fatalf("%v: %s\n%s", err, out, rules)
	}
	r, err := Read()
	must(t, err)
	return r
}

func nftLoad(t *testing.T, rules string) (string, error) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "nft", "-f", "-")
	c.Stdin = strings.NewReader("flush ruleset\n" + strings.NewReplacer("; } }", "\n}\n}", " } }", "\n}\n}", "; }", "\n}").Replace(rules))
	out, err := c.CombinedOutput()
	return string(out), err
}

func texts(boxes []Box) []string {
	var out []string
	for _, b := range boxes {
		s := b.String()
		if b.Guess {
			s += " (at most)"
		}
		out = append(out, s)
	}
	return out
}

func TestOurOwnTableLetsOutExactlyThePins(t *testing.T) {
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		table, err := nft.Open()
		must(t, err)
		defer func() { _ = table.Close() }()
		must(t, table.Apply(t.Context(), nft.Want{Servers: []nft.Server{{ID: 700, Listen: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8484"), netip.MustParseAddrPort("[::1]:8484")}}}}))
		front, err := Read()
		must(t, err)
		answers, err := front.Accepted(front.Table(INet, nft.Name), 700)
		must(t, err)
		if want := []string{
			"tcp 0.0.0.0-255.255.255.255 port 0-65535 without SYN from 127.0.0.1 port 8484",
			"tcp ::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff port 0-65535 without SYN from ::1 port 8484",
		}; !slices.Equal(texts(answers), want) {
			t.Errorf("a server's answers:\n%s", strings.Join(texts(answers), "\n"))
		}
		ids := func(n uint32) layout.IDs {
			return layout.IDs{Account: 900 + n, Dialer: 800 + n, Base: 1000000 + n*layout.RangeSize}
		}
		must(t, table.Apply(t.Context(), nft.Want{
			Agents:  []nft.Binding{{Account: "bh-t-a", IDs: ids(0)}, {Account: "bh-t-b", IDs: ids(1)}},
			Refused: []nft.Range{{First: 700, Last: 900}},
		}))
		must(t, table.Pin("bh-t-a", "x:443", []netip.AddrPort{netip.MustParseAddrPort("203.0.113.7:443"), netip.MustParseAddrPort("[2001:db8::1]:8443")}, time.Minute))
		r, err := Read()
		must(t, err)
		ours := r.Table(INet, nft.Name)
		got, err := r.Accepted(ours, 800)
		must(t, err)
		want := []string{
			"tcp 203.0.113.7 port 443 with SYN", "tcp 203.0.113.7 port 443 without SYN",
			"tcp 2001:db8::1 port 8443 with SYN", "tcp 2001:db8::1 port 8443 without SYN",
		}
		if !slices.Equal(texts(got), want) {
			t.Errorf("agent a's dialer:\n%s", strings.Join(texts(got), "\n"))
		}
		for what, id := range map[string]uint32{
			"the other dialer": 801, "an account": 900, "an account's range": 1000000 + 1999, "its last id": ids(1).Last(), "the block of dialers": 750,
		} {
			if got, err := r.Accepted(ours, id); err != nil || len(got) > 0 {
				t.Errorf("%s: %v %v", what, texts(got), err)
			}
		}
		if got, err := r.Accepted(ours, 5000); err != nil || len(got) != 6 { // TCP, what comes before and what after it; both families
			t.Errorf("somebody else: %v %v", texts(got), err)
		}
		if d, err := r.Detours(ours, 800, got); err != nil || len(d) > 0 {
			t.Errorf("detours %v %v", d, err)
		}
	})
}

func TestWhatOtherRulesDoIsSeen(t *testing.T) {
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		const frame = "table inet x { %s\n chain out { type filter hook output priority 0; policy %s; %s } }"
		for name, tc := range map[string]struct {
			parts, policy, rules string
			want                 []string
		}{
			"intervals":     {"", "drop", "ip daddr 10.0.0.0/8 tcp dport 1000-2000 accept", []string{"tcp 10.0.0.0-10.255.255.255 port 1000-2000"}},
			"not an id":     {"", "drop", "meta skuid != 7 accept", nil},
			"ids by range":  {"", "drop", "meta skuid 5-9 udp dport 53 accept", []string{"udp 0.0.0.0-255.255.255.255 port 53", "udp ::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff port 53"}},
			"a guess":       {"", "drop", "meta mark 5 ip daddr 10.0.0.1 tcp dport 1 accept", []string{"tcp 10.0.0.1 port 1 (at most)"}},
			"a set":         {"set s { type ipv4_addr . inet_service; flags interval; elements = { 10.1.0.0/16 . 1-5, 10.2.0.1 . 9 } }", "drop", "ip daddr . udp dport @s accept", []string{"udp 10.1.0.0-10.1.255.255 port 1-5", "udp 10.2.0.1 port 9"}},
			"holes":         {"", "drop", "ip daddr 10.0.0.5 drop; ip daddr 10.0.0.4-10.0.0.6 accept", []string{"protocols 0-255 10.0.0.4 port 0-65535", "protocols 0-255 10.0.0.6 port 0-65535"}},
			"jumps":         {"chain y { ip daddr 10.0.0.1 return; accept; }", "drop", "ip daddr 10.0.0.0/31 jump y; meta l4proto icmp ip daddr 10.0.0.1 accept", []string{"protocols 0-255 10.0.0.0 port 0-65535", "protocol 1 10.0.0.1 port 0-65535"}},
			"goto":          {"chain y { ip daddr 10.0.0.1 accept; }", "drop", "ip daddr 10.0.0.0/31 goto y; accept", nil},
			"a verdict map": {"map m { type inet_service : verdict; elements = { 80 : accept, 81 : drop } }", "drop", "ip daddr 10.0.0.1 tcp dport vmap @m", []string{"tcp 10.0.0.1 port 80"}},
			"an inverse":    {"", "drop", "ip daddr 10.0.0.1 tcp dport != { 1-79, 81-65535 } accept", []string{"tcp 10.0.0.1 port 0", "tcp 10.0.0.1 port 80"}},
		} {
			t.Run(name, func(t *testing.T) {
				if name == "goto" {
					tc.want = nil // compared below
				}
				r := load(t, fmt.Sprintf(frame, tc.parts, tc.policy, tc.rules))
				got, err := r.Accepted(r.Table(INet, "x"), 7)
				must(t, err)
				if name == "goto" {
					if slices.ContainsFunc(got, func(b Box) bool { return b.First == netip.MustParseAddr("10.0.0.0") }) {
						t.Errorf("after a goto the chain goes on: %v", texts(got))
					}
					return
				}
				if !slices.Equal(texts(got), tc.want) {
					t.Errorf("got\n%s\nwant\n%s", strings.Join(texts(got), "\n"), strings.Join(tc.want, "\n"))
				}
			})
		}
		for name, rules := range map[string]string{
			"translation":  "table ip n { chain o { type nat hook output priority -100; ip daddr 203.0.113.7 dnat to 10.0.0.1; } }",
			"a mark":       "table inet n { chain o { type route hook output priority 0; meta skuid 7 meta mark set 5; } }",
			"a program":    "table inet n { chain o { type filter hook output priority 0; queue num 1; } }",
			"a copy":       "table ip n { chain o { type filter hook output priority 0; dup to 10.0.0.9; } }",
			"a masquerade": "table ip n { chain o { type nat hook postrouting priority 100; masquerade; } }",
		} {
			t.Run(name, func(t *testing.T) {
				if out, err := nftLoad(t, rules); err != nil && strings.Contains(out, "No such file") {
					t.Skip("expected: this kernel has not what the rule would use")
				}
				r := load(t, rules)
				d, err := r.Detours(nil, 7, both())
				if err != nil || len(d) == 0 {
					t.Errorf("%v %v", d, err)
				}
				if d, err := r.Detours(nil, 7, nil); err != nil || len(d) > 0 {
					t.Errorf("of no packet: %v %v", d, err)
				}
			})
		}
	})
}

// TestTheKernelAgrees makes rules at random and sends packets at random: what
// the kernel lets out must lie in the answer, and what lies in it for certain
// must be let out.
func TestTheKernelAgrees(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		if out, err := exec.CommandContext(t.Context(), "sh", "-c", "ip link set lo up; ip route add local 198.18.0.0/24 dev lo").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		rnd := rand.New(rand.NewPCG(5, 6))
		let, refused := 0, 0
		for range rounds {
			rules := randomRules(rnd)
			for { // some conditions contradict each other, which nft refuses
				if _, err := nftLoad(t, rules); err == nil {
					break
				}
				rules = randomRules(rnd)
			}
			r, err := Read()
			must(t, err)
			boxes, err := r.Accepted(r.Table(INet, "x"), 7)
			must(t, err)
			for range 40 {
				to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, 0, byte(rnd.IntN(8))}), uint16(1+rnd.IntN(8)))
				from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, 0, byte(rnd.IntN(8))}), uint16(1+rnd.IntN(8)))
				out := sends(t, 7, from, to)
				in, certain := false, false
				for _, b := range boxes {
					p := Box{
						Proto: Range{17, 17}, First: to.Addr(), Last: to.Addr(), Port: Range{uint32(to.Port()), uint32(to.Port())},
						From: from.Addr(), Until: from.Addr(), SourcePort: Range{uint32(from.Port()), uint32(from.Port())},
					}
					if b.Holds(p) {
						in, certain = true, certain || !b.Guess
					}
				}
				if out && !in || !out && certain {
					t.Fatalf("from %s to %s: let out %v, in the answer %v (certain %v)\n%s\n%s", from, to, out, in, certain, rules, strings.Join(texts(boxes), "\n"))
				}
				if out {
					let++
				} else {
					refused++
				}
			}
		}
		if let < rounds || refused < rounds {
			t.Errorf("%d packets were let out, %d refused: the rules are too much alike", let, refused)
		}
	})
}

func randomRules(r *rand.Rand) string {
	address := func() string {
		a, b := r.IntN(8), r.IntN(8)
		return fmt.Sprintf("198.18.0.%d-198.18.0.%d", min(a, b), max(a, b)+1)
	}
	ports := func() string {
		a, b := 1+r.IntN(8), 1+r.IntN(8)
		return fmt.Sprintf("%d-%d", min(a, b), max(a, b)+1)
	}
	condition := func() string {
		switch r.IntN(12) {
		case 0:
			return "meta skuid { 3, 7 }"
		case 1:
			return "meta skuid != 7"
		case 2:
			return "ip daddr " + address()
		case 3:
			return "udp dport " + ports()
		case 4:
			return []string{"ip daddr != " + address(), fmt.Sprintf("ip daddr 198.18.0.%d/%d", 2*r.IntN(4), 29+r.IntN(4)), "ip daddr 198.18.0.0/16"}[r.IntN(3)]
		case 5:
			return "meta l4proto tcp"
		case 6:
			return "ip daddr . udp dport { " + address() + " . " + ports() + " }"
		case 7:
			return "meta mark 0"
		case 8:
			return "ip saddr " + address()
		case 9:
			return "udp sport " + ports()
		case 10:
			return "ip saddr . udp sport . ip daddr { " + address() + " . " + ports() + " . " + address() + " }"
		}
		return "meta nfproto ipv4 udp dport >= " + fmt.Sprint(1+r.IntN(8))
	}
	verdict := func(deep bool) string {
		v := []string{"accept", "drop", "return", "continue", "jump y", "goto y"}
		if deep {
			v = v[:4]
		}
		return v[r.IntN(len(v))]
	}
	chain := func(deep bool) string {
		var b strings.Builder
		for range 1 + r.IntN(5) {
			fmt.Fprintf(&b, "%s %s %s\n", condition(), condition(), verdict(deep))
		}
		return b.String()
	}
	policy := []string{"accept", "drop"}[r.IntN(2)]
	return fmt.Sprintf("table inet x {\nchain y {\n%s}\nchain out { type filter hook output priority 0; policy %s;\n%s}\n}\n", chain(true), policy, chain(false))
}

// sends says whether the kernel lets one UDP packet of an id out.
func sends(t *testing.T, uid int, from, to netip.AddrPort) bool {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread takes another id, and is thrown away
		done <- func() error {
			// skuid is the file system id of whoever opened the socket.
			if _, _, n := unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0); n != 0 {
				return n
			}
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			if err := unix.Bind(fd, &unix.SockaddrInet4{Port: int(from.Port()), Addr: from.Addr().As4()}); err != nil {
				return fmt.Errorf("bind to %s: %s", from, err.Error()) // no %w: EPERM here would say nothing of rules
			}
			return unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
		}()
	}()
	err := <-done
	if err != nil && !errors.Is(err, unix.EPERM) {
		t.Fatalf("send to %s: %v", to, err)
	}
	return err == nil
}

func FuzzElements(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4}, uint32(4), 4)
	f.Fuzz(func(_ *testing.T, data []byte, flags uint32, n int) {
		if n < 1 || n > 64 {
			return
		}
		s := Set{Flags: flags, KeyLen: n}
		at, err := attrs(data, 0)
		if err != nil {
			return
		}
		if s.addElements(INet, at) == nil {
			_ = s.close()
		}
	})
}
