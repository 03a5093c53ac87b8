package store

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
)

// line is one record on its way. A zero rank is that of a record which is
// counted when there is no room.
type line struct {
	text   []byte // JSON, without the line's end
	rank   rank
	denial *kind // of one that is counted when there were many like it; nil: it is not
}

// rank says what becomes of a record when the spool has no room.
type rank int

const (
	counted rank = iota // of a denial or a read: counted
	effect              // of an effect in this store, or a call that begins: refused
	ending              // of a call that was written down as started: may use the reserve, then counted
)

// encode makes a line of a record as one of an effect. It is never longer than
// [record.MaxBytes], whatever an agent called its columns.
func encode(r record.Record) line {
	text, err := r.Append(make([]byte, 0, 384))
	if err != nil {
		// Only an Input that is no JSON does not encode.
		r.Input, r.Detail = nil, "the record could not be encoded: "+err.Error()
		text, _ = r.Append(nil)
	}
	if len(text) > record.MaxBytes {
		r = r.Cut(len(text))
		text, _ = r.Append(text[:0]) // Cut leaves no Input
	}
	return line{text: text, rank: effect}
}

// Write implements tool.Journal.
func (s *Store) Write(ctx context.Context, r record.Record) error {
	l := encode(r)
	switch {
	case r.Reason != nil || r.Verdict == record.Denied: // also what failed for a reason: the agent may call again at once
		l.rank = counted
		k := kindOf(&r)
		l.denial = &k
	case r.Verdict == record.Allowed, r.Verdict == record.Failed:
		l.rank = ending
	}
	return s.do(ctx, &op{record: &l})
}

// Note implements tool.Journal. When too much waits for the disk already, it
// waits until that is there.
func (s *Store) Note(r record.Record) {
	l := encode(r)
	l.rank = counted
	s.mu.Lock()
	if len(s.notes) >= maxNotes {
		s.mu.Unlock()
		if s.do(context.Background(), &op{record: &l}) != nil {
			s.keep([][]byte{l.text}) // a read has no way to refuse; the log says that the disk fails
		}
		return
	}
	s.notes = append(s.notes, l.text)
	first := len(s.notes) == 1
	s.mu.Unlock()
	if first {
		tell(s.note)
	}
}

// keep has notes that could not be written tried again with the next
// transaction.
func (s *Store) keep(notes [][]byte) {
	if len(notes) == 0 {
		return
	}
	s.mu.Lock()
	s.notes = append(notes, s.notes...)
	if len(s.notes) > 2*maxNotes {
		s.notes = append(s.notes[:maxNotes:maxNotes], together(s.notes[maxNotes:])...)
	}
	s.mu.Unlock()
	tell(s.note)
}

// together makes one note of those about the same tool, with their count: while the disk
// fails, what was read is known by number.
func together(notes [][]byte) (out [][]byte) {
	of := map[string]*record.Record{}
	for _, text := range notes {
		var r record.Record
		if json.Unmarshal(text, &r) != nil {
			continue // each was encoded here
		}
		n := max(r.Count, 1)
		if one := of[r.Target]; one != nil {
			n += one.Count
			if one.Token != r.Token {
				r.Token = ""
			}
		}
		r.Count, r.Input, r.Micros = n, nil, 0
		r.Detail = "of calls whose records could not be written for a while"
		of[r.Target] = &r
	}
	for _, target := range slices.Sorted(maps.Keys(of)) {
		out = append(out, encode(*of[target]).text)
	}
	return out
}

// full is what an effect is told when its record finds no room.
func full() *deny.Reason {
	return unavailable("the records of earlier calls wait for the audit, and there is no room for more")
}
