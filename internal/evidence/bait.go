package evidence

import (
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// bait is what the runner itself offers on the host for the attacks from one
// place to reach: if it is reached, an attack succeeded, whatever the probe
// says.
type bait struct {
	world     World
	listeners []net.Listener
	packets   []net.PacketConn
	taken     atomic.Int64 // connections and packets that came by the internet's protocols
	wait      sync.WaitGroup
}

// unlistedAddress and its siblings are nobody's: TEST-NET-3 (RFC 5737) and the
// prefix of documentation (RFC 3849).
const (
	unlistedAddress  = "203.0.113.11"
	unlistedAddress6 = "2001:db8::11"
)

func newBait() (_ *bait, err error) {
	spare, err := namespacesHere()
	if err != nil {
		return nil, err
	}
	b := &bait{world: World{
		Unlisted: unlistedAddress + ":443", Unlisted6: "[" + unlistedAddress6 + "]:443",
		Public: []string{"1.1.1.1", "8.8.8.8", "9.9.9.9"}, // resolvers that speak every form of DNS
		Table:  "bulkhead", Resolvers: hostResolvers("/etc/resolv.conf"), Spare: spare,
	}}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	count := func() { b.taken.Add(1) }
	if b.world.Loopback, err = b.listen("tcp", "127.0.0.1:0", count); err != nil {
		return nil, fmt.Errorf("evidence: listen on the host's loopback: %w", err)
	}
	if b.world.Abstract, err = b.listen("unix", "@bulkhead-bait-"+rand.Text(), func() {}); err != nil {
		return nil, fmt.Errorf("evidence: listen on an abstract socket: %w", err)
	}
	p, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("evidence: listen on the host's loopback: %w", err)
	}
	b.packets = append(b.packets, p)
	b.wait.Go(func() { reply(p, count) })
	b.world.LoopbackUDP = p.LocalAddr().String()
	// A host may have no IPv6, and no address but loopback: those attacks then
	// are not made.
	b.world.Loopback6, _ = b.listen("tcp", "[::1]:0", count)
	if a := hostAddress(); a.IsValid() {
		b.world.Own, _ = b.listen("tcp", netip.AddrPortFrom(a, 0).String(), count)
	}
	return b, nil
}

func (b *bait) listen(network, address string, taken func()) (string, error) {
	l, err := net.Listen(network, address)
	if err != nil {
		return "", err
	}
	b.listeners = append(b.listeners, l)
	b.wait.Go(func() { accept(l, taken) })
	return l.Addr().String(), nil
}

// hostAddress is an address of this host that is not loopback; invalid when it
// has none.
func hostAddress() netip.Addr {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}
	}
	for _, a := range list {
		p, err := netip.ParsePrefix(a.String())
		if ip := p.Addr().Unmap(); err == nil && ip.Is4() && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() {
			return ip
		}
	}
	return netip.Addr{}
}

// aimed says whether a request names one of the bait's own listeners.
func (b *bait) aimed(one asking) bool {
	for _, own := range []string{b.world.Loopback, b.world.LoopbackUDP, b.world.Loopback6, b.world.Own} {
		if own == "" {
			continue
		}
		_, port, _ := net.SplitHostPort(own)
		if slices.Contains(one.q.Addresses, own) || slices.Contains(one.q.Names, own) || slices.Contains(one.q.Names, "localhost:"+port) {
			return true
		}
	}
	return false
}

// overrule makes rows succeeded that the listeners say did: they are the
// witness that no probe can talk away. Whose doing it was is not known when no
// answer owns up to it; then it counts against each that could have been.
func (b *bait) overrule(list []asking, of []int, rows []Row) {
	n := b.taken.Load()
	if n == 0 {
		return
	}
	for i, one := range list {
		if row := &rows[of[i]]; b.aimed(one) && row.Verdict == Succeeded {
			return
		}
	}
	for i, one := range list {
		if row := &rows[of[i]]; b.aimed(one) {
			row.Verdict, row.Evidence = Succeeded, "the host's own listener was reached "+strconv.FormatInt(n, 10)+" times; the probe said: "+row.Evidence
		}
	}
}

func (b *bait) close() {
	for _, l := range b.listeners {
		_ = l.Close()
	}
	for _, p := range b.packets {
		_ = p.Close()
	}
	b.wait.Wait()
}

// reply sends every packet back, until p is closed.
func reply(p net.PacketConn, taken func()) {
	buf := make([]byte, 2048)
	for {
		n, from, err := p.ReadFrom(buf)
		if err != nil {
			return
		}
		taken()
		_, _ = p.WriteTo(buf[:n], from)
	}
}

// accept takes connections and closes them, until l is closed.
func accept(l net.Listener, taken func()) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		taken()
		_, _ = io.WriteString(c, "bait")
		_ = c.Close()
	}
}

// namespacesHere gives the inode numbers of this process's mount and network
// namespaces, for probes to spare.
func namespacesHere() ([]uint64, error) {
	var out []uint64
	for _, n := range []string{"mnt", "net"} {
		var st unix.Stat_t
		if err := unix.Stat("/proc/self/ns/"+n, &st); err != nil {
			return nil, fmt.Errorf("evidence: namespace %s: %w", n, err)
		}
		out = append(out, st.Ino)
	}
	return out, nil
}
