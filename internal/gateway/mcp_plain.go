package gateway

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"bulkhead/internal/deny"
	"bulkhead/internal/gateway/messages"
	"bulkhead/internal/jsonscan"
	"bulkhead/internal/record"
	"bulkhead/internal/tool"
	"bulkhead/internal/tool/toolname"
)

// Calls of tools in a session of MCP that the SDK knows are answered here: its
// way from a request to the tool and back costs ten times what the tool does.
// What is not exactly such a call is the SDK's (docs/decisions/0089).

// sessionFresh is how long a session may go without a call that the SDK sees,
// which ends those that are idle.
const sessionFresh = time.Minute

// mcpSessions are the sessions in which the SDK accepted a call, and what the
// request looked like.
type mcpSessions struct {
	mu sync.Mutex
	by map[string]*mcpSession // by id
}

type mcpSession struct {
	session *mcp.ServerSession
	user    string
	shape   string    // see shapeOf
	seen    time.Time // by the SDK
}

// shapeOf is what the SDK judges a POST by beside its session and its body. Two
// requests of one shape are accepted or refused alike. ok is false for one that
// has more than that.
func shapeOf(h http.Header) (shape string, ok bool) {
	parts := make([]string, 0, 3)
	for _, name := range []string{"Content-Type", "Accept", "Mcp-Protocol-Version"} {
		v := h[name]
		if len(v) > 1 {
			return "", false
		}
		parts = append(parts, strings.Join(v, ""))
	}
	for name := range h {
		switch {
		case name == "Mcp-Session-Id", name == "Mcp-Protocol-Version":
		case strings.HasPrefix(name, "Mcp-"), name == "Last-Event-Id", name == "Origin":
			return "", false
		}
	}
	return strings.Join(parts, "\n"), true
}

// keep notes a call that the SDK has accepted.
func (m *mcpSessions) keep(server *mcp.Server, req mcp.Request) {
	session, ok := req.GetSession().(*mcp.ServerSession)
	extra := req.GetExtra()
	if !ok || session.ID() == "" || extra == nil || extra.TokenInfo == nil || extra.Header == nil {
		return
	}
	shape, ok := shapeOf(extra.Header)
	if !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.by == nil || len(m.by) >= 2*maxSessions {
		m.by = map[string]*mcpSession{} // each comes back with its next call
	}
	m.by[session.ID()] = &mcpSession{session, extra.TokenInfo.UserID, shape, time.Now()}
}

// takes says whether the SDK would take a call by this request: it took one of
// the same shape a while ago, from the same user and in the same session, which
// goes on.
func (m *mcpSessions) takes(server *mcp.Server, r *http.Request, user string) bool {
	id := r.Header["Mcp-Session-Id"]
	if len(id) != 1 {
		return false
	}
	m.mu.Lock()
	s := m.by[id[0]]
	m.mu.Unlock()
	if s == nil || s.user != user || time.Since(s.seen) > sessionFresh {
		return false
	}
	if shape, ok := shapeOf(r.Header); !ok || shape != s.shape {
		return false
	}
	for open := range server.Sessions() {
		if open == s.session {
			return true
		}
	}
	return false
}

// plainMethods are the methods that the SDK answers at once, and with one JSON
// message or none.
var plainMethods = []string{
	"initialize", "notifications/initialized", "server/discover", "ping", "tools/list", "tools/call",
	"notifications/cancelled", "resources/list", "prompts/list",
}

// mcpCall is a message by MCP that has nothing unusual. The parts are of its text.
type mcpCall struct {
	id, method, name, arguments []byte
}

// readCall reads a message whose members are known, each once. The members of a
// call are exactly a version, an id, a method and params with a name and an
// object of arguments: only is false when there is more.
func readCall(body []byte) (c mcpCall, only, ok bool) {
	only = true
	var version, params []byte
	once := func(to *[]byte, v []byte) bool {
		again := *to != nil
		*to = v
		return !again
	}
	ok = jsonscan.Object(body, func(name, v []byte) bool {
		switch string(name) {
		case "jsonrpc":
			return once(&version, v)
		case "id":
			return once(&c.id, v)
		case "method":
			return once(&c.method, v)
		case "params":
			return once(&params, v)
		}
		return false
	}) && string(version) == `"2.0"`
	if !ok {
		return c, false, false
	}
	if c.method, ok = jsonscan.Plain(c.method); !ok || string(c.method) != "tools/call" {
		return c, false, ok
	}
	ok = jsonscan.Object(params, func(name, v []byte) bool {
		switch string(name) {
		case "name":
			return once(&c.name, v)
		case "arguments":
			return once(&c.arguments, v)
		}
		only = false // as _meta
		return true
	})
	if !ok {
		return c, false, false
	}
	if c.name, ok = jsonscan.Plain(c.name); !ok {
		return c, false, false
	}
	only = only && len(c.arguments) > 0 && c.arguments[0] == '{' && plainID(c.id) && flat(c.arguments)
	return c, only, true
}

// plainID says whether an id comes back from the SDK as it was written.
func plainID(id []byte) bool {
	if s, ok := jsonscan.Plain(id); ok {
		return !bytes.ContainsAny(s, "<>&") && len(s) <= 128
	}
	_, ok := jsonscan.Uint(id)
	return ok && len(id) <= 15 && (len(id) == 1 || id[0] != '0')
}

// plainMCP answers POST /mcp of a plain connection, or leaves it to net/http's
// server: what streams, may take long, or is not known here.
func (s *Server) plainMCP(w http.ResponseWriter, r *http.Request) {
	a, ok := w.(*plainAnswer)
	set, reason := s.tools.get(r.Context())
	if !ok || reason != nil {
		s.serveMCP(w, r) // which says it
		return
	}
	body, give, reason := s.bodies.read(w, r, "POST /mcp", set.mcp.limit)
	if reason != nil {
		s.tools.refused(r.Context(), caller(r.Context()), record.Tool, "/mcp", reason)
		messages.Refuse(w, reason)
		return
	}
	defer give()
	c, only, ok := readCall(body)
	if !ok || !slices.Contains(plainMethods, string(c.method)) || r.Header["Origin"] != nil ||
		c.name != nil && !slices.Contains(soon, toolname.GroupOf(strings.TrimPrefix(string(c.name), tool.Prefix))) {
		a.give(body)
		return
	}
	who := caller(r.Context())
	if !only || !set.mcp.known.takes(set.mcp.server, r, userOf(who)) {
		s.bySDK(w, r, set, body)
		return
	}
	out, reason := set.calls.Call(r.Context(), who, string(c.name), c.arguments)
	answer, err := answerTo(c.id, out, reason)
	if err != nil {
		http.Error(w, "the answer could not be written", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h["Cache-Control"], h["Content-Type"] = noCache, jsonType
	_, _ = w.Write(answer) // to memory
}

// flat says whether a value cannot be nested deeper than the SDK takes (1,000).
func flat(v []byte) bool {
	return bytes.Count(v, []byte("{"))+bytes.Count(v, []byte("[")) < 500
}

// answerTo is the SDK's answer to a call with that id, to the byte.
func answerTo(id []byte, out json.RawMessage, reason *deny.Reason) ([]byte, error) {
	if reason == nil && unescaped(out) {
		b := make([]byte, 0, 2*len(out)+len(out)/4+len(id)+128)
		b = append(append(append(b, `{"jsonrpc":"2.0","id":`...), id...), `,"result":{"content":[{"type":"text","text":"`...)
		for _, ch := range out {
			if ch == '"' || ch == '\\' {
				b = append(b, '\\')
			}
			b = append(b, ch)
		}
		return append(append(append(b, `"}],"structuredContent":`...), out...), `}}`...), nil
	}
	var value any
	if err := json.Unmarshal(id, &value); err != nil {
		return nil, err
	}
	number, err := jsonrpc.MakeID(value)
	if err != nil {
		return nil, err
	}
	r := jsonrpc.Response{ID: number}
	result, err := resultOf(out, reason)
	if r.Error = err; err == nil {
		if r.Result, err = json.Marshal(result); err != nil {
			return nil, err
		}
	}
	return jsonrpc.EncodeMessage(&r)
}

// unescaped says whether JSON as encoding/json writes it, without white space, stands
// in a JSON string with its quotes and backslashes escaped and nothing else.
func unescaped(out []byte) bool {
	for _, ch := range out {
		if ch < ' ' || ch >= 0x7f || ch == '<' || ch == '>' || ch == '&' {
			return false
		}
	}
	return true
}

var (
	noCache  = []string{"no-cache, no-transform"}
	jsonType = []string{"application/json"}
)
