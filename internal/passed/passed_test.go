package passed

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// number gives a descriptor of its own for f, as a starter would pass it.
func number(t *testing.T, f *os.File) int {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestAListenerIsTakenAndItsPathStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	f, err := ln.File()
	if err != nil {
		t.Fatal(err)
	}
	u, err := Listener(number(t, f))
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if err := u.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}

func TestWhatIsNoUnixListenerIsRefused(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tcp.Close() }()
	f, err := tcp.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	for name, fd := range map[string]int{"a TCP listener": number(t, f), "a device": number(t, null), "nothing": 999} {
		if u, err := Listener(fd); err == nil {
			t.Errorf("%s became %v", name, u.Addr())
		}
	}
}

func TestAConfigIsReadFromFilesTwiceAndFromPipes(t *testing.T) {
	type config struct{ A string }
	path := filepath.Join(t.TempDir(), "c")
	if err := os.WriteFile(path, []byte(`{"A":"b"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString(`{"A":"b"}`); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	for _, fd := range []int{number(t, file), number(t, file), number(t, r)} {
		var c config
		if err := Config(fd, 1<<10, &c); err != nil || c.A != "b" {
			t.Errorf("%+v, %v", c, err)
		}
	}
	var c config
	if err := Config(number(t, file), 5, &c); err == nil || !strings.Contains(err.Error(), "descriptor") {
		t.Errorf("a config beyond the limit gives %v", err)
	}
	if err := Config(999, 5, &c); err == nil {
		t.Error("nothing became a config")
	}
}
