package server

import (
	"bulkhead/internal/adapter"
	"bulkhead/internal/wire"
)

// What of a frame is filled with messages, and how much one takes beside its
// body. A message is at most adapter.MaxBody and its envelope.
const (
	budget   = wire.MaxFrame - adapter.MaxBody - 64<<10
	envelope = 1 << 10
	step     = 32 // messages that are read at once
)

// The default of limits that are 0, as adapter.ThreadRequest says.
const defaultLimit = 100

// gatherReplay reads in steps until the limit, the end, or a full frame, so
// that a thousand messages of 1 MiB are never in memory together.
func gatherReplay(q adapter.ReplayRequest, read func(adapter.ReplayRequest) (adapter.Page, error)) (adapter.Page, error) {
	return gather(q.Limit, func(limit int, at adapter.Page) (adapter.Page, error) {
		if q.Limit = limit; at.Next != 0 {
			q.From = at.Next
		}
		return read(q)
	})
}

func gatherThread(q adapter.ThreadRequest, read func(adapter.ThreadRequest) (adapter.Page, error)) (adapter.Page, error) {
	return gather(q.Limit, func(limit int, at adapter.Page) (adapter.Page, error) {
		if q.Limit = limit; len(at.Messages) > 0 {
			q.After = at.Messages[len(at.Messages)-1].Sequence
		}
		return read(q)
	})
}

func gather(limit int, read func(limit int, at adapter.Page) (adapter.Page, error)) (adapter.Page, error) {
	if limit == 0 {
		limit = defaultLimit
	}
	var all adapter.Page
	size := 0
	for first := true; first || all.Next != 0 && len(all.Messages) < limit; first = false {
		// A limit that is none goes to the store, which refuses it.
		p, err := read(min(limit-len(all.Messages), step), all)
		if err != nil {
			return adapter.Page{}, err
		}
		for i, m := range p.Messages {
			n := len(m.Body) + envelope
			if size+n > budget && len(all.Messages) > 0 {
				all.Next = p.Messages[i].Sequence
				return all, nil
			}
			size += n
			all.Messages = append(all.Messages, m)
		}
		all.Next = p.Next
		if len(p.Messages) == 0 {
			break
		}
	}
	return all, nil
}

// fit leaves to the next request what does not fit into a frame.
func fit(m *adapter.Missed) {
	size := 0
	for i := range m.Messages {
		if size += len(m.Messages[i].Body) + envelope; size > budget && i > 0 {
			m.Next, m.Messages = m.Messages[i].Sequence, m.Messages[:i]
			return
		}
	}
}
