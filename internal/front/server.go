package front

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"bulkhead/internal/deny"
	"bulkhead/internal/front/protocol"
	"bulkhead/internal/hub"
	"bulkhead/internal/identity/token"
	"bulkhead/internal/plain"
	"bulkhead/internal/record"
	"bulkhead/internal/tool/toolname"
)

// Limits.
const (
	maxConnections = 512 // of each address
	maxRequests    = 32  // of one agent at a time
	maxHeader      = 32 << 10
	maxBody        = 144 << 20 // 100 MB of file in base64, and the rest of its JSON
	headerTimeout  = 10 * time.Second
	requestTimeout = 10 * time.Minute // code may run for five
	idleTimeout    = 2 * time.Minute
)

// Server is a running front.
type Server struct {
	cfg    protocol.Config
	tokens *token.Verifier
	log    *record.Log

	desk *desk

	mu       sync.Mutex // guards what follows
	gateways map[string]*gateway
	resting  map[string]*gateway // still connected, and nothing is passed on to them
}

// New makes a server that trusts nobody yet. Records of who was refused go to
// out.
func New(cfg protocol.Config, out io.Writer) *Server {
	return &Server{cfg: cfg, tokens: token.NewVerifier(token.Config{}), log: record.NewLog("", out), desk: newDesk(), gateways: map[string]*gateway{}, resting: map[string]*gateway{}}
}

// Serve serves root on operator and everybody on listeners, which are in the
// order of the config, until ctx ends, and waits for what it started.
func (s *Server) Serve(ctx context.Context, operator *net.UnixListener, listeners []net.Listener, out io.Writer) error {
	if len(listeners) != len(s.cfg.Listeners) {
		return fmt.Errorf("front: %d sockets for %d listeners", len(listeners), len(s.cfg.Listeners))
	}
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	ended := make(chan error, len(listeners)+1)
	defer s.log.Flush()
	defer work.Wait()
	defer cancel()
	work.Go(func() { s.log.Run(ctx) })
	for i, ln := range listeners {
		server, err := s.server(s.cfg.Listeners[i])
		if err != nil {
			return err
		}
		defer func() { _ = server.Close() }()
		work.Go(func() {
			ln := netutil.LimitListener(ln, maxConnections)
			if server.TLSConfig != nil {
				ended <- server.ServeTLS(ln, "", "")
			} else {
				ended <- server.Serve(ln)
			}
		})
	}
	h := hub.New(hub.Config{
		Protocol: protocol.Name, Version: protocol.Version, Out: out, Member: s.member,
		Operator: map[string]hub.Answer{
			protocol.VerbTrust: s.trust, protocol.VerbWork: s.desk.work, protocol.VerbWoken: s.woken, protocol.VerbAnswer: s.desk.answer, protocol.VerbRest: s.rest,
		},
	})
	work.Go(func() { ended <- h.Run(ctx, operator) })
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("front: %w", err)
	}
}

func (s *Server) server(l protocol.Listener) (*http.Server, error) {
	held := newPlaces()
	out := &http.Server{
		Handler: s.handler(l, held), ConnContext: held.remember, ConnState: held.changed, MaxHeaderBytes: maxHeader, ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout,
		WriteTimeout: requestTimeout + time.Minute, IdleTimeout: idleTimeout, ErrorLog: stdlog.New(io.Discard, "", 0),
		Protocols: new(http.Protocols),
	}
	out.Protocols.SetHTTP1(true)
	if len(l.Certificate) > 0 {
		pair, err := tls.X509KeyPair(l.Certificate, l.Key)
		if err != nil {
			return nil, fmt.Errorf("front: the certificate for %s: %w", l.Address, err)
		}
		out.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	return out, nil
}

// trust takes what control says.
func (s *Server) trust(_ context.Context, body json.RawMessage) (any, error) {
	var t token.Trust
	if err := json.Unmarshal(body, &t); err != nil {
		return nil, fmt.Errorf("front: what to trust does not decode: %w", err)
	}
	return struct{}{}, s.tokens.Refresh(t)
}

func (s *Server) handler(l protocol.Listener, held *places) http.Handler {
	admin := newAdmin(s, l)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && r.URL.Path == "/health" {
			serveHealth(w)
			return
		}
		if r.URL.Path == adminPath || strings.HasPrefix(r.URL.Path, adminPath+"/") {
			admin.serve(w, r)
			return
		}
		s.pass(w, r, l, held)
	})
}

// serveHealth says that front serves, with what clients of such an interface look
// for: tools counts all that there are, since no agent has asked.
func serveHealth(w http.ResponseWriter) {
	w.Header().Set("Connection", "close") // who shows no token keeps no place
	n := 0
	for _, g := range toolname.Groups() {
		n += len(toolname.Of(g))
	}
	w.Header().Set("Content-Type", "application/json")
	// A client that left is none of ours.
	_ = json.NewEncoder(w).Encode(map[string]any{
		"schemaVersion": 1, "status": "ok", "version": toolname.Version, "timestamp": time.Now().UTC().Format(time.RFC3339Nano), "tools": n,
	})
}

// pass checks the token and passes the request on.
func (s *Server) pass(w http.ResponseWriter, r *http.Request, l protocol.Listener, held *places) {
	what := r.Method + " " + clip(r.URL.Path)
	if reason := unfit(r); reason != nil {
		reason.What = what
		s.refuse(w, "", "", reason)
		return
	}
	text, reason := bearer(r)
	var c *token.Claims
	if reason == nil {
		c, reason = s.tokens.Verify(text)
	}
	if reason == nil && !slices.Contains(l.Teams, c.Team) {
		reason = badToken("it is for a team that does not listen here")
	}
	if reason != nil {
		reason.What = what
		s.refuse(w, "", "", reason)
		return
	}
	if !held.take(r, c.Team+"/"+c.ID) {
		w.Header().Set("Connection", "close")
	}
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	g, reason := s.take(ctx, c, l)
	if reason != nil {
		reason.What = what
		s.refuse(w, c.Team, c.Agent, reason)
		return
	}
	defer s.give(g)
	select {
	case g.slots <- struct{}{}:
		defer func() { <-g.slots }()
	default:
		busy := &deny.Reason{
			Layer: deny.LayerTools, Code: deny.ToolRate, What: what, Why: fmt.Sprintf("%d requests for %s are being answered", maxRequests, c.Agent),
			Mend: "wait for an answer first", RetryAfter: 1,
		}
		s.refuse(w, c.Team, c.Agent, busy)
		return
	}
	r = r.WithContext(ctx)
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	g.proxy.ServeHTTP(w, r)
}

// unfit refuses what no tool's call looks like.
func unfit(r *http.Request) *deny.Reason {
	why := ""
	switch {
	case r.Method == http.MethodConnect || r.Method == http.MethodTrace:
		why = "front passes on no " + r.Method
	case r.Header.Get("Upgrade") != "" || headerHas(r.Header, "Connection", "upgrade"):
		why = "front passes on no upgrade"
	case r.URL.IsAbs() || r.URL.Opaque != "" || !strings.HasPrefix(r.URL.Path, "/"):
		why = "the target is not a path"
	case r.URL.User != nil:
		why = "the target holds credentials"
	case plain.Foreign(r): // it is not passed on, so that the gateway cannot look
		return &deny.Reason{Layer: deny.LayerTools, Code: deny.ToolUnsafe, Why: "a page of another site asks", Mend: "send no Origin, or one of a loopback address"}
	case len(r.Trailer) > 0:
		why = "front passes on no trailers"
	case r.ContentLength > maxBody:
		return &deny.Reason{
			Layer: deny.LayerTools, Code: deny.ToolTooLarge, Why: fmt.Sprintf("the body has more than %d bytes", maxBody), Mend: "send less at once",
		}
	default:
		return nil
	}
	return &deny.Reason{Layer: deny.LayerTools, Code: deny.ToolInvalid, Why: why, Mend: "send a plain HTTP/1.1 request for a path of the gateway's API"}
}

// bearer gives the one token of a request.
func bearer(r *http.Request) (string, *deny.Reason) {
	all := r.Header.Values("Authorization")
	if len(all) != 1 {
		return "", badToken(fmt.Sprintf("there are %d Authorization headers, not one", len(all)))
	}
	text, ok := strings.CutPrefix(all[0], "Bearer ")
	if !ok {
		return "", badToken("the Authorization header does not begin with Bearer")
	}
	return text, nil
}

func badToken(why string) *deny.Reason {
	return &deny.Reason{
		Layer: deny.LayerTools, Code: deny.BadToken, Why: why,
		Mend: "get a token with `bulkhead token issue AGENT`, and send it as `Authorization: Bearer`",
	}
}

func away(what, why string) *deny.Reason {
	return &deny.Reason{
		Layer: deny.LayerTools, Code: deny.ToolUnavailable, What: what, Why: why, Mend: "try again; `bulkhead status` shows whether the agent runs", RetryAfter: 1,
	}
}

func (s *Server) refuse(w http.ResponseWriter, team, agent string, r *deny.Reason) {
	s.log.AddOf(team, agent, record.Tool, "front", record.Denied, r)
	e := r.Envelope()
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Bulkhead-Denied", string(r.Code)) // as a gateway says it
	if e.StatusCode == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="bulkhead"`)
	}
	if e.RetryAfter > 0 {
		h.Set("Retry-After", fmt.Sprint(e.RetryAfter))
	}
	if e.StatusCode >= 400 {
		h.Set("Connection", "close") // what of the request is left is not read
	}
	w.WriteHeader(e.StatusCode)
	_ = json.NewEncoder(w).Encode(e)
}

func headerHas(h http.Header, name, word string) bool {
	for _, v := range h.Values(name) {
		for one := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(one), word) {
				return true
			}
		}
	}
	return false
}

func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}

var errGone = errors.New("front: the gateway is not there any more")
