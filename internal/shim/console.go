package shim

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// maxViewers bounds how many operators are attached at a time.
	maxViewers = 8
	// viewerQueue is how many reads of at most consoleRead bytes may wait for an
	// operator. One that takes no more is let go: the command waits for nobody.
	viewerQueue = 64
	consoleRead = 16 << 10
)

// console is the terminal of the container's command. The shim reads it, into
// the log and to everybody who is attached: operators come and go, the command
// stays.
type console struct {
	master *os.File
	log    io.Writer
	over   chan struct{} // closed when nothing more comes

	mu      sync.Mutex
	viewers map[*viewer]struct{}
	closed  bool
}

// viewer is one operator who is attached.
type viewer struct {
	conn  net.Conn
	queue chan []byte
	done  chan struct{} // closed when all that was queued is written
	told  chan struct{} // closed when the operator was told the end, or has left
}

func newConsole(master *os.File, log io.Writer) *console {
	return &console{master: master, log: log, over: make(chan struct{}), viewers: map[*viewer]struct{}{}}
}

// pump reads until the terminal's last user has left.
func (c *console) pump() {
	defer close(c.over)
	buf := make([]byte, consoleRead)
	for {
		n, err := c.master.Read(buf)
		if n > 0 {
			_, _ = c.log.Write(buf[:n]) // a full log is the log's loss
			c.show(buf[:n])
		}
		if err != nil { // EIO is how a terminal ends
			return
		}
	}
}

func (c *console) show(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var copied []byte
	for v := range c.viewers {
		if copied == nil {
			copied = append([]byte(nil), b...)
		}
		select {
		case v.queue <- copied:
		default:
			c.drop(v)
		}
	}
}

// drop lets a viewer go. The caller holds the lock.
func (c *console) drop(v *viewer) {
	if _, there := c.viewers[v]; there {
		delete(c.viewers, v)
		close(v.queue)
	}
}

// errViewers says that nobody more can be attached.
var errViewers = errors.New("attach: as many operators are attached as can be")

// attach adds an operator, and copies what comes from it into the terminal.
func (c *console) attach(conn net.Conn) (*viewer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.New("attach: the command has just ended")
	}
	if len(c.viewers) >= maxViewers {
		return nil, errViewers
	}
	v := &viewer{conn: conn, queue: make(chan []byte, viewerQueue), done: make(chan struct{}), told: make(chan struct{})}
	c.viewers[v] = struct{}{}
	go func() { // ends with detach, finish, or an operator who takes no more
		defer close(v.done)
		for b := range v.queue {
			if _, err := conn.Write(b); err != nil {
				break
			}
		}
		_ = conn.Close()
	}()
	go func() { _, _ = io.Copy(c.master, conn) }() // ends when conn is closed
	return v, nil
}

// detach lets an operator go who has left.
func (c *console) detach(v *viewer) {
	c.mu.Lock()
	c.drop(v)
	c.mu.Unlock()
	_ = v.conn.Close()
	<-v.done
	close(v.told)
}

// finish is called when the command has ended: what it wrote last is shown,
// then everybody is let go.
func (c *console) finish() {
	patience := time.NewTimer(drainTime)
	defer patience.Stop()
	select {
	case <-c.over:
	case <-patience.C: // a background process holds the terminal
	}
	c.mu.Lock()
	c.closed = true
	var left []*viewer
	for v := range c.viewers {
		left = append(left, v)
		c.drop(v)
	}
	c.mu.Unlock()
	for _, v := range left {
		_ = v.conn.SetWriteDeadline(time.Now().Add(drainTime))
		<-v.done
		// The end of this may be the end of the container, and of who tells it.
		late := time.NewTimer(drainTime)
		select {
		case <-v.told:
		case <-late.C:
		}
		late.Stop()
	}
	_ = c.master.Close()
	<-c.over
}
