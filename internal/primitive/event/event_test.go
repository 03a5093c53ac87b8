package event

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
	"bulkhead/internal/tool/tooltest"
	"bulkhead/internal/topic"
)

type object = map[string]any

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.now }

func (c *clock) add(d time.Duration) { c.mu.Lock(); defer c.mu.Unlock(); c.now = c.now.Add(d) }

func start(t testing.TB, quota int64) (tooltest.Caller, *Events, *store.Store, *clock) {
	t.Helper()
	now := &clock{now: time.Unix(1_800_000_000, 0)}
	s := tooltest.Store(t, func(cfg *store.Config) { cfg.Quota, cfg.Now = quota, now.Now })
	e, err := Open(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	return tooltest.New(t, s, e.Tools()...), e, s, now
}

func poll(t testing.TB, c tooltest.Caller, in object) (p Polled, bodies string) {
	t.Helper()
	if err := json.Unmarshal([]byte(c.Do("events_poll", in)), &p); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range p.Messages {
		all = append(all, string(m.Body))
	}
	return p, strings.Join(all, " ")
}

func TestEverySubscriptionIsGivenEveryEventOnce(t *testing.T) {
	c, _, _, _ := start(t, 0)
	c.Do("events_publish", `{"topic":"t","message":0}`)
	c.Do("events_subscribe", `{"topic":"t"}`)
	c.Do("events_subscribe", `{"topic":"t","subscription":"all","from":"start"}`)
	for i := 1; i <= 3; i++ {
		if got := c.Do("events_publish", object{"topic": "t", "payload": i}); got != fmt.Sprintf(`{"messageId":"t#%d","seq":%d,"topic":"t"}`, i+1, i+1) {
			t.Error(got)
		}
	}
	c.Do("events_subscribe", `{"topic":"t"}`) // again: it stays where it is
	for _, step := range []struct {
		in   object
		want string
	}{
		{object{"topic": "t", "limit": 2}, "1 2"},
		{object{"topic": "t", "after": 1}, "1 2 3"}, // moves nothing
		{object{"topic": "t"}, "3"},
		{object{"topic": "t"}, ""},
		{object{"topic": "t", "subscription": "all"}, "0 1 2 3"},
	} {
		if p, got := poll(t, c, step.in); got != step.want || p.Missed != 0 {
			t.Errorf("%v: %q, want %q; %d missed", step.in, got, step.want, p.Missed)
		}
	}
	c.Denied(deny.ToolMissing, "events_poll", `{"topic":"none"}`)
	if got := c.Do("events_unsubscribe", `{"topic":"t"}`); !strings.Contains(got, `"unsubscribed":true`) {
		t.Error(got)
	}
	c.Denied(deny.ToolMissing, "events_poll", `{"topic":"t"}`)
	if got := c.Do("events_list_topics", `{}`); got != `{"topics":[{"topic":"t","last":4,"messages":4,"subscriptions":[{"subscription":"all","position":4}]}]}` {
		t.Error(got)
	}
}

func TestAPollGivesNoMoreThanAnAnswerMayHave(t *testing.T) {
	c, e, _, _ := start(t, 0)
	c.Do("events_subscribe", `{"topic":"t"}`)
	c.Do("events_subscribe", `{"topic":"t","subscription":"streamed"}`)
	const n = 5
	for i := range n {
		c.Do("events_publish", object{"topic": "t", "message": fmt.Sprint(i, strings.Repeat("x", 600<<10))})
	}
	c.Do("events_publish", object{"topic": "t", "message": strings.Repeat("y", topic.MaxMessage-2)})
	next := int64(0)
	for _, want := range []int{2, 2, 1, 1, 0} {
		p, _ := poll(t, c, object{"topic": "t", "limit": 100})
		if len(p.Messages) != want || p.Missed != 0 {
			t.Fatalf("%d events, want %d; %d missed", len(p.Messages), want, p.Missed)
		}
		for _, m := range p.Messages {
			if next++; m.Seq != next {
				t.Fatalf("event %d, want %d", m.Seq, next)
			}
		}
	}
	// A stream goes on without waiting for a new one.
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := e.ServeStream(w, r, "t", "streamed"); err != nil {
			t.Error(err)
		}
	}))
	defer web.Close()
	answer, err := http.Get(web.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 2*topic.MaxMessage)
	for got := 0; got < n+1 && lines.Scan(); {
		if strings.HasPrefix(lines.Text(), ": quiet") {
			t.Fatalf("after %d of %d the stream waits", got, n+1)
		}
		if strings.HasPrefix(lines.Text(), "id: ") {
			got++
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

func TestATopicKeepsAThousandAndADay(t *testing.T) {
	c, _, s, now := start(t, 0)
	c.Do("events_subscribe", `{"topic":"t"}`)
	for i := range 1100 {
		c.Do("events_publish", object{"topic": "t", "message": i})
	}
	p, got := poll(t, c, object{"topic": "t", "limit": 1})
	if got != "100" || p.Missed != 100 {
		t.Errorf("%q after %d missed", got, p.Missed)
	}
	now.add(keepFor + time.Second)
	if p, got := poll(t, c, object{"topic": "t"}); got != "" || p.Missed != 999 {
		t.Errorf("after a day: %q, %d missed", got, p.Missed)
	}
	c.Do("events_publish", `{"topic":"t","message":"new"}`)
	if p, got := poll(t, c, object{"topic": "t"}); got != `"new"` || p.Missed != 0 {
		t.Errorf("%q, %d missed", got, p.Missed)
	}
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := s.View(t.Context(), func(x *store.Tx) error {
		n, err := x.Int("SELECT sum(size) FROM event")
		if want := n + int64(len("t")+eventCost); x.Used() != want {
			t.Errorf("%d bytes are counted, %d are there", x.Used(), want)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOldEventsGiveWayWhenTheQuotaIsUsedUp(t *testing.T) {
	c, _, _, now := start(t, 2048)
	big := object{"topic": "t", "message": strings.Repeat("x", 900)}
	c.Do("events_publish", big)
	c.Do("events_publish", big)
	c.Denied(deny.ToolQuota, "events_publish", big)
	now.add(keepFor + time.Second)
	c.Do("events_publish", big)
}

func TestAPollWaitsForTheNextEvent(t *testing.T) {
	c, _, _, _ := start(t, 0)
	c.Do("events_subscribe", `{"topic":"t"}`)
	got := make(chan string, 1)
	go func() { got <- c.Do("events_poll", `{"topic":"t","wait":30}`) }()
	c.Do("events_publish", `{"topic":"other","message":1}`)
	c.Do("events_publish", `{"topic":"t","message":"here"}`)
	if s := <-got; !strings.Contains(s, `"message":"here"`) {
		t.Error(s)
	}
}

func TestAStreamGivesWhatIsPublished(t *testing.T) {
	c, e, _, _ := start(t, 0)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := e.ServeStream(w, r, r.URL.Query().Get("topic"), "default"); err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
		}
	}))
	defer srv.Close()
	a, err := http.Get(srv.URL + "/?topic=t")
	if err != nil || a.StatusCode != http.StatusNotFound {
		t.Fatalf("%v, %v", a, err)
	}
	_ = a.Body.Close()
	c.Do("events_subscribe", `{"topic":"t"}`)
	c.Do("events_publish", `{"topic":"t","message":{"n":0}}`)
	if a, err = http.Get(srv.URL + "/?topic=t"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Body.Close() }()
	lines := bufio.NewScanner(a.Body)
	for n := 0; n < 3 && lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var m Message
		if err := json.Unmarshal([]byte(data), &m); err != nil || string(m.Body) != fmt.Sprintf(`{"n":%d}`, n) {
			t.Fatalf("%s, %v", data, err)
		}
		n++
		c.Do("events_publish", object{"topic": "t", "message": object{"n": n}})
	}
}

// A grant for one topic is none for another, which others may hear.
func TestAGrantIsForATopic(t *testing.T) {
	_, e, _, _ := start(t, 0)
	for _, row := range e.Tools() {
		if row.Name == "events_list_topics" {
			continue
		}
		if row.Scope == nil {
			t.Fatalf("%s has no scope", row.Name)
		}
		if got, reason := row.Scope(tool.Input{"topic": "public/builds"}); got != "public/builds" || reason != nil {
			t.Errorf("%s: %q, %v", row.Name, got, reason)
		}
	}
}
