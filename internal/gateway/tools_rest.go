package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sync/semaphore"

	"bulkhead/internal/deny"
	"bulkhead/internal/gateway/messages"
	"bulkhead/internal/primitive/fs/fshttp"
	"bulkhead/internal/tool"
	"bulkhead/internal/tool/toolname"
)

// Bounds of requests to tools.
const (
	maxSmallBodies = 8 << 20          // of all small ones that are being served
	maxToolBodies  = 56 << 20         // of all others
	smallBody      = 64 << 10         // at most
	bodyTime       = 60 * time.Second // in which a body has to come
	fileTime       = 10 * time.Minute // in which a file has to
)

type callerKey struct{}

// withCaller is a context in which a request's caller is known: whoever lets a
// request in says so by it.
func withCaller(ctx context.Context, who tool.Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, who)
}

// caller says who calls, as [Server.authenticated] found.
func caller(ctx context.Context) tool.Caller {
	who, _ := ctx.Value(callerKey{}).(tool.Caller)
	return who
}

// registerTools adds the endpoints of tools that want a token.
func (s *Server) registerTools(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/tools/{name}", s.callTool)
	mux.HandleFunc("GET /v1/tools", s.listTools)
	mux.HandleFunc("GET /tools", s.listTools)
	mux.HandleFunc("GET /v1/events:stream", s.streamEvents)
	mux.HandleFunc(fshttp.Pattern, s.serveFiles)
	mux.HandleFunc("/mcp", s.serveMCP)
	mux.HandleFunc("POST /mcp/stdio", s.serveStdio)
}

// soon are the groups whose tools wait for this gateway alone, and not long: a
// client that leaves need not be noticed while one of them works.
var soon = []tool.Group{tool.Memory, tool.Vectors, tool.Files}

// plainCalls are the endpoints of tools that are served before net/http's server
// hears of them, by path (docs/decisions/0089).
func (s *Server) plainCalls() map[string]http.HandlerFunc {
	out := map[string]http.HandlerFunc{}
	if !s.tools.has() {
		return out
	}
	for _, g := range soon {
		for _, name := range toolname.Of(g) {
			out["/v1/tools/"+name] = func(w http.ResponseWriter, r *http.Request) {
				r.SetPathValue("name", name)
				s.callTool(w, r)
			}
		}
	}
	out["/mcp"] = s.plainMCP
	return out
}

// callTool answers POST /v1/tools/{name}: the body is the input, the answer the
// tool's.
func (s *Server) callTool(w http.ResponseWriter, r *http.Request) {
	set, reason := s.tools.get(r.Context())
	if reason != nil {
		messages.Refuse(w, reason)
		return
	}
	call, reason := set.calls.Admit(r.Context(), caller(r.Context()), r.PathValue("name"))
	if reason != nil {
		messages.Refuse(w, reason)
		return
	}
	body, give, reason := s.bodies.read(w, r, r.PathValue("name"), call.MaxInput())
	if reason != nil {
		messages.Refuse(w, call.Refuse(r.Context(), reason))
		return
	}
	defer give()
	answer, reason := call.Run(r.Context(), body)
	if reason != nil {
		messages.Refuse(w, reason)
		return
	}
	writeJSON(w, append(answer, '\n'))
}

// serveFiles answers PUT, GET and HEAD /v1/files/{path...}: a file as a stream,
// decided and written down as one call of fs_write or fs_read.
func (s *Server) serveFiles(w http.ResponseWriter, r *http.Request) {
	set, reason := s.tools.get(r.Context())
	if reason != nil {
		messages.Refuse(w, reason)
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(fileTime)) // a connection that cannot is bounded by its peer's end
	fshttp.Handler(set.calls, func(r *http.Request) tool.Caller { return caller(r.Context()) }).ServeHTTP(w, r)
}

// streamEvents answers GET /v1/events:stream?topic=T&subscription=S. It is
// decided, counted and written down as one call of events_poll, which it is for
// as long as it lasts.
func (s *Server) streamEvents(w http.ResponseWriter, r *http.Request) {
	set, reason := s.tools.get(r.Context())
	if reason != nil {
		messages.Refuse(w, reason)
		return
	}
	q := r.URL.Query()
	in := map[string]string{"topic": q.Get("topic")}
	if sub := q.Get("subscription"); sub != "" {
		in["subscription"] = sub
	}
	input, err := json.Marshal(in)
	if err != nil {
		messages.Refuse(w, cut("events_poll", err))
		return
	}
	call, reason := set.calls.Admit(r.Context(), caller(r.Context()), "events_poll")
	if reason == nil {
		reason = call.Serve(r.Context(), input, func(c *tool.Call) error {
			return set.events.ServeStream(w, r, c.In.String("topic"), c.In.String("subscription"))
		})
	}
	if reason != nil {
		messages.Refuse(w, reason)
	}
}

// shownTool is a tool as GET /v1/tools lists it.
type shownTool struct {
	Name        string         `json:"name"`
	Group       tool.Group     `json:"group"`
	Description string         `json:"description"`
	InputSchema map[string]any `json:"inputSchema"`
}

// listTools answers GET /v1/tools, and GET /tools with the names as older
// clients know them.
func (s *Server) listTools(w http.ResponseWriter, r *http.Request) {
	set, reason := s.tools.get(r.Context())
	if reason != nil && reason.Code != deny.ToolNotAllowed {
		messages.Refuse(w, reason)
		return
	}
	out := []shownTool{}
	if set != nil {
		for _, t := range set.calls.Tools() {
			name := t.Name
			if r.URL.Path == "/tools" {
				name = tool.Prefix + name
			}
			out = append(out, shownTool{name, t.Group, t.Summary, t.Schema()})
		}
	}
	body, err := json.Marshal(map[string]any{"tools": out})
	if err != nil { // a table is text and numbers
		http.Error(w, "tools", http.StatusInternalServerError)
		return
	}
	writeJSON(w, append(body, '\n'))
}

// serveHealth answers GET /health, which wants no token and says nothing of the
// agent's.
func (s *Server) serveHealth(w http.ResponseWriter, _ *http.Request) {
	n := 0
	for _, a := range s.tools.allowed() {
		if names := toolname.Of(tool.Group(a)); names != nil {
			n += len(names)
		} else {
			n++
		}
	}
	body, err := json.Marshal(map[string]any{"status": "ok", "version": toolname.Version, "timestamp": time.Now().UTC().Format(time.RFC3339Nano), "tools": n})
	if err != nil {
		http.Error(w, "health", http.StatusInternalServerError)
		return
	}
	writeJSON(w, append(body, '\n'))
}

func writeJSON(w http.ResponseWriter, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // #nosec G705 -- JSON, said to be, with nosniff; a client that left is none of ours
}

// bodies bounds the memory that bodies of all requests to tools take. Small ones have
// a share of their own: a large one takes its share before it comes, and may come
// slowly, which is not to keep every call waiting.
type bodies struct{ small, large *semaphore.Weighted }

func newBodies() bodies {
	return bodies{semaphore.NewWeighted(maxSmallBodies), semaphore.NewWeighted(maxToolBodies)}
}

// read takes a body of at most limit bytes. give returns its share of the
// memory.
func (b bodies) read(w http.ResponseWriter, r *http.Request, what string, limit int64) (body []byte, give func(), reason *deny.Reason) {
	limit = min(limit, maxToolBodies)
	if r.ContentLength > limit {
		return nil, nil, tool.TooLarge(what, limit)
	}
	share, size := b.small, r.ContentLength
	switch {
	case size < 0:
		size = min(limit, smallBody) // until it turns out to be larger
	case size > smallBody:
		share = b.large
	}
	if err := share.Acquire(r.Context(), size); err != nil {
		return nil, nil, cut(what, err)
	}
	until := http.NewResponseController(w)
	defer func() { _ = until.SetReadDeadline(time.Time{}) }()
	_ = until.SetReadDeadline(time.Now().Add(bodyTime)) // not every transport has one
	var err error
	if r.ContentLength >= 0 {
		body = make([]byte, size)
		_, err = io.ReadFull(r.Body, body)
	} else {
		from := http.MaxBytesReader(w, r.Body, limit)
		body, err = io.ReadAll(io.LimitReader(from, size+1))
		if int64(len(body)) > size {
			share.Release(size) // it may have to wait for the other, and others not for it
			share, size = b.large, limit
			if err := share.Acquire(r.Context(), size); err != nil {
				return nil, nil, cut(what, err)
			}
			_ = until.SetReadDeadline(time.Now().Add(bodyTime))
			all := bytes.NewBuffer(body)
			_, err = all.ReadFrom(from)
			body = all.Bytes()
		}
	}
	give = func() { share.Release(size) }
	if err == nil {
		return body, give, nil
	}
	give()
	if over := (*http.MaxBytesError)(nil); errors.As(err, &over) {
		return nil, nil, tool.TooLarge(what, limit)
	}
	return nil, nil, cut(what, err)
}

func cut(what string, err error) *deny.Reason {
	return tool.Refuse(deny.ToolInvalid, what, "the body ended early: "+err.Error(), "send as many bytes as Content-Length says")
}
