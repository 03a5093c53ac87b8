package proxy

import (
	"encoding/json"
	"maps"
	"net/http"
	"strconv"

	"bulkhead/internal/deny"
)

// DeniedHeader carries the code of a denial to the client.
const DeniedHeader = "Bulkhead-Denied"

// refuse answers a request with the reason, and writes it down.
func (p *Proxy) refuse(w http.ResponseWriter, r *deny.Reason) {
	p.recordReason(r.What, r)
	status, h, body := refusal(r)
	maps.Copy(w.Header(), h)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // #nosec G705 -- JSON, and said to be
}

// refusal is the answer that gives a reason.
func refusal(r *deny.Reason) (status int, h http.Header, body []byte) {
	e := r.Envelope()
	h = http.Header{"Content-Type": {"application/json"}, "X-Content-Type-Options": {"nosniff"}, DeniedHeader: {string(r.Code)}}
	body, err := json.Marshal(e)
	if err != nil {
		h.Set("Content-Type", "text/plain")
		return http.StatusForbidden, h, []byte("denied\n")
	}
	return e.StatusCode, h, append(body, '\n')
}

func badRequest(what, why string) *deny.Reason {
	return &deny.Reason{
		Layer: deny.LayerEgress, Code: deny.BadTarget, What: what, Why: why, Mend: "ask for http://host[:port]/… or CONNECT host:port, with a listed host and port",
	}
}

// foreign takes what a far side says, which is not the gateway's word.
type foreign struct{ http.ResponseWriter }

// WriteHeader is an answer's head, an interim one's too.
func (w foreign) WriteHeader(status int) {
	delete(w.Header(), DeniedHeader)
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w foreign) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// undenied takes the gateway's word from an answer that switches protocols,
// which is not written by foreign, and from what any announces as its trailer.
func undenied(res *http.Response) error {
	delete(res.Header, DeniedHeader)
	delete(res.Trailer, DeniedHeader)
	return nil
}
