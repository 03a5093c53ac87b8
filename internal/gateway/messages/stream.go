package messages

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/deny"
)

// A stream's times.
const (
	streamWait = 15 * time.Second // of one receive; then a comment shows that the stream lives
	awayPause  = time.Second
)

// streams knows which deliveries of streams are not settled yet.
type streams struct {
	mu   sync.Mutex
	open map[string]*stream // by lease
}

type stream struct {
	leases  map[string]time.Time // when each expires
	changed chan struct{}        // has room for one
}

func (s *streams) init() { s.open = map[string]*stream{} }

// settled tells the stream of a lease that it is over.
func (s *streams) settled(lease string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.open[lease]; t != nil {
		delete(s.open, lease)
		delete(t.leases, lease)
		select {
		case t.changed <- struct{}{}:
		default:
		}
	}
}

// add counts deliveries as not settled.
func (s *streams) add(t *stream, all []adapter.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range all {
		s.open[all[i].Lease] = t
		t.leases[all[i].Lease] = all[i].Expires
	}
}

// room forgets leases that expired, and says how many are left of max and when
// the next one expires.
func (s *streams) room(t *stream, most int, now time.Time) (room int, next time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next = streamWait
	for lease, at := range t.leases {
		if !at.After(now) {
			delete(t.leases, lease)
			delete(s.open, lease)
			continue
		}
		next = min(next, at.Sub(now))
	}
	return most - len(t.leases), next
}

func (s *streams) end(t *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for lease := range t.leases {
		delete(s.open, lease)
	}
}

// serveStream sends deliveries as server-sent events (WHATWG HTML, 9.2), at
// most max of which are not settled. It lives across restarts of the adapter.
// A lease that is extended counts until its first end.
func (m *Messages) serveStream(w http.ResponseWriter, r *http.Request) {
	most := uint64(10)
	channel := r.URL.Query().Get("channel")
	err := numbers(r, map[string]*uint64{"max": &most}, "channel")
	if err == nil && (most == 0 || most > 100) {
		err = invalid(r, "parameters do not fit", deny.Field{Name: "max", Why: "it is not between 1 and 100"})
	}
	if err != nil {
		m.fail(w, r, err)
		return
	}
	t := &stream{leases: map[string]time.Time{}, changed: make(chan struct{}, 1)}
	defer m.watch.end(t)
	// The first look waits for nothing: what is not allowed is refused as any request is.
	text, refused := m.next(r, t, int(most), channel, 0) // #nosec G115 -- at most 100
	if refused != nil {
		Refuse(w, refused)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(w)
	text = append([]byte(": stream\n\n"), text...)
	for {
		if _, err := w.Write(text); err != nil || out.Flush() != nil || refused != nil {
			return
		}
		text, refused = m.next(r, t, int(most), channel, streamWait) // #nosec G115 -- at most 100
		if r.Context().Err() != nil {
			return
		}
		if refused != nil { // what was allowed when the stream began is so no more
			text = append(protocol.Append([]byte("event: refused\ndata: "), refused.Envelope()), "\n\n"...)
		}
	}
}

// next waits for deliveries and gives their events, or a comment. What the
// adapter refuses for good ends the stream.
func (m *Messages) next(r *http.Request, t *stream, most int, channel string, patience time.Duration) ([]byte, *deny.Reason) {
	quiet := []byte(": quiet\n\n")
	ctx := r.Context()
	room, until := m.watch.room(t, most, time.Now())
	if room <= 0 {
		wait(ctx.Done(), t.changed, until)
		return quiet, nil
	}
	conn, linked := m.link.get()
	if conn == nil {
		if patience > 0 {
			wait(ctx.Done(), linked, awayPause)
		}
		return quiet, nil
	}
	all, missing, err := m.receive(ctx, conn, adapter.ReceiveRequest{Max: room, Wait: patience, Channel: channel})
	if err != nil {
		var reason *deny.Reason
		if errors.As(err, &reason) && reason.RetryAfter == 0 {
			return nil, reason
		}
		wait(ctx.Done(), linked, awayPause)
		return quiet, nil
	}
	m.watch.add(t, all)
	var b bytes.Buffer
	for i := range missing {
		b.WriteString("event: replayed\ndata: ")
		if err := json.Compact(&b, protocol.AppendMessage(nil, &missing[i])); err != nil {
			continue
		}
		b.WriteString("\n\n")
	}
	for i := range all {
		b.WriteString("event: delivery\ndata: ")
		// An event ends at a line's end, and a sender's JSON may have lines.
		if err := json.Compact(&b, protocol.AppendDelivery(nil, &all[i])); err != nil {
			continue // the lease ends, and a receive shows what is wrong with it
		}
		b.WriteString("\n\n")
	}
	if b.Len() == 0 {
		return quiet, nil
	}
	return b.Bytes(), nil
}

func wait(done, changed <-chan struct{}, most time.Duration) {
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-done:
	case <-changed:
	case <-t.C:
	}
}
