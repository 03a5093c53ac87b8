package front

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// maxHeld is how many connections of an address one token holds without a request: who
// has one token must not keep everybody else out.
const maxHeld = maxConnections / 8

// places knows which token was shown last on which connection.
type places struct {
	mu    sync.Mutex
	shown map[net.Conn]string
	held  map[string]int
}

func newPlaces() *places { return &places{shown: map[net.Conn]string{}, held: map[string]int{}} }

type connKey struct{}

// remember has the handlers know the connection of a request.
func (*places) remember(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// take says whether the connection may stay open after the answer.
func (p *places) take(r *http.Request, token string) bool {
	c, ok := r.Context().Value(connKey{}).(net.Conn)
	if !ok {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if before, ok := p.shown[c]; !ok || before != token {
		p.drop(c)
		p.shown[c] = token
		p.held[token]++
	}
	return p.held[token] <= maxHeld
}

// changed hears of connections that end.
func (p *places) changed(c net.Conn, state http.ConnState) {
	if state == http.StateClosed || state == http.StateHijacked {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.drop(c)
	}
}

func (p *places) drop(c net.Conn) {
	token, ok := p.shown[c]
	if !ok {
		return
	}
	delete(p.shown, c)
	if p.held[token]--; p.held[token] == 0 {
		delete(p.held, token)
	}
}
