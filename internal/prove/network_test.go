package prove

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
)

// little is how a little-endian kernel writes what a big-endian one writes as s.
func little(s string) string {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return s
	}
	var out strings.Builder
	for i := 0; i+8 <= len(s); i += 8 {
		for j := 6; j >= 0; j -= 2 {
			out.WriteString(s[i+j : i+j+2])
		}
	}
	return out.String()
}

func TestSocketsOfTheHostAreReadByTheirAddress(t *testing.T) {
	text := "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
		"   0: " + little("7F000001") + ":2124 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0\n" +
		"   1: " + little("00000000000000000000000000000001") + ":0050 00000000000000000000000000000000:0000 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 100 0 0 10 0\n"
	got, err := parseSockets(text, "tcp", 9)
	if err != nil {
		t.Fatal(err)
	}
	want := []hostSocket{
		{netip.MustParseAddrPort("127.0.0.1:8484"), tcpListen, "4711"}, {netip.MustParseAddrPort("[::1]:80"), 1, "4712"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

func TestWhatHoldsASocketOfTheHostIsFound(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	at := netip.MustParseAddrPort(l.Addr().String())
	me := []Process{{PID: os.Getpid()}}
	for name, tc := range map[string]struct {
		a    Agent
		want string // empty: it holds
	}{
		"where it should listen":   {Agent{Processes: me, Listen: []netip.AddrPort{at}}, ""},
		"where it should not":      {Agent{Processes: me}, "it holds a socket of the host's"},
		"elsewhere than it should": {Agent{Processes: me, Listen: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}}, "does not listen at 127.0.0.1:1"},
		"on no loopback":           {Agent{Processes: me, Listen: []netip.AddrPort{at, netip.MustParseAddrPort("192.0.2.1:1")}}, "is no loopback address"},
		"no process":               {Agent{}, "no process"},
	} {
		t.Run(name, func(t *testing.T) {
			s := network(tc.a)
			s.close()
			all := strings.Join(s.Against, "; ")
			if s.Holds != (tc.want == "") || !strings.Contains(all, tc.want) {
				t.Errorf("holds %t, against it: %s", s.Holds, all)
			}
		})
	}
}

func FuzzParseSockets(f *testing.F) {
	for _, t := range hostTables {
		if raw, err := os.ReadFile("/proc/self/net/" + t.name); err == nil {
			f.Add(raw[:min(len(raw), 1<<10)], t.column)
		}
	}
	f.Add([]byte("head\n0: 7F000001:2124 0:0 0A x x x x x 1"), 9)
	f.Fuzz(func(t *testing.T, raw []byte, column int) {
		if column < 0 || column > 20 {
			return
		}
		list, err := parseSockets(string(raw), "tcp", column)
		if err != nil {
			return
		}
		if len(list) > bytes.Count(raw, []byte("\n"))+1 {
			t.Fatal("more sockets than lines")
		}
		for _, k := range list {
			if k.inode == "" {
				t.Fatal("a socket without a number")
			}
		}
	})
}
