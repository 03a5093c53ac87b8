package gateway

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"io"
	stdlog "log"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"

	"bulkhead/internal/deny"
	"bulkhead/internal/gateway/messages"
	"bulkhead/internal/record"
	"bulkhead/internal/socket"
	"bulkhead/internal/tool"
	"bulkhead/internal/tooltoken"
	"bulkhead/internal/wire"
)

// api is what the agent's tools speak HTTP with: on gateway.sock, and through
// the runtime's proxy under wire.OwnName. Everything but /v1/health,
// /health and /v1/openapi.json wants the tools' token.
type api struct {
	handler http.Handler
	server  *http.Server
	plain   *plainServer
	end     context.CancelFunc // of what plain does
	conns   chan net.Conn
	done    chan struct{}
	once    sync.Once
	work    sync.WaitGroup
}

func newAPI(s *Server) *api {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/health", s.health)
	mux.HandleFunc("GET /health", s.serveHealth)
	mux.HandleFunc("GET /v1/openapi.json", serveOpenAPI)
	tools := http.NewServeMux()
	a := &api{handler: mux, conns: make(chan net.Conn), done: make(chan struct{})}
	plain := s.plainCalls()
	if s.messages != nil {
		s.messages.Register(agentsOwn{s, tools})
		maps.Copy(plain, s.messages.Sends())
	}
	ctx, cancel := context.WithCancel(withCaller(context.Background(), s.agent()))
	a.plain, a.end = newPlain(ctx, s.cfg.Token, plain), cancel
	s.registerTools(tools)
	tools.HandleFunc("/", s.nothing(tools))
	for _, path := range []string{"/v1/", "/tools", "/mcp", "/mcp/"} {
		mux.Handle(path, s.authenticated(tools))
	}
	a.server = &http.Server{
		Handler: mux, ReadHeaderTimeout: headTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: 16 << 10, ErrorLog: stdlog.New(io.Discard, "", 0),
	}
	a.work.Go(func() { _ = a.server.Serve(a) })
	return a
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	n := s.listeners
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"schemaVersion": 1, "status": "ok", "team": s.cfg.Team, "agent": s.cfg.Agent, "listeners": n,
	})
}

// ofMessages are the paths that an agent with messages has besides.
var ofMessages = []string{"/v1/messages", "/v1/channels", "/v1/outbox"}

// nothing answers for what is not there: it says which method an endpoint takes.
func (s *Server) nothing(mux *http.ServeMux) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		reason := &deny.Reason{
			Layer: deny.LayerTools, Code: deny.ToolInvalid, What: r.Method + " " + r.URL.Path, Why: "there is no such endpoint", Mend: "see GET /v1/openapi.json",
		}
		takes := methods(mux, r)
		switch {
		case len(takes) > 0:
			w.Header().Set("Allow", strings.Join(takes, ", "))
			reason.Why = "this endpoint takes " + strings.Join(takes, ", ") + ", and " + r.Method + " was sent"
			reason.Mend = "send " + takes[0] + "; busybox's wget sends GET through a proxy even with --post-data: use `bulkhead tool call` or curl instead"
		case s.messages == nil && slices.ContainsFunc(ofMessages, func(p string) bool { return strings.HasPrefix(r.URL.Path, p) }):
			reason.Layer, reason.Code, reason.Why = deny.LayerMessages, deny.MessageNotAllowed, "this agent has no messages"
			reason.Mend = "give agents." + s.cfg.Agent + " channels or messages in bulkhead.yaml"
		}
		messages.Refuse(w, reason)
	}
}

// methods are those that a request's path takes; none: it is not there.
func methods(mux *http.ServeMux, r *http.Request) (out []string) {
	for _, m := range []string{http.MethodPost, http.MethodGet, http.MethodPut, http.MethodDelete} {
		q := *r
		q.Method = m
		if _, pattern := mux.Handler(&q); pattern != "" && pattern != "/" {
			out = append(out, m)
		}
	}
	return out
}

// authenticated lets pass who shows the tools' token: as Bearer, or as the
// password of Basic, whose user is not looked at. A token of control does as
// well, and is the only one that does through front.
func (s *Server) authenticated(next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(tooltoken.Of(s.cfg.Token)))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given := sha256.Sum256([]byte(shown(r)))
		if !throughFront(r) && subtle.ConstantTimeCompare(given[:], want[:]) == 1 {
			next.ServeHTTP(w, r.WithContext(withCaller(r.Context(), s.agent())))
			return
		}
		who, refused := s.tokens.caller(r)
		if who != nil {
			ctx, stop := s.tokens.whileGood(r.Context(), *who)
			defer stop()
			next.ServeHTTP(w, r.WithContext(withCaller(ctx, *who)))
			return
		}
		reason := refused
		if reason == nil {
			reason = &deny.Reason{
				Layer: deny.LayerMessages, Code: deny.BadToken, What: r.Method + " " + r.URL.Path, Why: "the request does not show this agent's token",
				Mend: "send `Authorization: Bearer` and the content of the file that $" + wire.EnvTokenFile + " names",
			}
		}
		reason.What = r.Method + " " + r.URL.Path
		s.tools.refused(r.Context(), s.agent(), record.Message, "gateway.sock", reason)
		w.Header().Set("WWW-Authenticate", `Bearer realm="bulkhead"`)
		messages.Refuse(w, reason)
	})
}

// agentsOwn adds paths that are for the agent itself. They take no place in the rate
// of a token and leave no record that names it; the tools do.
type agentsOwn struct {
	s   *Server
	mux *http.ServeMux
}

// HandleFunc adds a path.
func (o agentsOwn) HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request)) {
	o.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if caller(r.Context()).Token == "" {
			handler(w, r)
			return
		}
		reason := tool.Refuse(deny.ToolNotAllowed, r.Method+" "+r.URL.Path, "this path is for the agent itself, and the request shows a token of control's",
			"use the tools instead, as POST /v1/tools/msg_send; GET /v1/tools lists them")
		o.s.log.Add(o.s.cfg.Agent, record.Message, "gateway.sock", record.Denied, reason)
		messages.Refuse(w, reason)
	})
}

// agent is who calls with the tools' token.
func (s *Server) agent() tool.Caller { return tool.Caller{Team: s.cfg.Team, Agent: s.cfg.Agent} }

// shown is the token of a request; empty: none.
func shown(r *http.Request) string {
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return token
	}
	_, token, _ := r.BasicAuth()
	return token
}

// serve hands the connection to the server and waits for its end, so that the
// peer's slot is held meanwhile.
func (a *api) serve(u *net.UnixConn) {
	var c net.Conn = u
	if q, err := socket.Quiet(u); err == nil { // else it is woken more often
		c = q
	}
	ended := &ending{Conn: c, done: make(chan struct{})}
	select {
	case a.conns <- &plainConn{Conn: ended, s: a.plain}:
		select {
		case <-ended.done:
		case <-a.done: // the server does not end what it takes while it is closed
			_ = ended.Close()
		}
	case <-a.done:
		_ = c.Close()
	}
}

type ending struct {
	net.Conn
	once sync.Once
	done chan struct{}
}

// Close tells that the connection has ended.
func (e *ending) Close() error {
	err := e.Conn.Close()
	e.once.Do(func() { close(e.done) })
	return err
}

// Accept makes api a net.Listener of what serve is given.
func (a *api) Accept() (net.Conn, error) {
	select {
	case c := <-a.conns:
		return c, nil
	case <-a.done:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (a *api) Close() error {
	a.once.Do(func() { close(a.done) })
	return nil
}

// Addr is nobody's address.
func (a *api) Addr() net.Addr { return &net.UnixAddr{Name: "gateway.sock", Net: "unix"} }

func (a *api) close() error {
	_ = a.Close()
	a.end()
	err := a.server.Close()
	a.work.Wait()
	return err
}
