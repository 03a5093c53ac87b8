package prove

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// hostTables list the sockets of a network namespace by the number that
// /proc/PID/fd shows (proc_pid_net(5)), and the column of that number.
var hostTables = []struct {
	name   string
	column int
}{
	{"tcp", 9},
	{"tcp6", 9},
	{"udp", 9},
	{"udp6", 9},
	{"udplite", 9},
	{"udplite6", 9},
	{"raw", 9},
	{"raw6", 9},
	{"icmp", 9},
	{"icmp6", 9},
	{"packet", 8},
	{"netlink", 9},
}

// tcpListen is TCP_LISTEN (include/net/tcp_states.h).
const tcpListen = 0x0a

// network looks at every socket that a server's processes hold, whoever made it:
// a descriptor that was passed in is of the network that it was made in, whatever
// namespace its holder is in. Of the host's network it may hold what listens at
// its addresses, which are loopback's, and what came in there.
func network(a Agent) Statement {
	s := Statement{ID: "network", Agent: a.Name, Says: "it holds no socket of the host's network"}
	if len(a.Listen) > 0 {
		s.Says = "of the host's network it holds what listens at its addresses, which are loopback's, and what came in there"
	}
	for _, l := range a.Listen {
		if !l.Addr().IsLoopback() {
			s.against("%s, at which it is meant to listen, is no loopback address", l)
		}
	}
	held, n, err := socketsOf(a.Processes)
	if err != nil {
		s.against("%v", err)
	}
	heard := map[netip.AddrPort]bool{}
	for _, t := range hostTables {
		raw, err := os.ReadFile("/proc/self/net/" + t.name)
		if errors.Is(err, os.ErrNotExist) {
			continue // this kernel lacks the protocol
		}
		if err != nil {
			s.against("%v", err)
			continue
		}
		list, err := parseSockets(string(raw), t.name, t.column)
		if err != nil {
			s.against("%v", err)
			continue
		}
		for _, k := range list {
			if !held[k.inode] {
				continue
			}
			tcp := t.name == "tcp" || t.name == "tcp6"
			if !tcp || !slices.Contains(a.Listen, k.local) {
				s.against("it holds a socket of the host's: %s %s", t.name, k.local)
				continue
			}
			if k.state == tcpListen {
				heard[k.local] = true
				s.read("listens at %s", k.local)
			}
		}
	}
	for _, l := range a.Listen {
		if !heard[l] {
			s.against("it does not listen at %s", l)
		}
	}
	s.read("%d sockets of %d processes", len(held), n)
	if n == 0 {
		s.against("no process of it was found")
	}
	return s
}

// socketsOf lists the sockets that processes hold, by their numbers.
func socketsOf(list []Process) (held map[string]bool, n int, err error) {
	held = map[string]bool{}
	for _, p := range list {
		dir := fmt.Sprintf("/proc/%d/fd", p.PID)
		fds, err := os.ReadDir(dir)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return held, n, err
		}
		n++
		for _, fd := range fds {
			to, err := os.Readlink(filepath.Join(dir, fd.Name()))
			if errors.Is(err, os.ErrNotExist) {
				continue // closed meanwhile
			}
			if err != nil {
				return held, n, err
			}
			if inode, ok := strings.CutPrefix(to, "socket:["); ok {
				held[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	return held, n, nil
}

// hostSocket is one line of a table.
type hostSocket struct {
	local netip.AddrPort // the zero value where there is none
	state uint8
	inode string
}

// parseSockets reads a table of /proc/net. The addresses of the internet's
// families are words of four bytes in the machine's order, in hexadecimal.
func parseSockets(text, name string, column int) ([]hostSocket, error) {
	var out []hostSocket
	for i, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		f := strings.Fields(line)
		if i == 0 || len(f) == 0 {
			continue // the head
		}
		if len(f) <= column {
			return nil, fmt.Errorf("/proc/net/%s: %.80q cannot be read", name, line)
		}
		k := hostSocket{inode: f[column]}
		if column == 9 && name != "netlink" {
			var err error
			if k.local, err = hexAddress(f[1]); err != nil {
				return nil, fmt.Errorf("/proc/net/%s: %w", name, err)
			}
			state, err := hex.DecodeString(f[3])
			if err != nil || len(state) != 1 {
				return nil, fmt.Errorf("/proc/net/%s: state %.20q cannot be read", name, f[3])
			}
			k.state = state[0]
		}
		out = append(out, k)
	}
	return out, nil
}

func hexAddress(s string) (netip.AddrPort, error) {
	host, port, ok := strings.Cut(s, ":")
	raw, err := hex.DecodeString(host)
	p, perr := hex.DecodeString(port)
	if !ok || err != nil || perr != nil || len(raw) != 4 && len(raw) != 16 || len(p) != 2 {
		return netip.AddrPort{}, fmt.Errorf("address %.60q cannot be read", s)
	}
	for i := 0; i < len(raw); i += 4 {
		binary.BigEndian.PutUint32(raw[i:], binary.NativeEndian.Uint32(raw[i:]))
	}
	a, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(a.Unmap(), binary.BigEndian.Uint16(p)), nil
}
