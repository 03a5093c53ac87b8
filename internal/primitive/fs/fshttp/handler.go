// Package fshttp serves an agent's files as streams: PUT, GET and HEAD
// /v1/files/{path...}.
//
// A request is one call of fs_write or fs_read like any other: the same table
// decides, counts and writes it down. Only the content does not go through
// JSON, so that 100 MiB take no more of the gateway's memory than 1 KiB.
package fshttp

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"

	"bulkhead/internal/deny"
	"bulkhead/internal/primitive/fs"
	"bulkhead/internal/tool"
)

// Pattern is what the handler is to be mounted at, in a [http.ServeMux].
const Pattern = "/v1/files/{path...}"

// Caller does a call; a *tool.Dispatcher.
type Caller interface {
	Call(ctx context.Context, who tool.Caller, name string, input []byte) (json.RawMessage, *deny.Reason)
}

// Handler serves [Pattern]. who says who calls, for a request that has been
// let in. The server's timeouts bound how slow a body may come.
func Handler(calls Caller, who func(*http.Request) tool.Caller) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		switch r.Method {
		case http.MethodPut:
			put(calls, who(r), w, r)
		case http.MethodGet, http.MethodHead:
			get(calls, who(r), w, r)
		default:
			h.Set("Allow", "GET, HEAD, PUT")
			http.Error(w, "GET, HEAD or PUT is wanted; fs_delete deletes", http.StatusMethodNotAllowed)
		}
	})
}

// put answers 200 with what fs_write answers.
func put(calls Caller, who tool.Caller, w http.ResponseWriter, r *http.Request) {
	in := map[string]string{"path": r.PathValue("path")}
	if t := r.Header.Get("Content-Type"); t != "" {
		in["contentType"] = t
	}
	// One byte more than a file may have is enough to refuse it.
	body := http.MaxBytesReader(w, r.Body, fs.MaxFile+1)
	out, reason := call(fs.WithBody(r.Context(), io.Reader(body), r.ContentLength), calls, who, "fs_write", in)
	if reason != nil {
		refuse(w, reason)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(out) // the caller is gone, or not
}

// get answers with the content, or a range of it.
func get(calls Caller, who tool.Caller, w http.ResponseWriter, r *http.Request) {
	in := map[string]string{"path": r.PathValue("path")}
	served := false
	ctx := fs.WithSink(r.Context(), func(f *fs.File) error {
		served = true
		h := w.Header()
		h.Set("Content-Type", f.ContentType)
		// What an agent stored is never a page of the address that serves its
		// tools: a script in it could call them.
		h.Set("Content-Disposition", `attachment; filename*=UTF-8''`+encode(path.Base(f.Path)))
		h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
		h.Set("Cache-Control", "no-store")
		h.Set("ETag", `"`+strconv.FormatInt(f.Modified.UnixNano(), 36)+"-"+strconv.FormatInt(f.SizeBytes, 36)+`"`)
		http.ServeContent(w, r, "", f.Modified, f.File)
		return nil
	})
	if _, reason := call(ctx, calls, who, "fs_read", in); reason != nil && !served {
		refuse(w, reason)
	}
}

func call(ctx context.Context, calls Caller, who tool.Caller, name string, in map[string]string) (json.RawMessage, *deny.Reason) {
	input, err := json.Marshal(in)
	if err != nil {
		return nil, tool.Refuse(deny.ToolInvalid, name, "the path or content type cannot be written as JSON", "use UTF-8")
	}
	return calls.Call(tool.Streamed(ctx), who, name, input)
}

func refuse(w http.ResponseWriter, reason *deny.Reason) {
	e := reason.Envelope()
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(e.RetryAfter))
	}
	w.WriteHeader(e.StatusCode)
	_ = json.NewEncoder(w).Encode(e) // the caller is gone, or not
}

// encode is RFC 8187's ext-value: everything but letters, digits and a few is
// percent-encoded.
func encode(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c < 0x80 && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0) {
			b.WriteByte(c)
			continue
		}
		b.WriteString("%" + strings.ToUpper(strconv.FormatInt(int64(c)|0x100, 16)[1:]))
	}
	return b.String()
}
