package doctor

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"bulkhead/internal/host/account"
)

// message is a netlink message with one nfgenmsg and one attribute.
func message(kind uint16, family byte, attribute uint16, value string) []byte {
	a := make([]byte, 4, 4+len(value))
	binary.NativeEndian.PutUint16(a, uint16(4+len(value)))
	binary.NativeEndian.PutUint16(a[2:], attribute)
	a = append(a, value...)
	b := make([]byte, unix.NLMSG_HDRLEN+nfgenLen)
	b[unix.NLMSG_HDRLEN] = family
	b = append(b, a...)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], kind)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

const newTable = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWTABLE

func TestTablesOfADump(t *testing.T) {
	done := message(unix.NLMSG_DONE, 0, 0, "")
	dump := append(message(newTable, unix.NFPROTO_INET, unix.NFTA_TABLE_NAME, "bulkhead\x00"), message(newTable, unix.NFPROTO_IPV4, unix.NFTA_TABLE_NAME, "nat\x00")...)
	got, end, err := parseTables(append(dump, done...))
	if err != nil || !end || len(got) != 2 || got[0] != ours || got[1] != (Table{"ip", "nat"}) {
		t.Errorf("%v %v %v", got, end, err)
	}
	if _, end, err := parseTables(dump); end || err != nil {
		t.Errorf("a dump without its end is ended: %v %v", end, err)
	}
	if _, _, err := parseTables(dump[:len(dump)-8]); !errors.Is(err, errTorn) {
		t.Errorf("torn: %v", err)
	}
	refused := make([]byte, unix.NLMSG_HDRLEN+4)
	binary.NativeEndian.PutUint32(refused, uint32(len(refused)))
	binary.NativeEndian.PutUint16(refused[4:], unix.NLMSG_ERROR)
	eperm := -int32(unix.EPERM)
	binary.NativeEndian.PutUint32(refused[unix.NLMSG_HDRLEN:], uint32(eperm))
	if _, _, err := parseTables(refused); !errors.Is(err, unix.EPERM) {
		t.Errorf("refused: %v", err)
	}
}

func FuzzTables(f *testing.F) {
	f.Add(message(newTable, unix.NFPROTO_INET, unix.NFTA_TABLE_NAME, "bulkhead\x00"))
	f.Add(message(unix.NLMSG_DONE, 0, 0, ""))
	f.Add([]byte{16, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		all, _, _ := parseTables(b)
		for _, x := range all {
			if x.Name == "" || len(x.Name) > len(b) {
				t.Errorf("table %q from %d bytes", x, len(b))
			}
		}
	})
}

func FuzzTexts(f *testing.F) {
	f.Add("22 27 0:21 / /proc rw,relatime shared:1 - proc proc rw\n")
	f.Add("ID=debian\nVERSION_ID=\"12\"\nID_LIKE=a b\n")
	f.Add("Filename Type Size\n/dev/zram0 partition 1\n/swap file 2\n")
	f.Add("SUB_UID_MIN 0x10\n")
	f.Add("Package: podman\nStatus: install ok installed\nVersion: 4.3.1+ds1-8\n\nPackage: x\n")
	f.Add("systemd 252 (252.39)")
	f.Fuzz(func(t *testing.T, text string) {
		if found, by := covers(parseMounts(text)); !found && len(by) > 0 {
			t.Error("nothing is covered")
		}
		_ = parseOSRelease(text)
		memory, disk := parseSwaps(text)
		if len(memory)+len(disk) > len(text) {
			t.Error("more areas than characters")
		}
		if n := loginDef(text, "SUB_UID_MIN", 7); n > 1<<32 {
			t.Errorf("%d is no id", n)
		}
		if v, ok := parseVersion(text); v[0] < 0 || v[1] < 0 || !ok && v != [2]int{} {
			t.Errorf("%v", v)
		}
		_ = grantsUserns(text)
		if v := packageVersion(text, "podman"); v != "" && !strings.Contains(text, "Package: podman\n") {
			t.Errorf("version %q of a package that is not there", v)
		}
	})
}

// TestFreeRangesAgainstFilling gives ranges away one by one, first fit, and
// compares with the count.
func TestFreeRangesAgainstFilling(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		first := rapid.Uint64Range(0, 1<<20).Draw(rt, "first")
		last := first + rapid.Uint64Range(0, 1<<21).Draw(rt, "size")
		var taken []account.Range
		for range rapid.IntRange(0, 8).Draw(rt, "ranges") {
			taken = append(taken, account.Range{
				First: rapid.Uint32Range(0, 1<<22).Draw(rt, "at"), Count: rapid.Uint32Range(1, 200_000).Draw(rt, "count"),
			})
		}
		got, filled := freeRanges(taken, first, last), 0
		for at := first; at+rangeSize-1 <= last; {
			next := at
			for _, r := range taken {
				if uint64(r.First) < at+rangeSize && uint64(r.Last()) >= at {
					next = max(next, uint64(r.Last())+1)
				}
			}
			if next == at {
				filled++
				next = at + rangeSize
			}
			at = next
		}
		if got != filled {
			rt.Errorf("%d free, %d could be filled: %v in %d-%d", got, filled, taken, first, last)
		}
	})
}

func TestClashesAreNamed(t *testing.T) {
	users := []account.User{{Name: "eve", UID: 165_540}}
	uid := func(u account.User) uint32 { return u.UID }
	for name, c := range map[string]struct {
		all  []account.Range
		want bool
	}{
		"apart":                   {[]account.Range{{Owner: "a", First: 200_000, Count: 65536}, {Owner: "b", First: 300_000, Count: 65536}}, false},
		"one id shared":           {[]account.Range{{Owner: "a", First: 200_000, Count: 65536}, {Owner: "b", First: 265_535, Count: 65536}}, true},
		"an account in it":        {[]account.Range{{Owner: "a", First: 165_536, Count: 65536}}, true},
		"one owner, two overlaps": {[]account.Range{{Owner: "a", First: 200_000, Count: 65536}, {Owner: "a", First: 200_001, Count: 65536}}, false},
	} {
		if got := clash("subuid", c.all, users, uid); (got != "") != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
