package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"bulkhead/internal/deny"
	"bulkhead/internal/gateway/messages"
	"bulkhead/internal/plain"
	"bulkhead/internal/record"
	"bulkhead/internal/tool"
	"bulkhead/internal/tool/toolname"
)

// Bounds of MCP.
const (
	maxSessions    = 64
	sessionIdle    = 10 * time.Minute // at least; see sessionFresh
	maxMCPEnvelope = 64 << 10         // what a request may have around its tool's input
)

// mcpDoor serves the tools by MCP: streamable HTTP at /mcp with sessions, and
// the stdio form through a connection that was upgraded. The requests that come
// to it are authenticated.
type mcpDoor struct {
	server  *mcp.Server
	handler http.Handler
	limit   int64 // of a request's body
	known   mcpSessions
}

// newDoor makes the MCP server of a gateway's tools.
func newDoor(calls *tool.Dispatcher) *mcpDoor {
	d := &mcpDoor{limit: tool.DefaultInput + maxMCPEnvelope}
	d.server = mcp.NewServer(&mcp.Implementation{Name: "bulkhead", Title: "Bulkhead tools", Version: toolname.Version}, &mcp.ServerOptions{
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}}, Logger: slog.New(slog.DiscardHandler),
	})
	for _, t := range calls.Tools() {
		d.limit = max(d.limit, min(t.MaxInput+maxMCPEnvelope, maxToolBodies))
		d.server.AddTool(&mcp.Tool{Name: t.Name, Description: t.Summary, InputSchema: t.Schema()}, nil) // called by answer, below
	}
	d.server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if p, ok := req.GetParams().(*mcp.CallToolParamsRaw); ok && method == "tools/call" {
				d.known.keep(d.server, req)
				return answerMCP(ctx, calls, req, p)
			}
			return next(ctx, method, req)
		}
	})
	d.handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return d.server }, &mcp.StreamableHTTPOptions{
		JSONResponse: true, SessionTimeout: sessionIdle + sessionFresh, Logger: slog.New(slog.DiscardHandler), MaxRequestBodyBytes: d.limit,
		// It looks at Host, which may be wire.OwnName here; foreign, below, looks
		// at the origin instead. Every request shows a token besides.
		DisableLocalhostProtection: true,
	})
	return d
}

// callerInfo is where a request's caller travels through the SDK.
const callerInfo = "caller"

// answerMCP does one call. Refusals are results for the model to read; only a
// tool that does not exist is an error of the protocol.
func answerMCP(ctx context.Context, calls *tool.Dispatcher, req mcp.Request, p *mcp.CallToolParamsRaw) (mcp.Result, error) {
	var who tool.Caller
	if x := req.GetExtra(); x != nil && x.TokenInfo != nil {
		who, _ = x.TokenInfo.Extra[callerInfo].(tool.Caller)
	}
	if who.Agent == "" {
		return nil, errors.New("the request has no caller")
	}
	return resultOf(calls.Call(ctx, who, p.Name, p.Arguments))
}

// resultOf makes the answer of a tool that of a call by MCP.
func resultOf(out json.RawMessage, reason *deny.Reason) (mcp.Result, error) {
	if reason == nil {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(out)}}, StructuredContent: out}, nil
	}
	if reason.Code == deny.ToolUnknown {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: reason.Error()}
	}
	text, err := json.Marshal(reason.Envelope())
	if err != nil {
		return nil, err
	}
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: string(text)}}, StructuredContent: json.RawMessage(text)}, nil
}

// asUser lets the SDK know who calls, and that a session is that caller's alone.
func (s *Server) asUser(who tool.Caller, next http.Handler) http.Handler {
	user := userOf(who)
	known := auth.RequireBearerToken(func(context.Context, string, *http.Request) (*auth.TokenInfo, error) {
		// It was authenticated before it came here, and is again each time.
		return &auth.TokenInfo{UserID: user, Expiration: time.Now().Add(sessionIdle), Extra: map[string]any{callerInfo: who}}, nil
	}, nil)(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Authorization", "Bearer authenticated") // Basic may have been used
		known.ServeHTTP(w, r)
	})
}

// userOf is whose a session is.
func userOf(who tool.Caller) string { return who.Agent + "/" + who.Token }

// older is the body that clients from before MCP send to POST /mcp.
type older struct {
	Tool  string          `json:"tool"`
	Input json.RawMessage `json:"input"`
}

// serveMCP answers /mcp.
func (s *Server) serveMCP(w http.ResponseWriter, r *http.Request) {
	who := caller(r.Context())
	if plain.Foreign(r) {
		reason := tool.Refuse(deny.ToolUnsafe, r.Method+" /mcp", "a page of another site asks", "send no Origin, or one of this agent's own loopback")
		s.tools.refused(r.Context(), who, record.Tool, "/mcp", reason)
		messages.Refuse(w, reason)
		return
	}
	set, reason := s.tools.get(r.Context())
	if reason != nil {
		messages.Refuse(w, reason)
		return
	}
	if r.Method == http.MethodPost {
		body, give, reason := s.bodies.read(w, r, "POST /mcp", set.mcp.limit)
		if reason != nil {
			s.tools.refused(r.Context(), who, record.Tool, "/mcp", reason)
			messages.Refuse(w, reason)
			return
		}
		defer give()
		if o, ok := olderCall(body); ok {
			answer, reason := set.calls.Call(r.Context(), who, o.Tool, o.Input)
			if reason != nil {
				messages.Refuse(w, reason)
				return
			}
			writeJSON(w, append(answer, '\n'))
			return
		}
		s.bySDK(w, r, set, body)
		return
	}
	s.asUser(who, set.mcp.handler).ServeHTTP(w, r)
}

// bySDK has the SDK answer a POST whose body was read.
func (s *Server) bySDK(w http.ResponseWriter, r *http.Request, set *toolset, body []byte) {
	if r.Header.Get("Mcp-Session-Id") == "" && set.mcp.full() {
		reason := tooManySessions()
		s.tools.refused(r.Context(), caller(r.Context()), record.Tool, "/mcp", reason)
		messages.Refuse(w, reason)
		return
	}
	// The SDK may go on with a notification when this has returned: what a plain
	// connection uses again for its next request must not be in its hands.
	if a, ok := w.(*plainAnswer); ok {
		a.kept = true
		r = r.Clone(r.Context())
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	s.asUser(caller(r.Context()), set.mcp.handler).ServeHTTP(w, r)
}

// olderCall says whether a body is {tool, input} and no JSON-RPC.
func olderCall(body []byte) (older, bool) {
	if !bytes.Contains(body, []byte(`"tool"`)) || bytes.Contains(body[:min(len(body), 4096)], []byte(`"jsonrpc"`)) {
		return older{}, false
	}
	var o older
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	return o, d.Decode(&o) == nil && o.Tool != ""
}

func (d *mcpDoor) full() bool {
	n := 0
	for range d.server.Sessions() {
		n++
	}
	return n >= maxSessions
}

func tooManySessions() *deny.Reason {
	r := tool.Refuse(deny.ToolRate, "MCP session", fmt.Sprintf("%d sessions are open", maxSessions), "end sessions that are not used any more (DELETE /mcp); idle ones end after 10 minutes")
	r.RetryAfter = 60
	return r
}

// stdioProtocol is what a connection is upgraded to: MCP's stdio form, one JSON
// message a line, both ways.
const stdioProtocol = "mcp-stdio"

// serveStdio turns the connection into an MCP session of the stdio form. It ends
// with the connection.
func (s *Server) serveStdio(w http.ResponseWriter, r *http.Request) {
	set, reason := s.tools.get(r.Context())
	switch {
	case reason != nil:
	case !strings.EqualFold(r.Header.Get("Upgrade"), stdioProtocol):
		reason = tool.Refuse(deny.ToolInvalid, "POST /mcp/stdio", "it does not ask for the upgrade to "+stdioProtocol, "use POST /mcp, or `bulkhead-shim mcp`")
	case set.mcp.full():
		reason = tooManySessions()
	}
	who := caller(r.Context())
	if reason != nil {
		s.tools.refused(r.Context(), who, record.Tool, "/mcp/stdio", reason)
		messages.Refuse(w, reason)
		return
	}
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		messages.Refuse(w, away("this connection cannot be upgraded: "+err.Error(), "use POST /mcp"))
		return
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+stdioProtocol+"\r\n\r\n"); err != nil {
		return
	}
	t := &stdioTransport{&mcp.IOTransport{Reader: buffered{rw.Reader, c}, Writer: c, MaxLineLength: int(set.mcp.limit)}, who}
	session, err := set.mcp.server.Connect(r.Context(), t, nil)
	if err != nil {
		return
	}
	defer context.AfterFunc(r.Context(), func() { _ = c.Close() })() // when the token ends
	_ = session.Wait()                                               // it ended, whoever ended it
}

// buffered reads what the HTTP server has read already, and then the connection.
type buffered struct {
	*bufio.Reader
	c net.Conn
}

// Close closes the connection.
func (b buffered) Close() error { return b.c.Close() }

// stdioTransport says with every request who calls.
type stdioTransport struct {
	*mcp.IOTransport
	who tool.Caller
}

// Connect implements mcp.Transport.
func (t *stdioTransport) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := t.IOTransport.Connect(ctx)
	return &stdioConn{c, t.who}, err
}

type stdioConn struct {
	mcp.Connection
	who tool.Caller
}

// Read implements mcp.Connection.
func (c *stdioConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := c.Connection.Read(ctx)
	if q, ok := m.(*jsonrpc.Request); ok {
		q.Extra = &mcp.RequestExtra{TokenInfo: &auth.TokenInfo{Extra: map[string]any{callerInfo: c.who}}}
	}
	return m, err
}
