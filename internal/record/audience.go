package record

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Audience are those who hear of records as they are made. Nobody waits for
// them: whoever does not take what comes loses records, and is told how many.
// The zero value has nobody; a nil one never has.
type Audience struct {
	n atomic.Int32 // of seats: what a busy caller looks at

	mu    sync.Mutex
	seats map[*Seat]bool
}

// Seat is one who hears.
type Seat struct {
	of    *Audience
	queue chan Record
	lost  uint64 // guarded by Audience.mu
}

// Present says whether anybody hears: one load, for a caller that would have to
// make the record.
func (a *Audience) Present() bool { return a != nil && a.n.Load() > 0 }

// Tell never blocks.
func (a *Audience) Tell(r Record) {
	if !a.Present() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for s := range a.seats {
		select {
		case s.queue <- r:
		default:
			s.lost++
		}
	}
}

// Join takes a seat that may be behind by so many records. It is left with Leave.
func (a *Audience) Join(behind int) *Seat {
	s := &Seat{of: a, queue: make(chan Record, behind)}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seats == nil {
		a.seats = map[*Seat]bool{}
	}
	a.seats[s] = true
	a.n.Add(1)
	return s
}

// Leave gives the seat up.
func (s *Seat) Leave() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.of.seats[s] {
		delete(s.of.seats, s)
		s.of.n.Add(-1)
	}
}

// Next waits for a record. What was lost is said by a record of its own, once
// those that were kept have been given. changed, which may be nil, ends the wait
// without a record; ok is false then, and when ctx ends.
func (s *Seat) Next(ctx context.Context, changed <-chan struct{}) (r Record, ok bool) {
	select {
	case r := <-s.queue:
		return r, true
	default:
	}
	s.of.mu.Lock()
	lost := s.lost
	s.lost = 0
	s.of.mu.Unlock()
	if lost > 0 {
		return Lost(lost), true
	}
	select {
	case r := <-s.queue:
		return r, true
	case <-changed:
	case <-ctx.Done():
	}
	return Record{}, false
}

// Lost is the record that so many others were not shown.
func Lost(n uint64) Record {
	return Record{
		SchemaVersion: SchemaVersion, Time: time.Now().UTC(), Kind: Life, Verdict: Failed, Count: n,
		Detail: "events were lost: this watcher reads too slowly",
	}
}
