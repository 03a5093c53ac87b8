package evidence

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
)

// Addresses of the decoy host's world, all on its own loopback: TEST-NET-3
// (RFC 5737) for what lies outside, and the cloud's metadata address.
const (
	decoyListed   = "203.0.113.10"
	decoyUnlisted = unlistedAddress
	decoyResolver = "203.0.113.53"
	decoyMetadata = "169.254.169.254"
	decoyOutside  = "168.63.129.16" // of decoyClouds: in no special range
	decoyFront    = "127.0.0.1:8484"
)

// decoyClouds are further addresses at which clouds answer, decoySix those of
// IPv6: one that nobody lists, and a cloud's.
var (
	decoyClouds = []string{"169.254.170.2", "168.63.129.16", "100.100.100.200", "192.0.0.192"}
	decoySix    = []string{unlistedAddress6, "fd00:ec2::254"}
)

// decoyNetwork is what listens in the decoy host.
type decoyNetwork struct {
	listeners []net.Listener
	packets   []net.PacketConn
	wait      sync.WaitGroup
	loopback6 string // empty: this kernel has no IPv6
}

func newDecoyNetwork() (*decoyNetwork, error) {
	if err := raiseLoopback(append([]string{decoyListed, decoyUnlisted, decoyResolver, decoyMetadata}, decoyClouds...)...); err != nil {
		return nil, err
	}
	n := &decoyNetwork{}
	// As systemd has it for a host (sysctl.d/50-default.conf): everybody may ping. Where
	// that cannot be set nobody may, and those controls say so.
	_ = os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0o600)
	six := raiseLoopback(decoySix...) == nil // else this kernel has no IPv6
	all := [][2]string{
		{"tcp", decoyListed + ":443"},
		{"tcp", decoyListed + ":9"},
		{"tcp", decoyListed + ":80"},
		{"tcp", decoyUnlisted + ":443"},
		{"tcp", decoyUnlisted + ":80"},
		{"tcp", decoyUnlisted + ":853"},
		{"tcp", decoyUnlisted + ":9"},
		{"tcp", decoyResolver + ":443"},
		{"tcp", decoyResolver + ":853"},
		{"tcp", decoyMetadata + ":80"},
		{"tcp", decoyResolver + ":53"},
		{"tcp", "127.0.0.53:53"},
		{"tcp", "127.0.0.1:7777"},
		{"tcp", "127.0.0.1:80"},
		{"tcp", decoyFront},
		{"unix", "@decoy"},
	}
	for _, a := range decoyClouds {
		all = append(all, [2]string{"tcp", a + ":80"})
	}
	if six {
		n.loopback6 = "[::1]:7777"
		all = append(all, [2]string{"tcp", n.loopback6}, [2]string{"tcp", "[" + decoySix[0] + "]:443"}, [2]string{"tcp", "[" + decoySix[1] + "]:80"})
	}
	for _, l := range all {
		ln, err := net.Listen(l[0], l[1])
		if err != nil {
			return nil, fmt.Errorf("listen on %s: %w", l[1], err)
		}
		n.listeners = append(n.listeners, ln)
		serve := func() { accept(ln, func() {}) }
		if l[0] == "tcp" && strings.HasSuffix(l[1], ":80") {
			serve = func() { answerHTTP(ln) }
		}
		n.wait.Go(serve)
	}
	for _, a := range []string{decoyResolver + ":53", decoyResolver + ":853", "127.0.0.53:53", "127.0.0.1:7777", decoyUnlisted + ":443"} {
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

// answerHTTP answers one request of each connection until l is closed: one for
// /to/REST is redirected to http://REST, any other is served.
func answerHTTP(l net.Listener) {
	var wait sync.WaitGroup
	defer wait.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		wait.Go(func() {
			defer func() { _ = c.Close() }()
			if c.SetDeadline(time.Now().Add(2*time.Second)) != nil {
				return
			}
			path, answer := "", "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbait"
			for lines := bufio.NewScanner(io.LimitReader(c, 64<<10)); lines.Scan() && lines.Text() != ""; {
				if f := strings.Fields(lines.Text()); path == "" && len(f) == 3 {
					path = f[1]
				}
			}
			if to, ok := strings.CutPrefix(path, "/to/"); ok {
				answer = "HTTP/1.1 302 Found\r\nLocation: http://" + to + "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
			}
			_, _ = io.WriteString(c, answer)
		})
	}
}

// raiseLoopback brings lo up and gives it further addresses.
func raiseLoopback(addresses ...string) error {
	var n engine.Network
	for _, a := range addresses {
		address, err := netip.ParseAddr(a)
		if err != nil {
			return err
		}
		n.Loopback = append(n.Loopback, netip.PrefixFrom(address, address.BitLen()))
	}
	return cell.SetUpLoopback(n)
}
