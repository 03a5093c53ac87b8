package evidence

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// Addresses of the decoy host's world, all on its own loopback: TEST-NET-3
// (RFC 5737) for what lies outside, and the cloud's metadata address.
const (
	decoyListed   = "203.0.113.10"
	decoyUnlisted = "203.0.113.11"
	decoyResolver = "203.0.113.53"
	decoyMetadata = "169.254.169.254"
)

// decoyNetwork is what listens in the decoy host.
type decoyNetwork struct {
	listeners []net.Listener
	packets   []net.PacketConn
	wait      sync.WaitGroup
}

func newDecoyNetwork() (*decoyNetwork, error) {
	if err := raiseLoopback(decoyListed, decoyUnlisted, decoyResolver, decoyMetadata); err != nil {
		return nil, err
	}
	n := &decoyNetwork{}
	for _, l := range [][2]string{
		{"tcp", decoyListed + ":443"},
		{"tcp", decoyListed + ":9"},
		{"tcp", decoyUnlisted + ":443"},
		{"tcp", decoyUnlisted + ":9"},
		{"tcp", decoyMetadata + ":80"},
		{"tcp", decoyResolver + ":53"},
		{"tcp", "127.0.0.53:53"},
		{"tcp", "127.0.0.1:7777"},
		{"unix", "@decoy"},
	} {
		ln, err := net.Listen(l[0], l[1])
		if err != nil {
			return nil, fmt.Errorf("listen on %s: %w", l[1], err)
		}
		n.listeners = append(n.listeners, ln)
		n.wait.Go(func() { accept(ln, func() {}) })
	}
	for _, a := range []string{decoyResolver + ":53", "127.0.0.53:53"} {
		p, err := net.ListenPacket("udp", a)
		if err != nil {
			return nil, fmt.Errorf("listen on %s: %w", a, err)
		}
		n.packets = append(n.packets, p)
		n.wait.Go(func() { reply(p, func() {}) })
	}
	return n, nil
}

func (n *decoyNetwork) close() {
	for _, l := range n.listeners {
		_ = l.Close()
	}
	for _, p := range n.packets {
		_ = p.Close()
	}
	n.wait.Wait()
}

// raiseLoopback brings lo up and gives it further addresses, as aliases
// (netdevice(7)): enough for IPv4, and no program is needed.
func raiseLoopback(addresses ...string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	up, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	up.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, up); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	for i, a := range addresses {
		address, err := netip.ParseAddr(a)
		if err != nil {
			return err
		}
		alias, err := unix.NewIfreq(fmt.Sprintf("lo:%d", i+1))
		if err != nil {
			return err
		}
		ip := address.As4()
		err = alias.SetInet4Addr(ip[:])
		if err == nil {
			err = unix.IoctlIfreq(fd, unix.SIOCSIFADDR, alias)
		}
		mask, merr := unix.NewIfreq(fmt.Sprintf("lo:%d", i+1))
		if merr == nil {
			merr = mask.SetInet4Addr([]byte{255, 255, 255, 255})
		}
		if err == nil && merr == nil {
			merr = unix.IoctlIfreq(fd, unix.SIOCSIFNETMASK, mask)
		}
		if err := errors.Join(err, merr); err != nil {
			return fmt.Errorf("address %s on lo: %w", a, err)
		}
	}
	return nil
}
