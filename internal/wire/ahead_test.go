package wire

import (
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func aheadPair(t testing.TB) (from, to *Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = New(c.(*net.UnixConn))
		t.Cleanup(func() { _ = ends[i].Close() })
	}
	ends[1].ReadAhead()
	return ends[0], ends[1]
}

// named is an open file with a content of its own, at its beginning.
func named(t testing.TB, content string) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.WriteString(content)
	_ = w.Close()
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func TestFramesReadAheadKeepTheirDescriptors(t *testing.T) {
	from, to := aheadPair(t)
	const frames = 40
	for i := range frames { // all of them wait in the socket: few reads take them
		var files []*os.File
		for j := range i % 3 {
			files = append(files, named(t, strconv.Itoa(i)+"."+strconv.Itoa(j)))
		}
		body := strings.Repeat("x", 1+i*i*i%7000) // some longer than the buffer
		if err := from.Send(uint64(i)+1, "v", body, files...); err != nil {
			t.Fatal(err)
		}
	}
	for i := range frames {
		m, files, err := to.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if m.ID != uint64(i)+1 || len(files) != i%3 || len(m.Body) != 3+i*i*i%7000 {
			t.Fatalf("frame %d: id %d, %d files, %d bytes", i, m.ID, len(files), len(m.Body))
		}
		for j, f := range files {
			got, err := io.ReadAll(f)
			_ = f.Close()
			if want := strconv.Itoa(i) + "." + strconv.Itoa(j); err != nil || string(got) != want {
				t.Fatalf("frame %d: %q, %v, want %q", i, got, err, want)
			}
		}
	}
	_ = from.Close()
	if _, _, err := to.Recv(); !errors.Is(err, io.EOF) || errors.Is(err, ErrFrame) {
		t.Fatalf("at the end: %v, want io.EOF", err)
	}
}

func TestWhatIsNoFrameEndsReadingAhead(t *testing.T) {
	for name, c := range map[string]struct {
		say func(*Conn)
	}{
		"too long":        {func(c *Conn) { _, _ = c.Unix().Write([]byte{0xff, 0, 0, 0, '{'}) }},
		"no JSON":         {func(c *Conn) { _, _ = c.Unix().Write([]byte{0, 0, 0, 2, '!', '!'}) }},
		"ended in a head": {func(c *Conn) { _, _ = c.Unix().Write([]byte{0, 0}) }},
		"ended in a body": {func(c *Conn) { _, _ = c.Unix().Write([]byte{0, 0, 0, 9, '{'}) }},
		"descriptors within a frame": {func(c *Conn) {
			_, _ = c.Unix().Write([]byte{0, 0, 0, 200, '{'})
			f := named(t, "")
			fd, err := descriptor(f)
			if err != nil {
				t.Fatal(err)
			}
			_, _, _ = c.Unix().WriteMsgUnix([]byte(`"id":1`), unix.UnixRights(fd), nil)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := aheadPair(t)
			c.say(from)
			_ = from.Close()
			if m, _, err := to.Recv(); !errors.Is(err, ErrFrame) {
				t.Fatalf("%+v, %v; want a malformed frame", m, err)
			}
		})
	}
}

// Reading ahead gives the frames that reading one by one gives, and no other
// end.
func FuzzReadAhead(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x0c{\"verb\":\"a\"}\x00\x00\x00\x0c{\"verb\":\"b\"}"), uint8(3))
	f.Add([]byte("\x00\x00\x00\x0c{\"verb\":\"a\"}\x00\x00"), uint8(1))
	f.Fuzz(func(t *testing.T, text []byte, cut uint8) {
		if len(text) > 16<<10 {
			return
		}
		var got [2][]string
		for i := range got {
			from, to := aheadPair(t)
			if i == 0 {
				to.ahead = nil
			}
			at := min(int(cut), len(text))
			_, _ = from.Unix().Write(text[:at])
			_, _ = from.Unix().Write(text[at:])
			_ = from.Close()
			for {
				m, _, err := to.Recv()
				if err != nil {
					got[i] = append(got[i], strconv.FormatBool(errors.Is(err, ErrFrame)))
					break
				}
				got[i] = append(got[i], m.Verb+string(m.Body))
			}
		}
		if strings.Join(got[0], "|") != strings.Join(got[1], "|") {
			t.Fatalf("one by one %q, ahead %q", got[0], got[1])
		}
	})
}
