package dialer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// places bounds how many sockets this dialer has given away that are still
// alive, whoever holds them by now.
//
// Who holds a passed socket cannot be asked, and the dialer keeps none itself: it
// would never be told that the others have let go. But an epoll instance
// forgets a file when its last holder anywhere closes it, and not before
// (epoll(7), "Will closing a file descriptor cause it to be removed"), and the
// kernel lists what an instance has in /proc/self/fdinfo (proc(5)). So every
// socket is added to one before it is passed on, and nobody ever waits on it. A
// captured gateway that disconnects a socket, hides it or hands it on does not
// make room. What a former dialer gave away is not counted.
type places struct {
	limit int
	epoll *os.File
	list  string // its page of /proc

	mu      sync.Mutex // guards what follows
	taken   int        // being connected
	given   int        // given away and perhaps alive: never too low
	buckets bucket
}

// errFull says that every place is taken; errFast that places were taken too
// fast for too long.
var (
	errFull = errors.New("every connection is in use")
	errFast = errors.New("too many new connections in too short a time")
)

func newPlaces(limit, perSecond int) (*places, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("dialer: epoll: %w", err)
	}
	p := &places{limit: limit, epoll: os.NewFile(uintptr(fd), "epoll"), list: "/proc/self/fdinfo/" + strconv.Itoa(fd), buckets: bucket{perSecond: perSecond}} // #nosec G115 -- a descriptor
	// A bound that cannot be counted is none: say so before anybody asks.
	if _, err := p.count(); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *places) close() error { return p.epoll.Close() }

// take waits for its turn and takes a place. Whoever took one gives it back
// with [places.leave], or keeps it by [places.keep].
func (p *places) take(ctx context.Context) error {
	wait, err := p.tryTake(time.Now())
	if err != nil || wait <= 0 {
		return err
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		p.leave()
		return ctx.Err()
	}
}

func (p *places) tryTake(now time.Time) (time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken+p.given >= p.limit {
		n, err := p.count()
		if err != nil {
			return 0, err
		}
		if p.given = n; p.taken+p.given >= p.limit {
			return 0, errFull
		}
	}
	wait, ok := p.buckets.take(now)
	if !ok {
		return 0, errFast
	}
	p.taken++
	return wait, nil
}

// leave gives a place back: nothing was given away.
func (p *places) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
}

// keepConn is [places.keep] for a socket that is in somebody's hands.
func (p *places) keepConn(sock syscall.Conn) error {
	raw, err := sock.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = p.keep(descriptor(fd)) }) // #nosec G115 -- a descriptor
	return errors.Join(err, inner)
}

// keep makes the place a socket's, until its last holder closes it.
func (p *places) keep(sock descriptor) error {
	// Once is no time: the kernel always adds EPOLLERR and EPOLLHUP, which
	// then are reported to nobody and cost nothing from then on.
	err := unix.EpollCtl(int(p.epoll.Fd()), unix.EPOLL_CTL_ADD, int(sock), &unix.EpollEvent{Events: unix.EPOLLONESHOT}) // #nosec G115 -- a descriptor
	if err != nil {
		return fmt.Errorf("dialer: count a socket: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	p.given++
	return nil
}

// count asks the kernel how many of the sockets are alive.
func (p *places) count() (int, error) {
	raw, err := os.ReadFile(p.list) // #nosec G304 -- procfs, our own page
	if err != nil {
		return 0, fmt.Errorf("dialer: count open connections: %w", err)
	}
	return countTargets(raw), nil
}

// countTargets counts the files in an epoll instance's page of /proc/PID/fdinfo.
func countTargets(page []byte) (n int) {
	for line := range bytes.Lines(page) {
		if bytes.HasPrefix(line, []byte("tfd:")) {
			n++
		}
	}
	return n
}

// bucket bounds how many connections are made in a time. A closed one keeps its
// local port for a minute (TIME_WAIT), which is then nobody's on this host
// towards the same destination: without a bound one agent could take them all.
type bucket struct {
	perSecond int     // for long; 0: no bound
	spent     float64 // of burst, as of at
	at        time.Time
}

// Of a bucket.
const (
	burstSeconds = 64              // as many seconds' worth may be made at once
	bucketWait   = 2 * time.Second // longer nobody is kept waiting
)

// take says how long to wait before the next connection is made; ok is false
// when that would be too long, and nothing was taken.
func (b *bucket) take(now time.Time) (wait time.Duration, ok bool) {
	if b.perSecond <= 0 {
		return 0, true
	}
	rate := float64(b.perSecond)
	if !b.at.IsZero() {
		b.spent = max(0, b.spent-now.Sub(b.at).Seconds()*rate)
	}
	b.at = now
	if over := b.spent + 1 - rate*burstSeconds; over > 0 {
		wait = time.Duration(over / rate * float64(time.Second))
	}
	if wait > bucketWait {
		return 0, false
	}
	b.spent++
	return wait, true
}
