package front

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/control/admintoken"
	"bulkhead/internal/deny"
	"bulkhead/internal/front/protocol"
	"bulkhead/internal/identity/token"
)

var hosting = protocol.Listener{Teams: []string{"pair", "plain"}, Guests: []protocol.Guests{{Team: "pair", Token: admintoken.Of("P")}}}

func raw(t *testing.T, v any) json.RawMessage {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// works gives the next work as the warden gets it.
func works(t *testing.T, s *Server, wait time.Duration) protocol.Work {
	t.Helper()
	out, err := s.desk.work(t.Context(), raw(t, protocol.WorkRequest{Wait: wait}))
	if err != nil {
		t.Fatal(err)
	}
	return out.(protocol.Work)
}

func claims(agent string) *token.Claims { return &token.Claims{Team: "pair", Agent: agent} }

// arrive is what a gateway's connection does.
func arrive(s *Server, key string) *gateway {
	g := &gateway{last: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gateways[key] = g
	s.desk.woken(key, nil)
	return g
}

func TestASleepingGuestIsWokenOnceForAllWhoWait(t *testing.T) {
	s := New(protocol.Config{}, io.Discard)
	var all sync.WaitGroup
	got := make([]*gateway, 20)
	for i := range got {
		all.Go(func() {
			g, reason := s.take(t.Context(), claims("app"), hosting)
			if reason != nil {
				t.Error(reason)
			}
			got[i] = g
		})
	}
	if w := works(t, s, time.Minute); len(w.Wake) != 1 || w.Wake[0] != (protocol.Agent{Team: "pair", Name: "app"}) {
		t.Errorf("%+v", w)
	}
	g := arrive(s, "pair/app")
	all.Wait()
	for _, one := range got {
		if one != g {
			t.Errorf("%p, want %p", one, g)
		}
	}
	if w := works(t, s, 0); len(w.Wake) != 0 || g.active != len(got) || len(s.desk.waking) != 0 || s.desk.wakers != 0 {
		t.Errorf("%+v, %d active, %d waking", w, g.active, len(s.desk.waking))
	}
}

// A warden that ends may have taken work along: the next one is given it again,
// and the former's question has no part in it any more.
func TestAnotherWardenIsGivenWhatTheFormerTook(t *testing.T) {
	s := New(protocol.Config{}, io.Discard)
	var all sync.WaitGroup
	all.Go(func() {
		if _, reason := s.take(t.Context(), claims("app"), hosting); reason != nil {
			t.Error(reason)
		}
	})
	all.Go(func() {
		if a, err := s.desk.ask(t.Context(), protocol.AdminRequest{Name: "x"}); err != nil || a.Status != 200 {
			t.Errorf("%+v, %v", a, err)
		}
	})
	ask := func(session string, wait time.Duration) protocol.Work {
		out, err := s.desk.work(t.Context(), raw(t, protocol.WorkRequest{Session: session, Wait: wait}))
		if err != nil {
			t.Error(err)
		}
		return out.(protocol.Work)
	}
	for wakes, admins := 0, 0; wakes == 0 || admins == 0; {
		w := ask("a", time.Minute)
		wakes, admins = wakes+len(w.Wake), admins+len(w.Admin)
	}
	over := s.desk.begin("a") // as a question of the former that waits
	w := ask("b", time.Minute)
	if len(w.Wake) != 1 || len(w.Admin) != 1 {
		t.Fatalf("%+v", w)
	}
	select {
	case <-over:
	default:
		t.Error("the former's question goes on")
	}
	arrive(s, "pair/app")
	if _, err := s.desk.answer(t.Context(), raw(t, protocol.AdminAnswer{ID: w.Admin[0].ID, Status: 200})); err != nil {
		t.Fatal(err)
	}
	all.Wait()
}

func TestWhoCannotWakeIsToldWhy(t *testing.T) {
	s := New(protocol.Config{}, io.Discard)
	done := make(chan *deny.Reason)
	take := func(ctx context.Context, c *token.Claims) {
		_, reason := s.take(ctx, c, hosting)
		done <- reason
	}
	go take(t.Context(), claims("app"))
	works(t, s, time.Minute)
	if _, err := s.woken(t.Context(), raw(t, protocol.Woken{Agent: protocol.Agent{Team: "pair", Name: "app"}, Reason: &deny.Reason{Code: deny.ToolUnavailable, Why: "because"}})); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r == nil || r.Why != "because" {
		t.Errorf("%+v", r)
	}
	// A team without guests has nobody woken.
	if _, reason := s.take(t.Context(), &token.Claims{Team: "plain", Agent: "app"}, hosting); reason == nil || len(s.desk.todo.Wake) != 0 {
		t.Errorf("%+v, %+v", reason, s.desk.todo)
	}
	// Who waited in vain is no reason not to ask again.
	ctx, cancel := context.WithCancel(t.Context())
	go take(ctx, claims("app"))
	works(t, s, time.Minute)
	cancel()
	if r := <-done; r == nil || r.RetryAfter == 0 {
		t.Errorf("%+v", r)
	}
	go take(t.Context(), claims("app"))
	if w := works(t, s, time.Minute); len(w.Wake) != 1 {
		t.Errorf("%+v", w)
	}
	arrive(s, "pair/app")
	if r := <-done; r != nil {
		t.Error(r)
	}
}

func TestOnlyIdleGuestsRest(t *testing.T) {
	s := New(protocol.Config{}, io.Discard)
	now := time.Now()
	for name, g := range map[string]*gateway{
		"busy": {active: 1, last: now.Add(-time.Hour)}, "old": {last: now.Add(-time.Hour)}, "older": {last: now.Add(-2 * time.Hour)}, "new": {last: now}, "agent": {last: now.Add(-time.Hour)},
	} {
		s.gateways["pair/"+name] = g
	}
	rest := func(idle time.Duration, most int, names ...string) string {
		q := protocol.Rest{Idle: idle, Most: most}
		for _, n := range names {
			q.Agents = append(q.Agents, protocol.Agent{Team: "pair", Name: n})
		}
		out, err := s.rest(t.Context(), raw(t, q))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range out.(protocol.Rested).Agents {
			got = append(got, a.Name)
		}
		return strings.Join(got, " ")
	}
	guests := []string{"busy", "old", "older", "new"}
	for _, c := range []struct {
		idle time.Duration
		most int
		want string
	}{{time.Minute, 0, ""}, {time.Minute, 1, "older"}, {3 * time.Hour, 9, "older"}, {time.Minute, 9, "older old"}, {0, 9, "older old new"}} {
		// One that rests already is not there any more, and may be stopped.
		if got := rest(c.idle, c.most, guests...); !sameWords(got, c.want) {
			t.Errorf("idle %s, at most %d: %q, want %q", c.idle, c.most, got, c.want)
		}
	}
	if s.gateways["pair/busy"] == nil || s.gateways["pair/agent"] == nil {
		t.Error("one rests that is in use, or was not asked for")
	}
	// Nobody rests for whom somebody waits.
	done := make(chan *gateway)
	go func() {
		g, _ := s.take(t.Context(), claims("old"), hosting)
		done <- g
	}()
	works(t, s, time.Minute)
	if got := rest(0, 9, "old"); got != "" {
		t.Errorf("%s rests", got)
	}
	// A warden that stopped it only in its plans says that it is awake.
	if _, err := s.woken(t.Context(), raw(t, protocol.Woken{Agent: protocol.Agent{Team: "pair", Name: "old"}})); err != nil {
		t.Fatal(err)
	}
	if g := <-done; g == nil || g.active != 1 {
		t.Errorf("%+v", g)
	}
}

func sameWords(a, b string) bool {
	x, y := strings.Fields(a), strings.Fields(b)
	slices.Sort(x)
	slices.Sort(y)
	return slices.Equal(x, y)
}

func TestTheAdminEndpointChecksBeforeItAsks(t *testing.T) {
	s := New(protocol.Config{}, io.Discard)
	h := s.handler(hosting, newPlaces())
	ask := func(method, path, token, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	for name, c := range map[string]struct {
		method, path, token string
		status              int
	}{
		"no token": {"POST", "/admin/agents", "", 401}, "another": {"POST", "/admin/agents", "Q", 401}, "put": {"PUT", "/admin/agents", "P", 400},
		"delete all": {"DELETE", "/admin/agents", "P", 400}, "post to a name": {"POST", "/admin/agents/x", "P", 400}, "below a name": {"GET", "/admin/agents/x/y", "P", 400}, "no name": {"GET", "/admin/agents/", "P", 400},
	} {
		if w := ask(c.method, c.path, c.token, "{}"); w.Code != c.status {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	if w := ask("POST", "/admin/agents", "P", strings.Repeat("x", maxAdminBody+1)); w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("a large body: %d", w.Code)
	}
	if len(s.desk.todo.Admin) != 0 {
		t.Fatalf("%d requests were passed on", len(s.desk.todo.Admin))
	}
	done := make(chan *httptest.ResponseRecorder)
	go func() { done <- ask("POST", "/admin/agents", "P", `{"name":"app"}`) }()
	w := works(t, s, time.Minute)
	if len(w.Admin) != 1 || w.Admin[0].Token != "P" || w.Admin[0].Key != "k" || string(w.Admin[0].Body) != `{"name":"app"}` || len(w.Admin[0].Teams) != 1 {
		t.Fatalf("%+v", w)
	}
	if _, err := s.desk.answer(t.Context(), raw(t, protocol.AdminAnswer{ID: w.Admin[0].ID, Status: 201, Body: json.RawMessage(`{"a":1}`)})); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.Code != 201 || r.Body.String() != "{\"a\":1}\n" || r.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("%d %s %v", r.Code, r.Body, r.Header())
	}
	for range 5 {
		ask("GET", "/admin/agents", "Q", "")
	}
	if r := ask("GET", "/admin/agents", "P", ""); r.Code != 429 || r.Header().Get("Retry-After") != "60" {
		t.Errorf("after guessing: %d %v", r.Code, r.Header())
	}
	off := s.handler(protocol.Listener{Teams: []string{"pair"}}, newPlaces())
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/admin/agents", nil)
	r.Header.Set("Authorization", "Bearer P")
	rec := httptest.NewRecorder()
	off.ServeHTTP(rec, r)
	if rec.Code != 403 || !strings.Contains(rec.Body.String(), "front.guests") {
		t.Errorf("without a ceiling: %d %s", rec.Code, rec.Body)
	}
}
