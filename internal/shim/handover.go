package shim

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"bulkhead/internal/wire"
)

// How often the gateway is tried: soon after it went away, then less often.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = time.Second
)

// handover keeps the listeners with the gateway.
type handover struct {
	socket, token string
	listeners     []wire.Listener
	files         []*os.File // in the order of listeners; open for as long as the shim lives
	relayed       bool
	kept          []net.Listener // when relayed, in place of files
	news          *news

	mu      sync.Mutex
	given   int
	waiting string
}

// state says how many listeners are with the gateway, and what it waits for.
func (h *handover) state() (given int, waiting string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.given, h.waiting
}

func (h *handover) set(given int, waiting string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.given, h.waiting = given, waiting
	h.news.tell()
}

// listen opens the listeners. From here on clients can connect and wait.
func (s *shim) listen() error {
	if len(s.cfg.Listeners) == 0 {
		return nil
	}
	h := &handover{socket: s.cfg.GatewaySocket, token: s.cfg.Token, listeners: s.cfg.Listeners, news: &s.news, waiting: "the gateway has not taken the listeners yet"}
	for _, l := range s.cfg.Listeners {
		f, err := listenFile(l.Address)
		if err != nil {
			return fmt.Errorf("listen on %s for %s: %w", l.Address, l.Target, err)
		}
		h.files = append(h.files, f)
	}
	s.handover = h
	if s.cfg.Relayed {
		h.relayed = true
		return h.open()
	}
	return nil
}

// listenFile opens a TCP listener and gives it as a plain descriptor.
func listenFile(address string) (*os.File, error) {
	addr, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, err
	}
	l, err := net.ListenTCP("tcp", addr)
	if err != nil {
		return nil, err
	}
	f, err := l.File()
	if cerr := l.Close(); err == nil {
		err = cerr
	}
	return f, err
}

// run hands the listeners over until ctx ends.
func (h *handover) run(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil {
		had, err := h.once(ctx)
		if had {
			pause = firstPause
		}
		if err != nil {
			h.set(0, err.Error())
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
		pause = min(2*pause, lastPause)
	}
}

// once hands over and waits until the gateway is gone. had says that it had
// taken them.
func (h *handover) once(ctx context.Context) (had bool, err error) {
	conn, err := h.dial(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Unix().SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if h.relayed {
		if err := h.announce(conn); err != nil {
			return false, fmt.Errorf("announce the listeners: %w", err)
		}
	}
	for i := 0; i < len(h.files); i += wire.MaxFiles {
		end := min(i+wire.MaxFiles, len(h.files))
		if err := h.give(conn, uint64(i+1), i, end); err != nil { // #nosec G115 -- small
			return false, err
		}
		h.set(end, "the gateway takes the listeners")
	}
	h.set(len(h.listeners), "")
	_, files, _ := conn.Recv() // nothing comes; this ends with the connection
	for _, f := range files {
		_ = f.Close()
	}
	return true, fmt.Errorf("the gateway ended; waiting for the next one")
}

func (h *handover) give(conn *wire.Conn, id uint64, from, to int) error {
	req := wire.ListenRequest{Token: h.token, Listeners: h.listeners[from:to]}
	if err := conn.Send(id, wire.VerbListen, req, h.files[from:to]...); err != nil {
		return fmt.Errorf("hand the listeners over: %w", err)
	}
	m, files, err := conn.Recv()
	for _, f := range files {
		_ = f.Close()
	}
	if err != nil {
		return fmt.Errorf("hand the listeners over: %w", err)
	}
	if m.Verb == wire.VerbOK {
		return nil
	}
	var fail wire.Failure
	if err := json.Unmarshal(m.Body, &fail); err != nil || fail.Message == "" {
		return fmt.Errorf("the gateway answered %q to the listeners", m.Verb)
	}
	return fmt.Errorf("the gateway refused the listeners: %s", fail.Message)
}
