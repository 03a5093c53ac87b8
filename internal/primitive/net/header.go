package net

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"bulkhead/internal/deny"
)

// Bounds of a request's header.
const (
	maxHeaders     = 64
	maxHeaderBytes = 16 << 10 // names and values together
)

// notTheirs are fields that say where a message goes or how it is framed: who
// sets them can smuggle a second request past a check of the first (RFC 9110,
// 7.6.1; RFC 9112, 6). All of Proxy-* is refused beside them.
var notTheirs = []string{
	"Host", "Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length", "Expect", "Http2-Settings", "Alt-Used",
}

// describing are the fields that go along to another origin: they describe the
// content or the wish and hold no secret.
var describing = []string{
	"Accept", "Accept-Encoding", "Accept-Language", "Content-Type", "Content-Language", "Content-Encoding", "User-Agent", "Range", "If-None-Match", "If-Modified-Since",
}

// ofContent are the fields that go when a redirect drops the body.
var ofContent = []string{"Content-Type", "Content-Language", "Content-Encoding", "Content-Location", "Content-Range", "Content-Disposition"}

// parseHeader reads the field "headers", nil when it is absent, and names every
// fault.
func parseHeader(raw json.RawMessage) (http.Header, []deny.Field) {
	out := http.Header{}
	var given map[string]json.RawMessage
	if raw != nil && json.Unmarshal(raw, &given) != nil {
		return nil, []deny.Field{{Name: "headers", Why: "an object of strings is wanted"}}
	}
	var faults []deny.Field
	size := 0
	for _, name := range slices.Sorted(maps.Keys(given)) {
		var value string
		why := ""
		key := textproto.CanonicalMIMEHeaderKey(name)
		switch {
		case !bytes.HasPrefix(given[name], []byte(`"`)) || json.Unmarshal(given[name], &value) != nil:
			why = "a string is wanted"
		case !httpguts.ValidHeaderFieldName(name):
			why = "it is not the name of a header field"
		case slices.Contains(notTheirs, key) || strings.HasPrefix(key, "Proxy-"):
			why = "this field is set by the gateway"
		case !httpguts.ValidHeaderFieldValue(value):
			why = "its value has a line break or another control character in it"
		case out[key] != nil:
			why = "it is given twice, in another case"
		}
		if why != "" {
			faults = append(faults, deny.Field{Name: "headers." + clip(name), Why: why})
			continue
		}
		size += len(name) + len(value)
		out[key] = []string{strings.Trim(value, " \t")}
	}
	if len(given) > maxHeaders {
		faults = []deny.Field{{Name: "headers", Why: fmt.Sprintf("it has %d fields; at most %d are taken", len(given), maxHeaders)}}
	}
	if size > maxHeaderBytes {
		faults = append(faults, deny.Field{Name: "headers", Why: fmt.Sprintf("it has %d bytes; at most %d are taken", size, maxHeaderBytes)})
	}
	return out, faults
}

// keepDescribing drops all that may be a secret between caller and origin.
func keepDescribing(h http.Header) {
	for name := range h {
		if !slices.Contains(describing, name) {
			delete(h, name)
		}
	}
}

// shownHeader gives an answer's header with names in lower case. Values of one
// name are joined as RFC 9110, 5.3 has it; cookies, which hold commas, by
// lines.
func shownHeader(h http.Header) map[string]string {
	out := make(map[string]string, len(h))
	for name, values := range h {
		by := ", "
		if name == "Set-Cookie" {
			by = "\n"
		}
		out[strings.ToLower(name)] = strings.Join(values, by)
	}
	return out
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
