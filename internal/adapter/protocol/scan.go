package protocol

import (
	"bytes"
	"encoding/json"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/jsonscan"
)

// The forms that encode.go makes are read without reflection, and a body
// once. What is not in the usual form (an escape in a name, a field twice, null)
// is left to encoding/json: ok is false then, and nothing is said about it.

// ScanDraft reads a draft. Its body is a part of text.
func ScanDraft(text []byte) (d adapter.Draft, ok bool) {
	ok = jsonscan.Object(text, scanner(&d))
	return d, ok
}

// scanner fills in d.
func scanner(d *adapter.Draft) func(name, value []byte) bool {
	seen := 0
	return func(name, value []byte) bool {
		var into *string
		bit := 0
		switch string(name) {
		case "idempotency_key":
			into, bit = &d.IdempotencyKey, 1
		case "to":
			into, bit = &d.To, 2
		case "channel":
			into, bit = &d.Channel, 4
		case "type":
			into, bit = (*string)(&d.Type), 8
		case "priority":
			into, bit = (*string)(&d.Priority), 16
		case "reply_to_sequence_id":
			bit = 32
			var whole bool
			if d.ReplyTo, whole = jsonscan.Uint(value); !whole {
				return false
			}
		case "body":
			bit = 64
			d.Body = json.RawMessage(value)
		default:
			return false
		}
		if into != nil {
			s, plain := jsonscan.Plain(value)
			if !plain {
				return false
			}
			*into = string(s)
		}
		twice := seen&bit != 0
		seen |= bit
		return !twice
	}
}

// ReadSend reads a [Send], whose bodies are parts of text and JSON.
func ReadSend(text []byte) (q Send, err error) {
	if q, ok := readOwn(text); ok {
		return q, nil
	}
	if jsonscan.Object(text, func(name, value []byte) bool {
		if string(name) == "late" && string(value) == "true" && !q.Late {
			q.Late = true
			return true
		}
		if string(name) != "drafts" || q.Drafts != nil {
			return false
		}
		q.Drafts = []adapter.Draft{}
		return jsonscan.Array(value, func(value []byte) bool {
			d, ok := ScanDraft(value)
			q.Drafts = append(q.Drafts, d)
			return ok
		})
	}) {
		return q, nil
	}
	q = Send{}
	return q, json.Unmarshal(text, &q)
}

// readOwn reads what AppendDrafts makes, and looks at each byte of it once.
func readOwn(text []byte) (q Send, ok bool) {
	text, ok = bytes.CutPrefix(text, []byte(`{"drafts":[`))
	for ok {
		var d adapter.Draft
		before := len(text)
		if text, ok = jsonscan.First(text, 2, scanner(&d)); !ok {
			break
		}
		if q.Drafts == nil { // the others may be as long
			q.Drafts = make([]adapter.Draft, 0, min(adapter.MaxBatch, 1+len(text)/(before-len(text))))
		}
		q.Drafts = append(q.Drafts, d)
		if text, ok = bytes.CutPrefix(text, []byte{','}); ok {
			continue
		}
		q.Late = string(text) == `],"late":true}`
		return q, q.Late || string(text) == `]}`
	}
	return Send{}, false
}

// ReadSent reads a [Sent].
func ReadSent(text []byte) (s Sent, err error) {
	only := false
	if jsonscan.Object(text, func(name, value []byte) bool {
		if string(name) != "results" || only {
			return false
		}
		only = true
		return jsonscan.Array(value, func(value []byte) bool {
			r, ok := scanResult(value)
			s.Results = append(s.Results, r)
			return ok
		})
	}) {
		return s, nil
	}
	s = Sent{}
	return s, json.Unmarshal(text, &s)
}

// scanResult reads the Result of a draft that was taken.
func scanResult(text []byte) (r Result, ok bool) {
	seen := 0
	ok = jsonscan.Object(text, func(name, value []byte) bool {
		bit := 0
		switch string(name) {
		case "channel":
			bit = 1
			s, plain := jsonscan.Plain(value)
			if !plain {
				return false
			}
			r.Channel = string(s)
		case "channel_sequence_id":
			bit = 2
			var whole bool
			if r.Sequence, whole = jsonscan.Uint(value); !whole {
				return false
			}
		case "timestamp":
			bit = 4
			s, plain := jsonscan.Plain(value)
			if !plain {
				return false
			}
			var err error
			if r.Time, err = time.Parse(time.RFC3339Nano, string(s)); err != nil {
				return false
			}
		case "duplicate":
			bit = 8
			if string(value) != "true" {
				return false
			}
			r.Duplicate = true
		default:
			return false
		}
		twice := seen&bit != 0
		seen |= bit
		return !twice
	})
	return r, ok
}
