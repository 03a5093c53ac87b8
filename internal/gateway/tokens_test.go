package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/identity/token"
	"bulkhead/internal/primitive/proc"
	"bulkhead/internal/tool"
	"bulkhead/internal/tooltoken"
	"bulkhead/internal/wire"
)

// told gives the tokens of writer's gateway that knows what control says, and
// the tokens that control made.
func told(t testing.TB) (*tokens, map[string]string) {
	t.Helper()
	now := time.Now().Unix()
	trust := token.Trust{Version: token.TrustVersion, Epoch: 3, Revoked: []string{"gone"}}
	out := map[string]string{}
	domains := []string{"a.example"}
	for _, alg := range []token.Alg{token.EdDSA, token.HS256} {
		s, err := token.NewSigner(alg, "t", "writer")
		if err != nil {
			t.Fatal(err)
		}
		trust.Keys = append(trust.Keys, s.Key)
		for name, c := range map[string]token.Claims{
			"good": {Agent: "writer", Domains: &domains, Quotas: token.Quotas{RatePerMinute: 7, MemoryBytes: 8, StorageBytes: 9}}, "gone": {Agent: "writer"}, "other": {Agent: "reviewer"},
		} {
			c.Team, c.ID, c.IssuedAt, c.NotBefore, c.Expires = "t", name, now-1, now-1, now+600
			text, err := s.Issue(c)
			if err != nil && c.Agent == "writer" {
				t.Fatal(err)
			}
			out[string(alg)+" "+name] = text
		}
	}
	tk := newTokens(&Config{Team: "t", Agent: "writer"})
	raw, err := json.Marshal(trust)
	if err != nil {
		t.Fatal(err)
	}
	if tk.told(raw) == nil {
		t.Error("a gateway takes a secret")
	}
	if raw, err = json.Marshal(trust.For("t", "writer")); err != nil {
		t.Fatal(err)
	}
	if err := tk.told(raw); err != nil {
		t.Fatal(err)
	}
	return tk, out
}

func TestAControlTokenSaysWhoCallsAndByHowMuchItIsNarrowed(t *testing.T) {
	tk, tokens := told(t)
	request := func(text string, front bool) *http.Request {
		r := &http.Request{Header: http.Header{"Authorization": {"Bearer " + text}}, URL: &url.URL{}}
		if front {
			r = r.WithContext(fromFrontContext(r.Context()))
		}
		return r
	}
	for _, c := range []struct {
		name  string
		front bool
		good  bool
	}{
		{"EdDSA good", false, true},
		{"EdDSA good", true, true},
		{"EdDSA gone", false, false},
		{"EdDSA gone", true, false},
		{"EdDSA other", false, false},
		{"EdDSA other", true, false},
		{"HS256 good", false, false}, // the agent could have made it, had its gateway the key
		{"HS256 good", true, true},
		{"HS256 gone", true, false},
	} {
		who, reason := tk.caller(request(tokens[c.name], c.front))
		switch {
		case c.good && (who == nil || who.Agent != "writer" || who.Token != "good" || who.Rate != 7 || who.Quota != (tool.Quota{Memory: 8, Storage: 9}) || len(who.Domains) != 1):
			t.Errorf("%s, through front %t: %+v, %v", c.name, c.front, who, reason)
		case !c.good && (who != nil || reason == nil || reason.Code != deny.BadToken):
			t.Errorf("%s, through front %t: %+v, %v", c.name, c.front, who, reason)
		}
	}
	if who, reason := tk.caller(request("the tools' own", false)); who != nil || reason != nil {
		t.Errorf("no token of control's: %+v, %v", who, reason)
	}
	if who, reason := tk.caller(request("the tools' own", true)); who != nil || reason == nil {
		t.Errorf("through front no other token counts: %+v, %v", who, reason)
	}
}

func TestTheWardenSaysWhatToTrustOverTheGrantsSocket(t *testing.T) {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "g"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	g := newGrants(&Config{Agent: "writer"})
	heard := make(chan string, 2)
	g.trust = func(raw json.RawMessage) error { heard <- string(raw); return nil }
	go g.serve(t.Context(), ln)
	c, err := net.DialUnix("unix", nil, ln.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	w := wire.New(c)
	defer func() { _ = w.Close() }()
	if _, err := w.Greet(wire.GrantsProtocol, wire.GrantsVersion); err != nil {
		t.Fatal(err)
	}
	if err := w.Send(1, wire.VerbTrust, map[string]int{"version": 1}); err != nil {
		t.Fatal(err)
	}
	if m, _, err := w.Recv(); err != nil || m.Verb != wire.VerbOK || len(heard) != 1 || <-heard != `{"version":1}` {
		t.Errorf("%+v, %v", m, err)
	}
}

// What neither counts in a token's rate nor names it on record is not for tokens.
func TestPathsOfMessagesAreTheAgentsOwn(t *testing.T) {
	tk, tokens := told(t)
	dir := t.TempDir()
	var out bytes.Buffer
	s, err := newServer(Config{Team: "t", Agent: "writer", Token: runtimeToken, AdapterSocket: filepath.Join(dir, "adapter.sock"), AdapterToken: runtimeToken, Data: dir}, &out)
	if err != nil {
		t.Fatal(err)
	}
	s.tokens = tk
	ask := func(method, path, authorization string) int {
		r := httptest.NewRequest(method, path, strings.NewReader("{}"))
		r.Header.Set("Authorization", "Bearer "+authorization)
		w := httptest.NewRecorder()
		s.api.handler.ServeHTTP(w, r)
		return w.Code
	}
	refused := 0
	for _, one := range []string{
		"POST /v1/messages", "POST /v1/messages:batch", "POST /v1/messages:receive", "GET /v1/messages:stream", "POST /v1/messages:ack", "POST /v1/messages:refuse", "POST /v1/messages:extend",
		"GET /v1/channels", "POST /v1/channels:request", "GET /v1/channels/all/messages", "GET /v1/channels/all/threads/1", "GET /v1/outbox",
	} {
		method, path, _ := strings.Cut(one, " ")
		if got := ask(method, path, tokens["EdDSA good"]); got != 403 {
			t.Errorf("%s with a token of control: %d", one, got)
		}
		refused++
	}
	if got := ask("GET", "/v1/outbox", tooltoken.Of(runtimeToken)); got != 200 {
		t.Errorf("the agent itself: %d", got)
	}
	if n := strings.Count(out.String(), string(deny.ToolNotAllowed)); n == 0 || n > refused {
		t.Errorf("on record: %s", out.String())
	}
}

// What is open ends when its token does: streams, sessions, long calls.
func TestWhatATokenOpenedEndsWithIt(t *testing.T) {
	tk, tokens := told(t)
	s := &Server{cfg: Config{Team: "t", Agent: "writer"}, tokens: tk}
	began := make(chan struct{})
	handler := s.authenticated(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-r.Context().Done()
	}))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r := httptest.NewRequest(http.MethodGet, "/v1/messages:stream", nil)
		r.Header.Set("Authorization", "Bearer "+tokens["EdDSA good"])
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}()
	<-began
	select {
	case <-ended:
		t.Fatal("it ended with a token that is good")
	case <-time.After(2 * stillEvery):
	}
	tk.front.Forget() // a gateway that is told nothing any more
	<-ended
}

// What is done later in the name of a token is done for as long as it is good.
func TestWhoShowedATokenMayCallLaterAsLongAsItIsGood(t *testing.T) {
	tk, tokens := told(t)
	r := &http.Request{Header: http.Header{"Authorization": {"Bearer " + tokens["EdDSA good"]}}, URL: &url.URL{}}
	who, reason := tk.caller(r)
	if reason != nil {
		t.Fatal(reason)
	}
	if err := tk.still(*who); err != nil {
		t.Errorf("a good one: %v", err)
	}
	if err := tk.still(tool.Caller{Agent: "writer"}); err != nil {
		t.Errorf("the agent itself: %v", err)
	}
	for name, change := range map[string]func(*tool.Caller){
		"revoked":           func(c *tool.Caller) { c.Token = "gone" },
		"expired":           func(c *tool.Caller) { c.Expires = time.Now().Unix() },
		"of another key":    func(c *tool.Caller) { c.Key = "another" },
		"of an older build": func(c *tool.Caller) { c.Key, c.Expires = "", 0 },
	} {
		one := *who
		change(&one)
		if err := tk.still(one); err == nil || errors.Is(err, proc.ErrNotKnown) {
			t.Errorf("%s: %v", name, err)
		}
	}
	tk.front.Forget()
	if err := tk.still(*who); !errors.Is(err, proc.ErrNotKnown) {
		t.Errorf("told nothing: %v", err)
	}
	if err := newTokens(&Config{Team: "t", Agent: "writer"}).still(*who); !errors.Is(err, proc.ErrNotKnown) {
		t.Errorf("a gateway that has just started: %v", err)
	}
}
