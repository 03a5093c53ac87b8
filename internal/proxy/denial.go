package proxy

import (
	"encoding/json"
	"net/http"
	"strconv"

	"bulkhead/internal/deny"
)

// DeniedHeader carries the code of a denial to the client.
const DeniedHeader = "Bulkhead-Denied"

// refuse answers a request with the reason, and writes it down.
func (p *Proxy) refuse(w http.ResponseWriter, r *deny.Reason) {
	p.recordReason(r.What, r)
	body, err := json.Marshal(r.Envelope())
	if err != nil {
		http.Error(w, "denied", http.StatusForbidden)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set(DeniedHeader, string(r.Code))
	w.WriteHeader(r.Envelope().StatusCode)
	_, _ = w.Write(append(body, '\n'))
}

func badRequest(what, why string) *deny.Reason {
	return &deny.Reason{
		Layer: deny.LayerEgress, Code: deny.BadTarget, What: what, Why: why, Mend: "ask for http://host[:port]/… or CONNECT host:port, with a listed host and port",
	}
}
