package record

import (
	"fmt"

	"bulkhead/internal/deny"
)

// MaxBytes is how many bytes the JSON of a record has at most where it is kept for
// longer than a log. What an agent wrote ends up in reasons, and a record that nobody
// takes would stop all that come after it.
const MaxBytes = 64 << 10

// Bounds of a record that was cut. A byte takes six at most as JSON.
const (
	cutText   = 1024 // bytes of a text
	cutFields = 16
	cutField  = 128 // bytes of a field's name, and of why
	maxReason = 8 << 10
)

// Cut gives the record without what may be long, in at most [MaxBytes] of JSON; Detail
// says how large it was.
func (r Record) Cut(size int) Record {
	r.Input = nil
	r.Detail = fmt.Sprintf("cut, since the record had %d bytes: %s", size, clip(r.Detail, cutText))
	r.Target, r.Token = clip(r.Target, cutText), clip(r.Token, cutField)
	r.Team, r.Agent = clip(r.Team, cutField), clip(r.Agent, cutField)
	if r.Reason != nil {
		r.Reason = short(r.Reason)
	}
	return r
}

func short(r *deny.Reason) *deny.Reason {
	out := *r
	out.What, out.Why, out.Mend = clip(r.What, cutText), clip(r.Why, cutText), clip(r.Mend, cutText)
	out.Execution = clip(r.Execution, cutField)
	out.Fields = nil
	for _, f := range r.Fields[:min(len(r.Fields), cutFields)] {
		out.Fields = append(out.Fields, deny.Field{Name: clip(f.Name, cutField), Why: clip(f.Why, cutField)})
	}
	return &out
}

// inLog gives a reason as a line of a log has it: not as long as what was asked for may
// be, and without what it quotes; nil for nil.
func inLog(r *deny.Reason) *deny.Reason {
	if r = r.ForRecord(); r == nil {
		return nil
	}
	size := len(r.What) + len(r.Why) + len(r.Mend)
	for _, f := range r.Fields {
		size += len(f.Name) + len(f.Why)
	}
	if size > maxReason {
		return short(r)
	}
	return r
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}
