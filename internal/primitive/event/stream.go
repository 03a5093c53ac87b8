package event

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"
)

// quietAfter is when a comment shows that a stream lives.
const quietAfter = 15 * time.Second

// ServeStream sends the events of a subscription as server-sent events (WHATWG
// HTML, 9.2) until the client leaves. Each moves the subscription on before it
// is sent. Whoever calls it has decided that this may be.
func (e *Events) ServeStream(w http.ResponseWriter, r *http.Request, topic, sub string) error {
	from := e.source(query{topic: topic, sub: sub, limit: maxPolled, after: -1}, nil)
	fresh := from.fresh()
	first, err := from.read(r.Context())
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(w)
	list := first.Messages
	text := append([]byte(": stream\n\n"), encode(list)...)
	for {
		if _, err := w.Write(text); err != nil || out.Flush() != nil {
			return nil //nolint:nilerr // the client left
		}
		text = nil
		for text == nil {
			if len(list) == 0 { // else there may be more already
				timer := time.NewTimer(quietAfter)
				select {
				case <-r.Context().Done():
					timer.Stop()
					return nil
				case <-fresh:
				case <-timer.C:
					text = []byte(": quiet\n\n")
				}
				timer.Stop()
			}
			fresh = from.fresh()
			next, err := from.read(r.Context())
			if err != nil {
				return nil //nolint:nilerr // the subscription was ended, or the store is closing: so is the stream
			}
			if list = next.Messages; len(list) > 0 {
				text = encode(list)
			}
		}
	}
}

func encode(list []Message) []byte {
	var b bytes.Buffer
	for i := range list {
		line, err := json.Marshal(list[i]) // compact: an event ends at a line's end
		if err != nil {
			continue // only what was JSON before
		}
		b.WriteString("event: message\nid: ")
		b.WriteString(list[i].ID)
		b.WriteString("\ndata: ")
		b.Write(line)
		b.WriteString("\n\n")
	}
	return b.Bytes()
}
