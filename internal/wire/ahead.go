package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// aheadBuffer holds many of the frames that are sent often; a larger frame
// makes it grow for as long as it is read.
const aheadBuffer = 4 << 10

// ahead reads whatever has come in one call, often several frames.
//
// Descriptors arrive with a byte, and which one recvmsg(2) does not say. But it
// never reads on behind data that came with descriptors (unix(7), "Ancillary
// messages"), and Send writes a frame at once, with them at its first byte. So
// they belong to the last frame that begins in what one call read; a peer for
// which that is not so speaks another protocol, and is cut off or gets its own
// descriptors muddled.
type ahead struct {
	buf    []byte  // read and not given yet; it begins with a frame
	passed []given // in the order in which they came
	oob    []byte
}

// given is what came with the frame that begins at that place in buf.
type given struct {
	at    int
	files []*os.File
}

// ReadAhead makes Recv read as much as there is. It is for connections that
// speak frames to their end: what was read ahead is nobody else's. It is called
// before the goroutine that receives begins.
func (c *Conn) ReadAhead() {
	c.ahead = &ahead{buf: make([]byte, 0, aheadBuffer), oob: make([]byte, unix.CmsgSpace(MaxFiles*4))}
}

func (a *ahead) recv(c *net.UnixConn) (Message, []*os.File, error) {
	for {
		end, err := frameEnd(a.buf, 0)
		if err != nil {
			a.drop()
			return Message{}, nil, err
		}
		if end > 0 && end <= len(a.buf) {
			return a.take(end)
		}
		if err := a.read(c, end); err != nil {
			a.drop()
			return Message{}, nil, err
		}
	}
}

// frameEnd says where the frame that begins at from ends; 0: that is not known
// yet.
func frameEnd(b []byte, from int) (int, error) {
	if len(b)-from < 4 {
		return 0, nil
	}
	n := binary.BigEndian.Uint32(b[from:])
	if n > MaxFrame {
		return 0, fmt.Errorf("%w: length %d is more than %d", ErrFrame, n, MaxFrame)
	}
	return from + 4 + int(n), nil
}

// take gives the first frame, which ends at end.
func (a *ahead) take(end int) (Message, []*os.File, error) {
	m, err := Decode(a.buf[4:end])
	var files []*os.File
	for len(a.passed) > 0 && a.passed[0].at == 0 {
		files = append(files, a.passed[0].files...)
		a.passed = a.passed[1:]
	}
	for i := range a.passed {
		a.passed[i].at -= end
	}
	rest := copy(a.buf, a.buf[end:])
	a.buf = a.buf[:rest]
	if cap(a.buf) > 4*aheadBuffer && rest <= aheadBuffer {
		a.buf = append(make([]byte, 0, aheadBuffer), a.buf...)
	}
	if err != nil {
		closeAll(files)
		a.drop()
		return Message{}, nil, err
	}
	return m, files, nil
}

// read reads once. need is where the first frame ends, 0 while unknown.
func (a *ahead) read(c *net.UnixConn, need int) error {
	if len(a.buf) == cap(a.buf) {
		// Twice as much rather than all that is announced: memory is given for
		// what has come.
		a.buf = slices.Grow(a.buf, min(max(need-len(a.buf), 1), len(a.buf)))
	}
	from := len(a.buf)
	n, oobn, flags, _, err := c.ReadMsgUnix(a.buf[from:cap(a.buf)], a.oob)
	a.buf = a.buf[:from+max(n, 0)]
	if oobn > 0 {
		files, perr := parseRights(a.oob[:oobn])
		if perr == nil && (flags&unix.MSG_CTRUNC != 0 || len(files) > MaxFiles) {
			perr = fmt.Errorf("%w: more than %d descriptors", ErrFrame, MaxFiles)
		}
		at := -1
		if perr == nil {
			at, perr = lastStart(a.buf, from)
		}
		if perr != nil {
			closeAll(files)
			return perr
		}
		a.passed = append(a.passed, given{at, files})
	}
	switch {
	case n > 0:
		return nil
	case err != nil && !errors.Is(err, io.EOF):
		return err
	case from > 0:
		return fmt.Errorf("%w: ended inside a frame: %w", ErrFrame, io.ErrUnexpectedEOF)
	}
	return io.EOF
}

// lastStart finds the last frame that begins at from or later.
func lastStart(b []byte, from int) (int, error) {
	last := -1
	for at := 0; at < len(b); {
		if at >= from {
			last = at
		}
		end, err := frameEnd(b, at)
		if err != nil {
			return -1, err
		}
		if end == 0 {
			break
		}
		at = end
	}
	if last < 0 {
		return -1, fmt.Errorf("%w: descriptors within a frame", ErrFrame)
	}
	return last, nil
}

// drop closes what was passed and will be given to nobody.
func (a *ahead) drop() {
	for _, g := range a.passed {
		closeAll(g.files)
	}
	a.passed = nil
}
