package identity

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestThePeerIsThisProcess(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	c, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	s, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	p, err := PeerOf(s)
	if err != nil {
		t.Fatal(err)
	}
	if int(p.PID) != os.Getpid() || int(p.UID) != os.Getuid() || int(p.GID) != os.Getgid() {
		t.Errorf("peer %+v, want pid %d uid %d gid %d", p, os.Getpid(), os.Getuid(), os.Getgid())
	}
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		if !p.In(uint32(g)) {
			t.Errorf("group %d is missing in %v", g, p.Groups)
		}
	}
	if p.In(Overflow) && os.Getgid() != Overflow {
		t.Error("the overflow id counts as a group of this process")
	}
}
