package messages

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/deny"
	"bulkhead/internal/jsonscan"
	"bulkhead/internal/record"
)

// Queued is the answer to a draft that is in the outbox.
type Queued struct {
	IdempotencyKey string `json:"idempotency_key"`
	Outbox         bool   `json:"outbox"` // true: durable in the outbox, not yet with the adapter
}

// Item is the answer to one of several drafts.
type Item struct {
	Status int                 `json:"status"`           // as of a single one: 201, 200, 202 or that of error
	Result *adapter.SendResult `json:"result,omitempty"` // with 201 and 200
	Error  *deny.Envelope      `json:"error,omitempty"`
}

// Batch sends several drafts.
type Batch struct {
	Messages []json.RawMessage `json:"messages"` // adapter.Draft; each is judged on its own
}

// Items answers several.
type Items struct {
	Results []Item `json:"results"`
}

func (m *Messages) serveSend(w http.ResponseWriter, r *http.Request) {
	body, give, err := m.read(w, r, maxSingle)
	if err != nil {
		m.unfit(r, err)
		m.fail(w, r, err)
		return
	}
	defer give()
	d, reason := draft(r, body)
	if reason != nil {
		m.unfit(r, reason)
		Refuse(w, reason)
		return
	}
	o := m.send(r.Context(), d)
	switch {
	case o.Err != nil:
		m.fail(w, r, o.Err)
	case o.queued:
		answer(w, http.StatusAccepted, Queued{IdempotencyKey: d.IdempotencyKey, Outbox: true})
	default:
		status := http.StatusCreated
		if o.Duplicate {
			status = http.StatusOK
		}
		write(w, status, append(protocol.AppendResult(make([]byte, 0, 192), &o.SendResult), '\n'))
	}
}

// unfit writes down that a send was refused here, for its form or its size; what
// repeats is folded. What the adapter refuses, it writes down itself.
func (m *Messages) unfit(r *http.Request, err error) {
	var reason *deny.Reason
	if errors.As(err, &reason) {
		m.cfg.Log.Add(m.cfg.Agent, record.Message, "gateway.sock "+r.URL.Path, record.Denied, reason)
	}
}

func (m *Messages) serveBatch(w http.ResponseWriter, r *http.Request) {
	body, give, err := m.read(w, r, maxMany)
	if err != nil {
		m.unfit(r, err)
		m.fail(w, r, err)
		return
	}
	defer give()
	q, usual := scanBatch(body)
	if !usual {
		q = Batch{}
		if fields := strict(body, &q); len(fields) > 0 {
			reason := invalid(r, "the body does not fit", fields...)
			m.unfit(r, reason)
			Refuse(w, reason)
			return
		}
	}
	if len(q.Messages) == 0 || len(q.Messages) > adapter.MaxBatch {
		reason := invalid(r, "the body does not fit", deny.Field{Name: "messages", Why: fmt.Sprintf("%d are not between 1 and %d", len(q.Messages), adapter.MaxBatch)})
		m.unfit(r, reason)
		Refuse(w, reason)
		return
	}
	items := make([]Item, len(q.Messages))
	var drafts []adapter.Draft
	var at []int
	for i, text := range q.Messages {
		d, reason := draft(r, text)
		if reason != nil {
			m.unfit(r, reason)
			items[i] = refusedItem(reason)
			continue
		}
		drafts, at = append(drafts, d), append(at, i)
	}
	for j, o := range m.sendAll(r.Context(), drafts) {
		items[at[j]] = m.item(r, &o)
	}
	write(w, http.StatusMultiStatus, appendItems(make([]byte, 0, 256*len(items)), items))
}

// appendItems appends an [Items], those that were taken without reflection.
func appendItems(b []byte, items []Item) []byte {
	b = append(b, `{"results":[`...)
	for i := range items {
		if i > 0 {
			b = append(b, ',')
		}
		if items[i].Result == nil {
			b = protocol.Append(b, &items[i])
			continue
		}
		b = append(b, `{"status":`...)
		b = strconv.AppendInt(b, int64(items[i].Status), 10)
		b = protocol.AppendResult(append(b, `,"result":`...), items[i].Result)
		b = append(b, '}')
	}
	return append(b, "]}\n"...)
}

// scanBatch reads a batch in its usual form, without reflection.
func scanBatch(body []byte) (q Batch, ok bool) {
	ok = jsonscan.Object(body, func(name, value []byte) bool {
		return string(name) == "messages" && q.Messages == nil && jsonscan.Array(value, func(value []byte) bool {
			q.Messages = append(q.Messages, value)
			return true
		})
	})
	return q, ok
}

func (m *Messages) item(r *http.Request, o *outcome) Item {
	switch {
	case o.Err != nil:
		return refusedItem(m.reason(r, o.Err))
	case o.queued:
		return Item{Status: http.StatusAccepted}
	case o.Duplicate:
		return Item{Status: http.StatusOK, Result: &o.SendResult}
	}
	return Item{Status: http.StatusCreated, Result: &o.SendResult}
}

func refusedItem(reason *deny.Reason) Item {
	e := reason.Envelope()
	return Item{Status: e.StatusCode, Error: &e}
}

// Outbox is what the outbox holds.
type Outbox struct {
	Waiting []Waiting `json:"waiting"` // oldest first
	Refused []Refused `json:"refused"` // answered 202, then refused by the adapter; the last ones, oldest first
}

// Waiting is a draft that the adapter has not yet.
type Waiting struct {
	IdempotencyKey string       `json:"idempotency_key"`
	To             string       `json:"to,omitempty"`
	Channel        string       `json:"channel,omitempty"`
	Type           adapter.Type `json:"type"`
	Since          string       `json:"since"`            // RFC 3339
	Reason         *deny.Reason `json:"reason,omitempty"` // why the adapter does not take it yet
}

// Refused is a draft that the adapter refused for good.
type Refused struct {
	adapter.Draft
	Queued string        `json:"queued"`  // RFC 3339
	At     string        `json:"refused"` // RFC 3339
	Error  deny.Envelope `json:"error"`
}
