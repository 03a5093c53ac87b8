package socket

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxSplice is how much one call may move, and the size asked for a pipe: what
// Go's own net package uses.
const maxSplice = 1 << 20

// Splice moves bytes from one stream socket to another inside the kernel
// (splice(2)) until from ends, and says how many. Deadlines of both hold. It
// does what io.Copy does between two *net.TCPConn.
func Splice(to, from syscall.Conn) (n int64, err error) {
	in, err := from.SyscallConn()
	if err != nil {
		return 0, err
	}
	out, err := to.SyscallConn()
	if err != nil {
		return 0, err
	}
	p, err := pipes.get()
	if err != nil {
		return 0, err
	}
	clean := false
	defer func() { pipes.put(p, clean) }()
	for {
		filled, err := p.fill(in)
		if filled == 0 || err != nil {
			clean = true
			return n, err
		}
		drained, err := p.drain(out, filled)
		n += drained
		if err != nil {
			return n, err
		}
	}
}

// pipe is what splice(2) needs between two sockets. It is empty between uses.
type pipe struct{ r, w int }

// fill takes what has come, or waits for it; 0 is the end.
func (p *pipe) fill(from syscall.RawConn) (n int64, err error) {
	var inner error
	err = from.Read(func(fd uintptr) bool {
		n, inner = splice(int(fd), p.w, maxSplice) // #nosec G115 -- a descriptor
		return !errors.Is(inner, unix.EAGAIN)      // of the socket: the pipe is empty
	})
	if inner != nil && err == nil {
		err = os.NewSyscallError("splice", inner)
	}
	return n, err
}

// drain writes n bytes that are in the pipe.
func (p *pipe) drain(to syscall.RawConn, n int64) (done int64, err error) {
	var inner error
	err = to.Write(func(fd uintptr) bool {
		for done < n {
			var m int64
			m, inner = splice(p.r, int(fd), int(n-done)) // #nosec G115 -- a descriptor
			if inner != nil {
				return !errors.Is(inner, unix.EAGAIN)
			}
			if m == 0 {
				inner = io.ErrNoProgress
				return true
			}
			done += m
		}
		return true
	})
	if inner != nil && err == nil {
		err = os.NewSyscallError("splice", inner)
	}
	return done, err
}

func splice(from, to, most int) (int64, error) {
	for {
		n, err := unix.Splice(from, nil, to, nil, most, unix.SPLICE_F_NONBLOCK)
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}

// maxPipes bounds how many idle pipes are kept.
const maxPipes = 8

// pool keeps pipes for the next stream: making one takes four calls.
type pool struct {
	mu   sync.Mutex
	idle []*pipe
}

var pipes pool

func (p *pool) get() (*pipe, error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		one := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return one, nil
	}
	p.mu.Unlock()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	// Beyond the account's share of pipe memory it stays as it is: slower.
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, maxSplice) // #nosec G115 -- a descriptor
	return &pipe{fds[0], fds[1]}, nil
}

// put takes a pipe back when nothing is left in it.
func (p *pool) put(one *pipe, clean bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if clean && len(p.idle) < maxPipes {
		p.idle = append(p.idle, one)
		return
	}
	_ = unix.Close(one.r)
	_ = unix.Close(one.w)
}
