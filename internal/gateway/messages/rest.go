package messages

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"

	"golang.org/x/sync/semaphore"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/deny"
)

// Limits of requests.
const (
	maxSingle = adapter.MaxBody + 16<<10 // one draft with its envelope
	maxMany   = 8 << 20                  // a batch
	maxSmall  = 256 << 10                // everything else
	maxBodies = 48 << 20                 // of all requests that are being served
)

// DeniedHeader carries the code of a denial.
const DeniedHeader = "Bulkhead-Denied"

// budget bounds the memory that bodies of requests take.
type budget struct{ free *semaphore.Weighted }

func newBudget() budget { return budget{semaphore.NewWeighted(maxBodies)} }

// Mux is what Register adds endpoints to, as [http.ServeMux] has it.
type Mux interface {
	HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request))
}

// Register adds the endpoints to mux.
func (m *Messages) Register(mux Mux) {
	mux.HandleFunc("POST /v1/messages", m.serveSend)
	mux.HandleFunc("POST /v1/messages:batch", m.serveBatch)
	mux.HandleFunc("POST /v1/messages:receive", m.serveReceive)
	mux.HandleFunc("GET /v1/messages:stream", m.serveStream)
	mux.HandleFunc("POST /v1/messages:ack", m.serveAck)
	mux.HandleFunc("POST /v1/messages:refuse", m.serveRefuse)
	mux.HandleFunc("POST /v1/messages:extend", m.serveExtend)
	mux.HandleFunc("GET /v1/channels", m.serveChannels)
	mux.HandleFunc("POST /v1/channels:request", m.serveRequest)
	mux.HandleFunc("GET /v1/channels/{channel}/messages", m.serveReplay)
	mux.HandleFunc("GET /v1/channels/{channel}/threads/{sequence}", m.serveThread)
	mux.HandleFunc("GET /v1/outbox", m.serveOutbox)
}

// Sends are the handlers of sends that Register adds, by path. Each reads all of a
// body whose length it takes, and answers as a whole.
func (m *Messages) Sends() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{"/v1/messages": m.serveSend, "/v1/messages:batch": m.serveBatch}
}

// read takes a request's body of at most limit bytes. give returns its share
// of the memory.
func (m *Messages) read(w http.ResponseWriter, r *http.Request, limit int64) (body []byte, give func(), err error) {
	size := r.ContentLength
	if size < 0 {
		size = limit
	}
	if size > limit {
		return nil, nil, tooLarge(r, limit)
	}
	if err := m.bytes.free.Acquire(r.Context(), size); err != nil {
		return nil, nil, err
	}
	give = func() { m.bytes.free.Release(size) }
	if r.ContentLength >= 0 {
		body = make([]byte, size)
		_, err = io.ReadFull(r.Body, body)
	} else {
		body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	}
	if err != nil {
		give()
		var over *http.MaxBytesError
		if errors.As(err, &over) {
			return nil, nil, tooLarge(r, limit)
		}
		return nil, nil, invalid(r, "the body ended early: "+err.Error())
	}
	return body, give, nil
}

func tooLarge(r *http.Request, limit int64) *deny.Reason {
	return &deny.Reason{
		Layer: deny.LayerMessages, Code: deny.MessageTooLarge, What: r.Method + " " + r.URL.Path,
		Why: "the request has more than " + strconv.FormatInt(limit, 10) + " bytes", Mend: "put large content into a file and send its name; a message's body is at most 1 MiB",
	}
}

func invalid(r *http.Request, why string, fields ...deny.Field) *deny.Reason {
	return &deny.Reason{
		Layer: deny.LayerMessages, Code: deny.MessageInvalid, What: r.Method + " " + r.URL.Path, Why: why,
		Mend: "send what GET /v1/openapi.json says", Fields: fields,
	}
}

// decode reads a small request whose fields are those of into, all optional.
func (m *Messages) decode(w http.ResponseWriter, r *http.Request, into any) error {
	body, give, err := m.read(w, r, maxSmall)
	if err != nil {
		return err
	}
	defer give()
	if len(body) == 0 {
		body = []byte("{}")
	}
	if fields := strict(body, into); len(fields) > 0 {
		return invalid(r, "the body does not fit", fields...)
	}
	return nil
}

// fail answers with an error envelope.
func (m *Messages) fail(w http.ResponseWriter, r *http.Request, err error) {
	reason := m.reason(r, err)
	Refuse(w, reason)
}

// reason turns what is no refusal into one.
func (m *Messages) reason(r *http.Request, err error) *deny.Reason {
	return reasonFor(r.Method+" "+r.URL.Path, err)
}

func reasonFor(what string, err error) *deny.Reason {
	var reason *deny.Reason
	if errors.As(err, &reason) {
		return reason
	}
	return unavailable(what, err.Error())
}

// Refuse answers a request with a reason.
func Refuse(w http.ResponseWriter, reason *deny.Reason) {
	e := reason.Envelope()
	body, err := json.Marshal(e)
	if err != nil { // an Envelope is plain text
		http.Error(w, "denied", e.StatusCode)
		return
	}
	h := w.Header()
	h.Set(DeniedHeader, string(reason.Code))
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(e.RetryAfter))
	}
	write(w, e.StatusCode, append(body, '\n'))
}

// write answers with JSON whose length is known, so that nothing is chunked.
func write(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h["Content-Type"] = jsonType
	h["X-Content-Type-Options"] = noSniff
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body) // #nosec G705 -- JSON, said to be, with nosniff; a client that left is none of ours
}

var (
	jsonType = []string{"application/json"}
	noSniff  = []string{"nosniff"}
)

func answer(w http.ResponseWriter, status int, v any) {
	write(w, status, append(protocol.Append(nil, v), '\n'))
}
