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
)

// Cut gives the record without what may be long, in at most [MaxBytes] of JSON; Detail
// says how large it was.
func (r Record) Cut(size int) Record {
	r.Input = nil
	r.Detail = fmt.Sprintf("cut, since the record had %d bytes: %s", size, clip(r.Detail, cutText))
	r.Target, r.Token = clip(r.Target, cutText), clip(r.Token, cutField)
	r.Team, r.Agent = clip(r.Team, cutField), clip(r.Agent, cutField)
	if r.Reason != nil {
		reason := *r.Reason
		reason.What, reason.Why, reason.Mend = clip(reason.What, cutText), clip(reason.Why, cutText), clip(reason.Mend, cutText)
		reason.Execution = clip(reason.Execution, cutField)
		reason.Fields = nil
		for _, f := range r.Reason.Fields[:min(len(r.Reason.Fields), cutFields)] {
			reason.Fields = append(reason.Fields, deny.Field{Name: clip(f.Name, cutField), Why: clip(f.Why, cutField)})
		}
		r.Reason = &reason
	}
	return r
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}
