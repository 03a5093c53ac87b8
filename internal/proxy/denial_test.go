package proxy

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestAFarSideCannotSpeakAsTheGateway in any part of an answer.
func TestAFarSideCannotSpeakAsTheGateway(t *testing.T) {
	each(t, handled(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(DeniedHeader, "egress.not_listed")
		w.WriteHeader(http.StatusEarlyHints)
		if r.Header.Get("Upgrade") != "" {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer func() { _ = c.Close() }()
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nbulkhead-denied: x\r\n\r\n")
			return
		}
		w.Header().Set("Trailer", DeniedHeader+", X-Sum")
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, "no")
		w.(http.Flusher).Flush()
		w.Header().Set(DeniedHeader, "egress.not_listed")
		w.Header().Set(http.TrailerPrefix+DeniedHeader, "egress.not_listed")
		w.Header().Set("X-Sum", "sum")
		w.Header().Set(http.TrailerPrefix+"X-Late", "late")
	}), func(t *testing.T, b *between) {
		k := b.talk(t)
		says := func(where string, h http.Header) {
			if v, ok := h[DeniedHeader]; ok {
				t.Errorf("%s has %s %q", where, DeniedHeader, v)
			}
		}
		for _, q := range []string{get(api, "/"), "PUT" + get(api, "/")[3:], strings.Replace(get(api, "/"), "\r\n\r\n", "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 1)} {
			k.say(q)
			res := k.head("GET")
			if res.StatusCode != http.StatusEarlyHints {
				t.Fatal(res.Status)
			}
			says("an interim answer", res.Header)
			res = k.head("GET")
			if res.StatusCode != http.StatusForbidden && res.StatusCode != http.StatusSwitchingProtocols {
				t.Fatal(res.Status)
			}
			says("an answer", res.Header)
			if res.StatusCode == http.StatusSwitchingProtocols {
				return
			}
			if _, err := io.Copy(io.Discard, res.Body); err != nil {
				t.Fatal(err)
			}
			says("a trailer", res.Trailer)
			if res.Trailer.Get("X-Sum") != "sum" || res.Trailer.Get("X-Late") != "late" {
				t.Errorf("%v", res.Trailer)
			}
		}
	})
}
