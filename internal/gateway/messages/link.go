package messages

import (
	"context"
	"errors"
	"sync"
	"time"

	"bulkhead/internal/adapter/client"
)

// Pauses between tries to reach the adapter, and the time one may take.
const (
	firstPause  = 10 * time.Millisecond
	lastPause   = 2 * time.Second
	dialTimeout = 10 * time.Second
)

// link is the breaker: it has a connection, or it does not and says so at once.
type link struct {
	socket, token string
	down          func(error) // hears of each time that the adapter is out of reach

	mu      sync.Mutex
	conn    *client.Agent
	changed chan struct{} // closed and made anew when conn changes
}

func newLink(socket, token string, down func(error)) *link {
	return &link{socket: socket, token: token, down: down, changed: make(chan struct{})}
}

// get gives the connection; nil while there is none. The channel is closed
// when that changes.
func (l *link) get() (*client.Agent, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn, l.changed
}

func (l *link) set(c *client.Agent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = c
	close(l.changed)
	l.changed = make(chan struct{})
}

// run keeps a connection until ctx ends.
func (l *link) run(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil {
		dctx, cancel := context.WithTimeout(ctx, dialTimeout)
		c, err := client.Dial(dctx, l.socket, l.token)
		cancel()
		if err == nil {
			l.set(c)
			pause = firstPause
			select {
			case <-c.Done():
			case <-ctx.Done():
			}
			l.set(nil)
			_ = c.Close()
			err = errors.New("the connection to the adapter ended")
		}
		if ctx.Err() != nil {
			return
		}
		l.down(err)
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
		pause = min(2*pause, lastPause)
	}
}
