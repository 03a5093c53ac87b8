package warden

import (
	"testing"

	"bulkhead/internal/record"
)

func TestWatchersHearWhatIsTheirsAndASlowOneIsToldWhatItLost(t *testing.T) {
	e := newEvents()
	all, one := e.watch("", ""), e.watch("pair", "writer")
	e.emit(record.Record{Team: "pair", Agent: "writer", Detail: "a"})
	e.emit(record.Record{Team: "pair", Agent: "reviewer", Detail: "b"})
	e.emit(record.Record{Team: "other", Agent: "writer", Detail: "c"})
	e.emit(record.Record{Detail: "everybody's"})
	if len(all.queue) != 4 || len(one.queue) != 2 {
		t.Fatalf("%d and %d events", len(all.queue), len(one.queue))
	}
	for range 2 * eventQueue {
		e.emit(record.Record{Team: "pair", Agent: "writer"})
	}
	e.leave(one)
	for len(all.queue) > 0 {
		<-all.queue
	}
	e.emit(record.Record{Team: "pair", Agent: "writer", Detail: "last"})
	if first, last := <-all.queue, <-all.queue; first.Count != eventQueue+4 || last.Detail != "last" {
		t.Errorf("%+v, %+v", first, last)
	}
}
