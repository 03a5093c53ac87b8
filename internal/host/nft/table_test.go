package nft_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/host/nft"
	"bulkhead/internal/layout"
	"bulkhead/test/system/throwaway"
)

var (
	writer   = nft.Binding{Account: "bh-t-writer", IDs: layout.IDs{Account: 2001, Base: 200000, Dialer: 700001}}
	reader   = nft.Binding{Account: "bh-t-reader", IDs: layout.IDs{Account: 2002, Base: 300000, Dialer: 700002}}
	resolver = nft.Resolver{ID: 700003, Servers: []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("fe80::1%eth0")}}
	both     = nft.Want{Agents: []nft.Binding{writer, reader}, Refused: []nft.Range{{First: 700000, Last: 700999}}, Resolver: &resolver}
)

// as runs fn on a thread that has become id, and drops the thread.
func as(id uint32, fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread with the goroutine
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(id), uintptr(id), uintptr(id)); e != 0 {
			done <- e
			return
		}
		done <- fn()
	}()
	return <-done
}

func sockaddr(a netip.AddrPort) (int, unix.Sockaddr) {
	if a.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// connect makes a socket as id and connects it.
func connect(t *testing.T, id uint32, a netip.AddrPort) (int, error) {
	t.Helper()
	fd := -1
	err := as(id, func() error {
		family, sa := sockaddr(a)
		var err error
		if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 2})
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2})
		err = unix.Connect(fd, sa)
		// Go's own signals interrupt it on a slow machine; it goes on by itself
		// (connect(2), EINTR).
		for errors.Is(err, unix.EINTR) {
			if _, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 2000); err != nil {
				continue
			}
			n, serr := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
			if err = serr; err == nil && n != 0 {
				err = unix.Errno(n)
			}
		}
		return err
	})
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd, err
}

func listen(t *testing.T, a string) netip.AddrPort {
	t.Helper()
	ln, err := net.Listen("tcp", a)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				b := make([]byte, 64)
				for {
					n, err := c.Read(b)
					if err != nil {
						_ = c.Close()
						return
					}
					_, _ = c.Write(b[:n])
				}
			}()
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); <-done })
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

func open(t *testing.T) *nft.Table {
	t.Helper()
	tab, err := nft.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tab.Close() })
	return tab
}

func run(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", argv, err, out)
	}
	return string(out)
}

func inForce(t *testing.T, tab *nft.Table, account string) nft.State {
	t.Helper()
	s, err := tab.Inspect(account)
	if err != nil {
		t.Fatal(err)
	}
	if !s.InForce {
		t.Fatalf("%s is not in force: %v", account, s.Difference)
	}
	return s
}

func refused(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EPERM) {
		t.Fatalf("%s: %v, want it refused at once", what, err)
	}
}

func TestKernelJudgesByTheIDThatMadeTheSocket(t *testing.T) {
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		run(t, "ip", "-6", "addr", "add", "2001:db8::10/128", "dev", "lo", "nodad")
		run(t, "nft", "add table inet other; add chain inet other keep")
		tab := open(t)
		if err := tab.Apply(t.Context(), both); err != nil {
			t.Fatal(err)
		}
		if err := tab.Apply(t.Context(), both); err != nil {
			t.Fatalf("again: %v", err)
		}
		for _, family := range []struct{ name, listed, unlisted string }{
			{"IPv4", "203.0.113.10:0", "127.0.0.1:0"}, {"IPv6", "[2001:db8::10]:0", "[::1]:0"},
		} {
			t.Run(family.name, func(t *testing.T) {
				good, other := listen(t, family.listed), listen(t, family.unlisted)
				_, err := connect(t, writer.IDs.Dialer, good)
				refused(t, "before the pin", err)
				if err := tab.Pin(writer.Account, "good:1", []netip.AddrPort{good}, time.Minute); err != nil {
					t.Fatal(err)
				}
				fd, err := connect(t, writer.IDs.Dialer, good)
				if err != nil {
					t.Fatalf("pinned: %v", err)
				}
				echo(t, fd)
				if _, err := connect(t, 0, other); err != nil {
					t.Fatalf("root, whom the table must not touch: %v", err)
				}
				for what, id := range map[string]uint32{
					"the other agent's dialer": reader.IDs.Dialer, "the account itself": writer.IDs.Account,
					"the runtime": writer.IDs.Runtime(), "the first id of the range": writer.IDs.Base,
					"the last id of the range": writer.IDs.Last(), "a dialer id without an agent": 700500, "the resolver": resolver.ID,
				} {
					_, err := connect(t, id, good)
					refused(t, what, err)
				}
				_, err = connect(t, writer.IDs.Last()+1, good)
				if err != nil {
					t.Fatalf("the id after the range is nobody of ours: %v", err)
				}
				_, err = connect(t, writer.IDs.Dialer, other)
				refused(t, "loopback", err)

				t.Run("passed socket aimed elsewhere", func(t *testing.T) {
					if _, _, e := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), ptr(make([]byte, 16)), 16); e != 0 { // AF_UNSPEC
						t.Fatal(e)
					}
					_, sa := sockaddr(other)
					refused(t, "aimed elsewhere", unix.Connect(fd, sa))
				})
				t.Run("passed socket turned listener", func(t *testing.T) {
					fd, err := connect(t, writer.IDs.Dialer, good)
					if err != nil {
						t.Fatal(err)
					}
					if _, _, e := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), ptr(make([]byte, 16)), 16); e != 0 {
						t.Fatal(e)
					}
					if err := unix.Listen(fd, 1); err != nil {
						t.Fatal(err)
					}
					sa, err := unix.Getsockname(fd)
					if err != nil {
						t.Fatal(err)
					}
					port := 0
					switch sa := sa.(type) {
					case *unix.SockaddrInet4:
						port = sa.Port
					case *unix.SockaddrInet6:
						port = sa.Port
					}
					d := net.Dialer{Timeout: 500 * time.Millisecond}
					c, err := d.Dial("tcp", netip.AddrPortFrom(other.Addr(), uint16(port)).String())
					if err == nil {
						_ = c.Close()
						t.Fatal("the listener answered: its SYN+ACK passed")
					}
				})
				t.Run("revoked destination ends its connections", func(t *testing.T) {
					fd, err := connect(t, writer.IDs.Dialer, good)
					if err != nil {
						t.Fatal(err)
					}
					echo(t, fd)
					if err := tab.Pin(writer.Account, "alias:1", []netip.AddrPort{good}, time.Minute); err != nil {
						t.Fatal(err)
					}
					if err := tab.Unpin(writer.Account, "good:1"); err != nil {
						t.Fatal(err)
					}
					echo(t, fd) // alias:1 still needs the address
					if err := tab.Unpin(writer.Account, "alias:1"); err != nil {
						t.Fatal(err)
					}
					// The reset tells whichever call comes first after it: a late
					// acknowledgement of the echo draws it before the write.
					_, err = unix.Write(fd, []byte("x"))
					if err == nil {
						_, err = unix.Read(fd, make([]byte, 1))
					}
					if !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ECONNREFUSED) {
						t.Fatalf("a revoked connection reads %v, want it reset", err)
					}
					_, err = connect(t, writer.IDs.Dialer, good)
					refused(t, "revoked", err)
				})
				t.Run("connection outlives its pin", func(t *testing.T) {
					if err := tab.Pin(writer.Account, "good:1", []netip.AddrPort{good}, time.Minute); err != nil {
						t.Fatal(err)
					}
					if err := tab.Pin(writer.Account, "good:1", []netip.AddrPort{good}, 300*time.Millisecond); err != nil {
						t.Fatal(err)
					}
					fd, err := connect(t, writer.IDs.Dialer, good)
					if err != nil {
						t.Fatal(err)
					}
					for i := 0; err == nil; i++ {
						if i > 100 {
							t.Fatal("the pin does not expire")
						}
						time.Sleep(50 * time.Millisecond)
						_, err = connect(t, writer.IDs.Dialer, good)
					}
					refused(t, "expired", err)
					echo(t, fd)
				})
			})
		}
		t.Run("the dialer's UDP", func(t *testing.T) {
			err := as(writer.IDs.Dialer, func() error {
				c, err := net.Dial("udp", "203.0.113.10:53")
				if err != nil {
					return err
				}
				defer func() { _ = c.Close() }()
				_, err = c.Write([]byte("x"))
				return err
			})
			refused(t, "UDP", err)
		})
		t.Run("the resolver reaches its servers' port 53 only", func(t *testing.T) {
			dns := listen(t, "203.0.113.10:53")
			if _, err := connect(t, resolver.ID, dns); err != nil {
				t.Fatal(err)
			}
			_, err := connect(t, resolver.ID, listen(t, "203.0.113.11:53"))
			refused(t, "another server", err)
			_, err = connect(t, writer.IDs.Dialer, dns)
			refused(t, "the dialer at the DNS server", err)
		})
		if s := inForce(t, tab, writer.Account); s.Refused == 0 || s.Rules != 6 {
			t.Fatalf("counters and rules read back: %+v", s)
		}
		if out := run(t, "nft", "list tables"); !strings.Contains(out, "inet other") {
			t.Fatalf("a foreign table is gone:\n%s", out)
		}
		t.Log(run(t, "nft", "list table inet bulkhead"))
	})
}

func ptr(b []byte) uintptr { return uintptr(unsafePointer(b)) }

func echo(t *testing.T, fd int) {
	t.Helper()
	if _, err := unix.Write(fd, []byte("ping")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4)
	if n, err := unix.Read(fd, b); err != nil || n == 0 {
		t.Fatalf("no echo: %d, %v", n, err)
	}
}

// quiet returns once nothing has come for a second.
func quiet(changed <-chan struct{}) {
	for {
		select {
		case <-changed:
		case <-time.After(time.Second):
			return
		}
	}
}

func TestForeignChangesAreSeenAndRestored(t *testing.T) {
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		tab := open(t)
		if err := tab.Apply(t.Context(), both); err != nil {
			t.Fatal(err)
		}
		good := listen(t, "203.0.113.10:0")
		if err := tab.Pin(writer.Account, "good:1", []netip.AddrPort{good}, time.Minute); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		started, changed, ended := make(chan struct{}), make(chan struct{}, 64), make(chan error, 1)
		go func() {
			ended <- tab.Watch(ctx, started, func() {
				if err := tab.Restore(ctx); err != nil {
					t.Error(err)
				}
				changed <- struct{}{}
			})
		}()
		<-started
		for _, change := range []string{
			"flush ruleset",
			"delete table inet bulkhead",
			"flush chain inet bulkhead output",
			"insert rule inet bulkhead bh-t-writer accept",
			"add chain inet bulkhead output { policy drop; }",
			"add table inet bulkhead { flags dormant; }",
			"add element inet bulkhead bh-t-writer.pins4 { 203.0.113.11 . 80 timeout 1h }",
			"flush set inet bulkhead refused",
			"flush map inet bulkhead dialers",
		} {
			t.Run(change, func(t *testing.T) {
				run(t, "nft", change)
				select {
				case <-changed:
				case <-time.After(10 * time.Second):
					t.Fatal("nobody noticed")
				}
				// One nft command can be seen as two changes, and the second one
				// is restored a moment later.
				for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
					if s, err := tab.Inspect(writer.Account); err == nil && s.InForce {
						break
					}
				}
				inForce(t, tab, writer.Account)
				quiet(changed)
				if _, err := connect(t, writer.IDs.Dialer, good); err != nil {
					t.Fatalf("the pin did not come back: %v", err)
				}
				_, err := connect(t, writer.IDs.Account, good)
				refused(t, "the account", err)
			})
		}
		if err := tab.Pin(writer.Account, "good:1", []netip.AddrPort{good}, time.Minute); err != nil {
			t.Fatal(err)
		}
		run(t, "nft", "add table inet other")
		select {
		case <-changed:
			t.Fatal("a change of ours or of a foreign table was taken for a foreign change of ours")
		case <-time.After(300 * time.Millisecond):
		}
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	})
}

func TestInspectNamesEveryDifference(t *testing.T) {
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		tab := open(t)
		if err := tab.Apply(t.Context(), both); err != nil {
			t.Fatal(err)
		}
		for change, want := range map[string]string{
			"flush ruleset":                                                                 "- table inet bulkhead",
			"flush chain inet bulkhead bh-t-writer":                                         "- chain bh-t-writer",
			"insert rule inet bulkhead output accept":                                       "+ chain output",
			"add table inet bulkhead { flags dormant; }":                                    "dormant",
			"flush set inet bulkhead refused":                                               "- set refused",
			"flush map inet bulkhead dialers":                                               "- set dialers",
			"add element inet bulkhead dialers { 700777 : goto bh-t-writer }":               "+ set dialers",
			"add element inet bulkhead bh-t-writer.flows4 { 203.0.113.11 . 80 timeout 1h }": "foreign element 203.0.113.11:80",
			"add element inet bulkhead servers4 { 203.0.113.11 }":                           "+ set servers4",
		} {
			run(t, "nft", change)
			s, err := tab.Inspect(writer.Account)
			if err != nil {
				t.Fatalf("%s: %v", change, err)
			}
			if s.InForce || !strings.Contains(strings.Join(s.Difference, "\n"), want) {
				t.Errorf("%s: difference %q, want %q in it", change, s.Difference, want)
			}
			if err := tab.Restore(t.Context()); err != nil {
				t.Fatalf("after %s: %v", change, err)
			}
			inForce(t, tab, writer.Account)
		}
	})
}

func TestAnotherProcessAdoptsPins(t *testing.T) {
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		good := netip.MustParseAddrPort("203.0.113.10:443")
		first := open(t)
		if err := first.Apply(t.Context(), both); err != nil {
			t.Fatal(err)
		}
		if err := first.Pin(writer.Account, "api.example.com:443", []netip.AddrPort{good}, time.Minute); err != nil {
			t.Fatal(err)
		}
		second := open(t)
		if err := second.Apply(t.Context(), both); err != nil {
			t.Fatal(err)
		}
		got := second.Pins(writer.Account)
		if len(got) != 1 || got[0].Address != good || len(got[0].Destinations) != 1 || got[0].Destinations[0] != "api.example.com:443" {
			t.Fatalf("adopted %+v", got)
		}
		if s := inForce(t, second, writer.Account); s.Pins != 1 {
			t.Fatalf("pins after adoption: %+v", s)
		}
		if err := second.RemoveAgent(t.Context(), writer.Account); err != nil {
			t.Fatal(err)
		}
		if out := run(t, "nft", "list table inet bulkhead"); strings.Contains(out, "writer") {
			t.Fatalf("left behind:\n%s", out)
		}
		inForce(t, second, reader.Account)
		if err := errors.Join(second.Destroy(), second.Destroy()); err != nil {
			t.Fatal(err)
		}
		if out := run(t, "nft", "list ruleset"); strings.Contains(out, "bulkhead") {
			t.Fatalf("left behind:\n%s", out)
		}
	})
}

func TestManyAgentsFitOneBatch(t *testing.T) {
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		var want nft.Want
		for i := range uint32(300) {
			want.Agents = append(want.Agents, nft.Binding{
				Account: "bh-t-" + string([]byte{byte('a' + i/26/26), byte('a' + i/26%26), byte('a' + i%26)}),
				IDs:     layout.IDs{Account: 2000 + i, Base: 1000000 + i*layout.RangeSize*2, Dialer: 500000 + i},
			})
		}
		tab := open(t)
		if err := tab.Apply(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		inForce(t, tab, want.Agents[299].Account)
	})
}

func TestStatesThatWouldMixAgentsAreRefused(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("opening netlink for nftables takes root")
	}
	tab := open(t) // nothing is changed: every state below is refused before
	for name, want := range map[string]nft.Want{
		"same account twice":        {Agents: []nft.Binding{writer, writer}},
		"overlapping ranges":        {Agents: []nft.Binding{writer, {Account: "b", IDs: layout.IDs{Account: 5, Base: writer.IDs.Base + 9, Dialer: 6}}}},
		"name of our own chain":     {Agents: []nft.Binding{{Account: "output", IDs: writer.IDs}}},
		"no ids":                    {Agents: []nft.Binding{{Account: "a"}}},
		"resolver inside a range":   {Agents: []nft.Binding{writer}, Resolver: &nft.Resolver{ID: writer.IDs.Runtime()}},
		"refused range with root":   {Refused: []nft.Range{{First: 0, Last: 10}}},
		"refused range upside down": {Refused: []nft.Range{{First: 20, Last: 10}}},
	} {
		if err := tab.Apply(t.Context(), want); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
