// Package wire carries Bulkhead's internal protocols over unix sockets.
//
// # Frame
//
// A frame is a 4-byte big-endian length followed by that many bytes of JSON:
// one [Message]. Descriptors travel as SCM_RIGHTS with the first byte of the
// frame they belong to. A frame above [MaxFrame], more than [MaxFiles]
// descriptors, or JSON that is not a Message closes the connection: there is
// no resynchronisation.
//
// # Versions
//
// Every connection starts with one [Hello] each way. A side that does not
// know the other's protocol name or version answers with its own Hello and
// closes. Versions only ever grow; a warden keeps speaking every version that
// a running launcher, shim, dialer or gateway may have.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Limits of a frame.
const (
	MaxFrame = 4 << 20 // bytes of JSON; the largest is a manifest of 1,000 agents
	MaxFiles = 16      // descriptors with one frame
)

// Message is one frame. ID pairs an answer with its request on connections
// that are pipelined; an event that answers nothing has ID 0.
type Message struct {
	ID   uint64          `json:"id,omitempty"`
	Verb string          `json:"verb"`
	Body json.RawMessage `json:"body,omitempty"`
}

// Hello opens a connection.
type Hello struct {
	Protocol string `json:"protocol"` // "warden", "launcher", "shim", "dialer", "pin", "resolver", "gateway"
	Version  int    `json:"version"`
	Build    string `json:"build,omitempty"`
}

// ErrFrame is wrapped by every violation of the frame format.
var ErrFrame = errors.New("wire: malformed frame")

// Conn frames messages over a unix stream socket. Send may be called from
// many goroutines; Recv from one at a time.
type Conn struct {
	c     *net.UnixConn
	ahead *ahead // nil: Recv reads no further than the frame that it gives

	mu sync.Mutex // guards writes
}

// New takes ownership of c.
func New(c *net.UnixConn) *Conn { return &Conn{c: c} }

// Unix gives the socket, for peer credentials and deadlines.
func (c *Conn) Unix() *net.UnixConn { return c.c }

// Close closes the socket.
func (c *Conn) Close() error { return c.c.Close() }

// Send writes one message and passes files with it. The files stay open for
// the caller, who closes them.
func (c *Conn) Send(id uint64, verb string, body any, files ...*os.File) error {
	if len(files) > MaxFiles {
		return fmt.Errorf("%w: %s passes %d descriptors, more than %d", ErrFrame, verb, len(files), MaxFiles)
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			var err error
			if fds[i], err = descriptor(f); err != nil {
				return err
			}
		}
		oob = unix.UnixRights(fds...)
	}
	return c.send(id, verb, body, oob)
}

// SendDescriptor is Send with one descriptor that no file is made of. It stays
// open for the caller, who closes it.
func (c *Conn) SendDescriptor(id uint64, verb string, body any, fd int) error {
	return c.send(id, verb, body, unix.UnixRights(fd))
}

func (c *Conn) send(id uint64, verb string, body any, oob []byte) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("wire: encode %s: %w", verb, err)
	}
	frame, err := encode(id, verb, raw)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n, _, err := c.c.WriteMsgUnix(frame, oob, nil)
	if err == nil && n < len(frame) {
		_, err = c.c.Write(frame[n:])
	}
	if err != nil {
		return fmt.Errorf("wire: send %s: %w", verb, err)
	}
	return nil
}

// encode makes the frame of a [Message] around a body that json.Marshal made.
// Marshalling the Message would read and copy the whole body once more.
func encode(id uint64, verb string, body []byte) ([]byte, error) {
	name, err := json.Marshal(verb)
	if err != nil {
		return nil, fmt.Errorf("wire: encode %s: %w", verb, err)
	}
	frame := make([]byte, 4, 4+len(`{"id":,"verb":,"body":}`)+20+len(name)+len(body))
	frame = append(frame, '{')
	if id != 0 { // as the tag of Message.ID says
		frame = append(frame, `"id":`...)
		frame = strconv.AppendUint(frame, id, 10)
		frame = append(frame, ',')
	}
	frame = append(frame, `"verb":`...)
	frame = append(frame, name...)
	frame = append(frame, `,"body":`...)
	frame = append(frame, body...)
	frame = append(frame, '}')
	n := len(frame) - 4
	if n > MaxFrame {
		return nil, fmt.Errorf("%w: %s is %d bytes, more than %d", ErrFrame, verb, n, MaxFrame)
	}
	binary.BigEndian.PutUint32(frame, uint32(n)) // #nosec G115 -- bounded by MaxFrame above
	return frame, nil
}

// Recv reads one message and the files passed with it, which the caller
// closes. io.EOF means that the peer closed between frames.
func (c *Conn) Recv() (Message, []*os.File, error) {
	if c.ahead != nil {
		return c.ahead.recv(c.c)
	}
	var head [4]byte
	files, err := c.readFull(head[:], nil)
	if err != nil {
		closeAll(files)
		return Message{}, nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > MaxFrame {
		closeAll(files)
		return Message{}, nil, fmt.Errorf("%w: length %d is more than %d", ErrFrame, n, MaxFrame)
	}
	payload := make([]byte, n)
	files, err = c.readFull(payload, files)
	if err != nil {
		closeAll(files)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("%w: ended inside a frame of %d bytes", ErrFrame, n)
		}
		return Message{}, nil, err
	}
	m, err := Decode(payload)
	if err != nil {
		closeAll(files)
		return Message{}, nil, err
	}
	return m, files, nil
}

// Decode parses the JSON of one frame.
func Decode(payload []byte) (Message, error) {
	var m Message
	if err := json.Unmarshal(payload, &m); err != nil {
		return Message{}, fmt.Errorf("%w: %w", ErrFrame, err)
	}
	if m.Verb == "" {
		return Message{}, fmt.Errorf("%w: no verb", ErrFrame)
	}
	return m, nil
}

// readFull fills b and gathers descriptors that arrive on the way.
func (c *Conn) readFull(b []byte, files []*os.File) ([]*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(MaxFiles*4))
	for got := 0; got < len(b); {
		n, oobn, flags, _, err := c.c.ReadMsgUnix(b[got:], oob)
		if oobn > 0 {
			more, perr := parseRights(oob[:oobn])
			files = append(files, more...)
			if perr != nil {
				return files, perr
			}
		}
		if flags&unix.MSG_CTRUNC != 0 || len(files) > MaxFiles {
			return files, fmt.Errorf("%w: more than %d descriptors", ErrFrame, MaxFiles)
		}
		got += n
		if err != nil {
			if got > 0 && errors.Is(err, io.EOF) {
				err = fmt.Errorf("%w: %w", ErrFrame, io.ErrUnexpectedEOF)
			}
			return files, err
		}
		if n == 0 {
			if got == 0 {
				return files, io.EOF
			}
			return files, fmt.Errorf("%w: %w", ErrFrame, io.ErrUnexpectedEOF)
		}
	}
	return files, nil
}

func parseRights(oob []byte) ([]*os.File, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("%w: control message: %w", ErrFrame, err)
	}
	var files []*os.File
	for _, m := range msgs {
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_RIGHTS {
			continue
		}
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, fmt.Errorf("%w: rights: %w", ErrFrame, err)
		}
		for _, fd := range fds { // package net receives them closed on exec (MSG_CMSG_CLOEXEC)
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
