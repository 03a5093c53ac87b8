package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// pair gives both ends of a real unix stream.
func pair(t testing.TB) (*net.UnixConn, *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		u, ok := c.(*net.UnixConn)
		if !ok {
			t.Fatal("not a unix socket")
		}
		t.Cleanup(func() { _ = u.Close() })
		out[i] = u
	}
	return out[0], out[1]
}

func frame(payload string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(payload))), payload...)
}

func TestMessagesArriveInOrderAndWhole(t *testing.T) {
	a, b := pair(t)
	from, to := New(a), New(b)
	var sender sync.WaitGroup
	const each, senders = 50, 4
	for s := range senders {
		sender.Go(func() {
			for i := range each {
				if err := from.Send(uint64(s*each+i+1), VerbProgress, Progress{Step: strings.Repeat("x", i*100)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	seen := map[uint64]bool{}
	for range each * senders {
		m, files, err := to.Recv()
		var p Progress
		if err != nil || len(files) != 0 || m.Verb != VerbProgress || json.Unmarshal(m.Body, &p) != nil {
			t.Fatalf("got %+v, %v", m, err)
		}
		if i := int(m.ID-1) % each; len(p.Step) != i*100 || seen[m.ID] {
			t.Fatalf("message %d is torn or doubled", m.ID)
		}
		seen[m.ID] = true
	}
	sender.Wait()
	_ = from.Close()
	if _, _, err := to.Recv(); !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a close between frames gives %v, want io.EOF", err)
	}
}

func TestTheLargestFramePassesAndOneByteMoreIsRefused(t *testing.T) {
	a, b := pair(t)
	from, to := New(a), New(b)
	room := MaxFrame - len(`{"verb":"apply","body":""}`)
	done := make(chan error, 1)
	go func() { done <- from.Send(0, VerbApply, strings.Repeat("y", room)) }()
	m, _, err := to.Recv()
	if err != nil || len(m.Body) != room+2 {
		t.Fatalf("got %d bytes, %v", len(m.Body), err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := from.Send(0, VerbApply, strings.Repeat("y", room+1)); !errors.Is(err, ErrFrame) {
		t.Errorf("a frame that is too large was sent: %v", err)
	}
}

func openFiles(t *testing.T, n int) []*os.File {
	t.Helper()
	var out []*os.File
	for range n {
		f, err := os.CreateTemp(t.TempDir(), "f")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		out = append(out, f)
	}
	return out
}

func TestDescriptorsArriveWithTheirFrame(t *testing.T) {
	a, b := pair(t)
	from, to := New(a), New(b)
	files := openFiles(t, MaxFiles)
	for i, f := range files {
		if _, err := f.WriteString(strings.Repeat("z", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := from.Send(1, VerbListen, ListenRequest{}, files...); err != nil {
		t.Fatal(err)
	}
	if err := from.Send(2, VerbOK, nil); err != nil {
		t.Fatal(err)
	}
	m, got, err := to.Recv()
	if err != nil || m.ID != 1 || len(got) != MaxFiles {
		t.Fatalf("got %d descriptors with %+v, %v", len(got), m, err)
	}
	for i, f := range got {
		st, err := f.Stat()
		if err != nil || st.Size() != int64(i) {
			t.Errorf("descriptor %d is another file: %v, %v", i, st, err)
		}
		raw, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
		if err != nil || raw&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d would leak into programs that are started", i)
		}
		_ = f.Close()
	}
	if m, got, err := to.Recv(); err != nil || m.ID != 2 || len(got) != 0 {
		t.Errorf("the next frame has %d descriptors: %+v, %v", len(got), m, err)
	}
	if err := from.Send(3, VerbListen, nil, openFiles(t, MaxFiles+1)...); !errors.Is(err, ErrFrame) {
		t.Errorf("too many descriptors were sent: %v", err)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// A peer that is taken over sends what it likes; the receiver must neither
// keep its descriptors nor wait for what does not come.
func TestHostileFramesEndTheConnectionAndLeakNothing(t *testing.T) {
	big := binary.BigEndian.AppendUint32(nil, MaxFrame+1)
	for _, c := range []struct {
		name  string
		bytes []byte
		files int
		want  error
	}{
		{"a length above the limit", append(big, "x"...), 2, ErrFrame},
		{"a length of 4 GiB", []byte{0xff, 0xff, 0xff, 0xff}, 1, ErrFrame},
		{"ended inside the length", []byte{0, 0}, 1, ErrFrame},
		{"ended inside the frame", frame(`{"verb":"ok"}`)[:8], 2, ErrFrame},
		{"not JSON", frame("hello"), 1, ErrFrame},
		{"no verb", frame("{}"), 1, ErrFrame},
		{"an empty frame", frame(""), 1, ErrFrame},
		{"another type", frame(`[1]`), 1, ErrFrame},
		{"more descriptors than a frame may have", frame(`{"verb":"ok"}`), MaxFiles + 8, ErrFrame},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := pair(t)
			var fds []int
			for _, f := range openFiles(t, c.files) {
				fd, err := descriptor(f)
				if err != nil {
					t.Fatal(err)
				}
				fds = append(fds, fd)
			}
			before := descriptors(t)
			if _, _, err := a.WriteMsgUnix(c.bytes, unix.UnixRights(fds...), nil); err != nil {
				t.Fatal(err)
			}
			_ = a.CloseWrite()
			_ = b.SetReadDeadline(time.Now().Add(10 * time.Second))
			if _, files, err := New(b).Recv(); !errors.Is(err, c.want) || len(files) != 0 {
				t.Errorf("got %d files, %v; want %v", len(files), err, c.want)
			}
			if after := descriptors(t); after != before {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
		})
	}
}

func TestDescriptorsInTheMiddleOfAFrameAreTakenToo(t *testing.T) {
	a, b := pair(t)
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	fd, err := descriptor(f)
	if err != nil {
		t.Fatal(err)
	}
	whole := frame(`{"verb":"ok"}`)
	if _, err := a.Write(whole[:6]); err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.WriteMsgUnix(whole[6:], unix.UnixRights(fd), nil); err != nil {
		t.Fatal(err)
	}
	m, files, err := New(b).Recv()
	if err != nil || m.Verb != "ok" || len(files) != 1 {
		t.Errorf("got %+v, %d files, %v", m, len(files), err)
	}
	closeAll(files)
}

func FuzzRecv(f *testing.F) {
	f.Add(frame(`{"verb":"ok"}`), 3)
	f.Add(frame(`{"id":7,"verb":"hello","body":{"protocol":"shim","version":1}}`), 1)
	f.Add([]byte{0, 0, 0, 1}, 2)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 'x'}, 1)
	f.Add(append(frame(`{"verb":"a"}`), frame(`{"verb":"b"}`)...), 5)
	f.Fuzz(func(t *testing.T, data []byte, cut int) {
		if len(data) > 64<<10 {
			return // must fit into the socket's buffer
		}
		a, b := pair(t)
		size := 1 + max(cut, 0)%64
		for rest := data; len(rest) > 0; rest = rest[min(size, len(rest)):] {
			if _, err := a.Write(rest[:min(size, len(rest))]); err != nil {
				t.Fatal(err)
			}
			if size < 8 && len(data) > 256 {
				size = 4096
			}
		}
		_ = a.Close()
		c := New(b)
		for {
			m, files, err := c.Recv()
			if err != nil {
				return
			}
			if m.Verb == "" || len(files) != 0 {
				t.Fatalf("accepted %+v with %d files", m, len(files))
			}
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"id":1,"verb":"ok","body":{}}`))
	f.Add([]byte(`{"verb":""}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Decode(data)
		if err != nil {
			if !errors.Is(err, ErrFrame) {
				t.Errorf("untyped error %v", err)
			}
			return
		}
		raw, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Decode(raw)
		if err != nil || again.ID != m.ID || again.Verb != m.Verb {
			t.Errorf("%s became %s, %v", data, raw, err)
		}
	})
}

func TestAFrameIsTheJSONOfItsMessage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body, err := json.Marshal(rapid.MapOf(rapid.String(), rapid.Int()).Draw(t, "body"))
		if err != nil {
			t.Fatal(err)
		}
		want := Message{ID: rapid.Uint64().Draw(t, "id"), Verb: rapid.StringN(1, 20, -1).Draw(t, "verb"), Body: body}
		frame, err := encode(want.ID, want.Verb, body)
		if err != nil {
			t.Fatal(err)
		}
		if n := binary.BigEndian.Uint32(frame); int(n) != len(frame)-4 {
			t.Fatalf("the length says %d of %d bytes", n, len(frame)-4)
		}
		got, err := Decode(frame[4:])
		if err != nil {
			t.Fatal(err)
		}
		if got.ID != want.ID || got.Verb != want.Verb || !bytes.Equal(got.Body, want.Body) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}
