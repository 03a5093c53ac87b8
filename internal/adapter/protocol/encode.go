package protocol

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"

	"bulkhead/internal/adapter"
)

// The forms of encoding/json, made by appending: a message's body is copied
// once and neither parsed nor escaped again. Bodies must be valid JSON; those
// of the store are, and senders check theirs.

// Append appends v, which holds no message bodies, as JSON.
func Append(b []byte, v any) []byte {
	buf := bytes.NewBuffer(b)
	e := json.NewEncoder(buf)
	e.SetEscapeHTML(false) // a body of "<" would grow sixfold, beyond the frame
	if err := e.Encode(v); err != nil {
		// Only types of this package come here; none of them can fail but for a
		// RawMessage that is not JSON.
		return append(b, `null`...)
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte{'\n'})
}

// Body gives v to Conn.Write.
func Body(v any) func([]byte) []byte {
	return func(b []byte) []byte { return Append(b, v) }
}

// AppendDrafts appends a [Send].
func AppendDrafts(b []byte, drafts []adapter.Draft, late bool) []byte {
	b = append(b, `{"drafts":[`...)
	for i := range drafts {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendDraft(b, &drafts[i])
	}
	b = append(b, ']')
	if late {
		b = append(b, `,"late":true`...)
	}
	return append(b, '}')
}

// AppendDraft appends one draft.
func AppendDraft(b []byte, d *adapter.Draft) []byte {
	b = append(b, `{"idempotency_key":`...)
	b = appendString(b, d.IdempotencyKey)
	b = field(b, `,"to":`, d.To)
	b = field(b, `,"channel":`, d.Channel)
	b = append(b, `,"type":`...)
	b = appendString(b, string(d.Type))
	b = field(b, `,"priority":`, string(d.Priority))
	if d.ReplyTo != 0 {
		b = append(b, `,"reply_to_sequence_id":`...)
		b = strconv.AppendUint(b, d.ReplyTo, 10)
	}
	return append(appendRaw(append(b, `,"body":`...), d.Body), '}')
}

// AppendResults appends a [Sent].
func AppendResults(b []byte, results []adapter.SendResult) []byte {
	b = append(b, `{"results":[`...)
	for i := range results {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendResult(b, &results[i])
	}
	return append(b, `]}`...)
}

// AppendResult appends one [Result].
func AppendResult(b []byte, r *adapter.SendResult) []byte {
	if r.Err != nil {
		return Append(b, Result{SendResult: *r, Refused: RefusedBy(r.Err)})
	}
	b = append(b, `{"channel":`...)
	b = appendString(b, r.Channel)
	b = append(b, `,"channel_sequence_id":`...)
	b = strconv.AppendUint(b, r.Sequence, 10)
	b = appendTime(b, `,"timestamp":`, r.Time)
	if r.Duplicate {
		b = append(b, `,"duplicate":true`...)
	}
	return append(b, '}')
}

// AppendDelivery appends one delivery.
func AppendDelivery(b []byte, d *adapter.Delivery) []byte {
	b = append(b, '{')
	b = appendMessage(b, &d.Message)
	b = append(b, `,"lease":`...)
	b = appendString(b, d.Lease)
	b = append(b, `,"attempt":`...)
	b = strconv.AppendInt(b, int64(d.Attempt), 10)
	b = appendTime(b, `,"lease_expires":`, d.Expires)
	if d.Missed != 0 {
		b = append(b, `,"missed_sequence_id":`...)
		b = strconv.AppendUint(b, d.Missed, 10)
	}
	return append(b, '}')
}

// AppendMessage appends one message.
func AppendMessage(b []byte, m *adapter.Message) []byte {
	return append(appendMessage(append(b, '{'), m), '}')
}

// AppendDeadLetter appends one dead letter.
func AppendDeadLetter(b []byte, d *adapter.DeadLetter) []byte {
	b = append(b, `{"id":`...)
	b = strconv.AppendInt(b, d.ID, 10)
	b = append(b, `,"recipient":`...)
	b = appendString(b, d.Recipient)
	b = append(b, `,"reason":`...)
	b = appendString(b, d.Reason)
	b = appendTime(b, `,"at":`, d.At)
	b = append(b, `,"attempts":`...)
	b = strconv.AppendInt(b, int64(d.Attempts), 10)
	return append(appendMessage(append(b, ','), &d.Message), '}')
}

// AppendPage appends an adapter.Page.
func AppendPage(b []byte, p *adapter.Page) []byte {
	b = append(b, `{"messages":`...)
	b = appendMessages(b, p.Messages)
	if p.Next != 0 {
		b = append(b, `,"next":`...)
		b = strconv.AppendUint(b, p.Next, 10)
	}
	return append(b, '}')
}

// AppendMissed appends an adapter.Missed.
func AppendMissed(b []byte, m *adapter.Missed) []byte {
	b = appendMessages(append(b, `{"messages":`...), m.Messages)
	tail := Append(nil, struct {
		Lost []adapter.Range `json:"lost,omitempty"`
		Last uint64          `json:"last_sequence_id"`
		Anew bool            `json:"anew,omitempty"`
		Next uint64          `json:"next,omitempty"`
	}{m.Lost, m.Last, m.Anew, m.Next})
	return append(append(b, ','), tail[1:]...)
}

// AppendTail appends an adapter.Tail.
func AppendTail(b []byte, t *adapter.Tail) []byte {
	b = append(b, `{"messages":`...)
	b = appendMessages(b, t.Messages)
	b = append(b, `,"position":`...)
	return append(strconv.AppendInt(b, t.Position, 10), '}')
}

func appendMessages(b []byte, all []adapter.Message) []byte {
	b = append(b, '[')
	for i := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendMessage(b, &all[i])
	}
	return append(b, ']')
}

func appendMessage(b []byte, m *adapter.Message) []byte {
	b = append(b, `"idempotency_key":`...)
	b = appendString(b, m.IdempotencyKey)
	b = append(b, `,"channel_sequence_id":`...)
	b = strconv.AppendUint(b, m.Sequence, 10)
	b = appendTime(b, `,"timestamp":`, m.Time)
	b = append(b, `,"from":`...)
	b = appendString(b, m.From)
	b = field(b, `,"to":`, m.To)
	b = append(b, `,"channel":`...)
	b = appendString(b, m.Channel)
	b = append(b, `,"type":`...)
	b = appendString(b, string(m.Type))
	b = append(b, `,"priority":`...)
	b = appendString(b, string(m.Priority))
	if m.ReplyTo != 0 {
		b = append(b, `,"reply_to_sequence_id":`...)
		b = strconv.AppendUint(b, m.ReplyTo, 10)
	}
	return appendRaw(append(b, `,"body":`...), m.Body)
}

func field(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	return appendString(append(b, name...), value)
}

func appendTime(b []byte, name string, t time.Time) []byte {
	b = append(append(b, name...), '"')
	return append(t.AppendFormat(b, time.RFC3339Nano), '"')
}

func appendRaw(b []byte, raw json.RawMessage) []byte {
	if len(raw) == 0 {
		return append(b, `null`...)
	}
	return append(b, raw...)
}

func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return Append(b, s)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// AppendDeliveries appends a [Deliveries].
func AppendDeliveries(b []byte, all []adapter.Delivery, more bool) []byte {
	b = append(b, `{"deliveries":[`...)
	for i := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendDelivery(b, &all[i])
	}
	return appendMore(append(b, ']'), more)
}

// AppendDeadLetters appends a [DeadLetters].
func AppendDeadLetters(b []byte, all []adapter.DeadLetter, more bool) []byte {
	b = append(b, `{"dead_letters":[`...)
	for i := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendDeadLetter(b, &all[i])
	}
	return appendMore(append(b, ']'), more)
}

func appendMore(b []byte, more bool) []byte {
	if more {
		b = append(b, `,"more":true`...)
	}
	return append(b, '}')
}
