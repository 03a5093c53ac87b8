package shim

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// ends are two connected unix sockets.
func ends(t *testing.T) (x, y *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out [2]*net.UnixConn
	for i, fd := range fds {
		if out[i], err = unixConn(os.NewFile(uintptr(fd), "end")); err != nil {
			t.Fatal(err)
		}
		c := out[i]
		t.Cleanup(func() { _ = c.Close() })
	}
	return out[0], out[1]
}

func TestConnectionsComeThroughTheHatchUntilItCloses(t *testing.T) {
	root, inside := ends(t)
	f, err := inside.File()
	if err != nil {
		t.Fatal(err)
	}
	h, err := newHatch(f)
	if err = errors.Join(err, f.Close(), inside.Close()); err != nil {
		t.Fatal(err)
	}
	caller, passed := ends(t)
	pf, err := passed.File()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := root.WriteMsgUnix([]byte{0}, unix.UnixRights(int(pf.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(pf.Close(), passed.Close()); err != nil {
		t.Fatal(err)
	}
	got, err := h.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := got.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := got.Close(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(caller); string(b) != "x" || err != nil {
		t.Errorf("%q %v", b, err)
	}
	// A byte that brings nothing is an error of that one connection.
	if _, err := root.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.AcceptUnix(); err == nil || errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
	if err := root.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := h.AcceptUnix(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}

func TestWhatIsJoinedEndsOnBothSides(t *testing.T) {
	client, a := ends(t)
	b, server := ends(t)
	over := make(chan struct{})
	go func() {
		defer close(over)
		join(a, b)
	}()
	if _, err := client.Write([]byte("question")); err != nil {
		t.Fatal(err)
	}
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(server); string(got) != "question" || err != nil {
		t.Errorf("%q %v", got, err)
	}
	if _, err := server.Write([]byte("answer")); err != nil { // after the client's half-close
		t.Fatal(err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(client); string(got) != "answer" || err != nil {
		t.Errorf("%q %v", got, err)
	}
	<-over
}

func TestARequestWithTheWrongNumberOfDescriptorsIsRefused(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := passed([]*os.File{r, w}, 2); err != nil {
		t.Error(err)
	}
	if err := passed([]*os.File{r, w}, 3); err == nil {
		t.Error("2 were taken for 3")
	}
	if _, err := w.Write([]byte("x")); err == nil {
		t.Error("what came is still open")
	}
}
