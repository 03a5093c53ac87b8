package shelf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"bulkhead/internal/deny"
	"bulkhead/internal/sqlite"
	"bulkhead/internal/store"
	"bulkhead/internal/topic"
	"bulkhead/internal/topic/protocol"
)

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.now }

func (c *clock) add(d time.Duration) { c.mu.Lock(); defer c.mu.Unlock(); c.now = c.now.Add(d) }

func open(t interface {
	Helper()
	Fatal(...any)
}, dir string,
) (*Shelf, *clock) {
	t.Helper()
	now := &clock{now: time.Unix(1_800_000_000, 0)}
	s, err := Open(context.Background(), dir, "pair", nil, now.Now)
	if err != nil {
		t.Fatal(err)
	}
	return s, now
}

// caller fails a test of a shelf at the first error that was not foreseen.
type caller struct {
	t testing.TB
	*Shelf
	now  *clock
	keys int
}

func anyTopic(string) bool { return true }

func start(t testing.TB) *caller {
	t.Helper()
	s, now := open(t, t.TempDir())
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &caller{t: t, Shelf: s, now: now}
}

func (c *caller) publish(agent, message string) int64 {
	c.t.Helper()
	out, err := c.try(agent, message)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

func (c *caller) try(agent, message string) (int64, error) {
	c.keys++
	out, err := c.Publish(context.Background(), agent, topic.DefaultStorage, protocol.Publish{Topic: "builds", Key: fmt.Sprint(c.keys), Message: json.RawMessage(message)})
	return out.Seq, err
}

func (c *caller) read(agent string, q protocol.Read) (protocol.Messages, string) {
	c.t.Helper()
	q.Topic = "builds"
	if q.Limit == 0 {
		q.Limit = topic.MaxPolled
	}
	out, err := c.Read(context.Background(), agent, q)
	if err != nil {
		c.t.Fatal(err)
	}
	var all []string
	for _, m := range out.Messages {
		all = append(all, m.From+":"+string(m.Body))
	}
	return out, strings.Join(all, " ")
}

func (c *caller) subscribe(agent, name string, fromStart bool) {
	c.t.Helper()
	if _, err := c.Subscribe(context.Background(), agent, anyTopic, protocol.Subscribe{Topic: "builds", Subscription: name, FromStart: fromStart}); err != nil {
		c.t.Fatal(err)
	}
}

func denied(t testing.TB, err error, code deny.Code) {
	t.Helper()
	var r *deny.Reason
	if !errors.As(err, &r) || r.Code != code {
		t.Fatalf("%v, not %s", err, code)
	}
}

func TestEachSubscriptionIsGivenEachMessageOnce(t *testing.T) {
	c := start(t)
	c.publish("ci", `1`)
	c.subscribe("lead", "late", false)
	c.subscribe("lead", "all", true)
	c.subscribe("qa", "all", true)
	c.publish("lead", `2`)
	for _, tc := range []struct{ agent, sub, want string }{
		{"lead", "late", "lead:2"},
		{"lead", "all", "ci:1 lead:2"},
		{"qa", "all", "ci:1 lead:2"},
		{"lead", "all", ""},
	} {
		if _, got := c.read(tc.agent, protocol.Read{Subscription: tc.sub}); got != tc.want {
			t.Errorf("%s %s was given %q, not %q", tc.agent, tc.sub, got, tc.want)
		}
	}
	after := int64(1)
	if m, got := c.read("qa", protocol.Read{Subscription: "all", After: &after}); got != "lead:2" || m.Position != 2 {
		t.Errorf("after 1: %q at %d", got, m.Position)
	}
	_, err := c.Read(t.Context(), "qa", protocol.Read{Topic: "builds", Subscription: "late", Limit: 1})
	denied(t, err, deny.ToolMissing) // another agent has one of that name
	if out, err := c.Unsubscribe(t.Context(), "qa", protocol.Subscription{Topic: "builds", Subscription: "late"}); err != nil || out.Ended {
		t.Errorf("somebody else's subscription: %+v, %v", out, err)
	}
}

func TestAFloodPutsOutTheFloodersMessagesAlone(t *testing.T) {
	c := start(t)
	c.subscribe("lead", "s", true)
	c.publish("quiet", `"mine"`)
	for i := range topic.Keep + 100 {
		c.publish("loud", fmt.Sprint(i))
	}
	m, _ := c.read("lead", protocol.Read{Subscription: "s"})
	if m.Messages[0].From != "quiet" || string(m.Messages[1].Body) != "100" || m.Missed != 100 {
		t.Errorf("first %+v, then %s; %d missed", m.Messages[0], m.Messages[1].Body, m.Missed)
	}
	if l, err := c.List(t.Context(), "lead", []string{"builds"}); err != nil || l["builds"].Messages != topic.Keep+1 {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestAMessageGoesAfterADay(t *testing.T) {
	c := start(t)
	c.subscribe("lead", "s", true)
	c.publish("ci", `1`)
	c.now.add(topic.For - time.Second)
	c.publish("ci", `2`)
	c.now.add(time.Second)
	if m, got := c.read("lead", protocol.Read{Subscription: "s"}); got != "ci:2" || m.Missed != 1 {
		t.Errorf("%q, %d missed", got, m.Missed)
	}
	c.now.add(topic.For)
	if err := c.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := c.publish("ci", `3`); n != 3 {
		t.Errorf("number %d was given again", n)
	}
}

func TestBytesOfAPublisherAreBoundedAndGivenBack(t *testing.T) {
	c := start(t)
	const storage = 4096
	big := json.RawMessage(`"` + strings.Repeat("x", 1000) + `"`)
	put := func(agent, key string) error {
		_, err := c.Publish(t.Context(), agent, storage, protocol.Publish{Topic: "builds", Key: key, Message: big})
		return err
	}
	for i := range 3 {
		if err := put("ci", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	denied(t, put("ci", "more"), deny.ToolQuota)
	if err := put("qa", "other"); err != nil {
		t.Errorf("another publisher's bytes are used up, too: %v", err)
	}
	c.now.add(topic.For)
	if err := put("ci", "more"); err != nil {
		t.Errorf("what has expired is not given back: %v", err)
	}
}

func TestAKeyPublishesOnce(t *testing.T) {
	c := start(t)
	do := func(agent, name, message string) (int64, error) {
		out, err := c.Publish(t.Context(), agent, topic.DefaultStorage, protocol.Publish{Topic: name, Key: "k", Message: json.RawMessage(message)})
		return out.Seq, err
	}
	first, err := do("ci", "builds", `1`)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := do("ci", "builds", `1`); err != nil || again != first {
		t.Errorf("%d, then %d, %v", first, again, err)
	}
	_, err = do("ci", "builds", `2`)
	denied(t, err, deny.ToolConflict)
	_, err = do("ci", "alerts", `1`)
	denied(t, err, deny.ToolConflict)
	if n, err := do("qa", "builds", `2`); err != nil || n != 2 {
		t.Errorf("another agent's key: %d, %v", n, err)
	}
}

func TestWhatIsMalformedChangesNothing(t *testing.T) {
	c := start(t)
	for _, q := range []protocol.Publish{
		{Topic: "builds", Message: json.RawMessage(`1`)},
		{Topic: "builds", Key: strings.Repeat("k", topic.MaxKey+1), Message: json.RawMessage(`1`)},
		{Topic: "builds", Key: "k"},
	} {
		_, err := c.Publish(t.Context(), "ci", topic.DefaultStorage, q)
		denied(t, err, deny.ToolInvalid)
	}
	_, err := c.Publish(t.Context(), "ci", topic.DefaultStorage, protocol.Publish{Topic: "builds", Key: "k", Message: make(json.RawMessage, topic.MaxMessage+1)})
	denied(t, err, deny.ToolTooLarge)
	low := int64(-1)
	for _, q := range []protocol.Read{{Topic: "builds", Subscription: "s"}, {Topic: "builds", Subscription: "s", Limit: 101}, {Topic: "builds", Limit: 1}, {Topic: "builds", Limit: 1, After: &low}} {
		_, err := c.Read(t.Context(), "ci", q)
		denied(t, err, deny.ToolInvalid)
	}
	if l, err := c.List(t.Context(), "ci", []string{"builds"}); err != nil || l["builds"].Last != 0 {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestOneReadFitsIntoAFrame(t *testing.T) {
	c := start(t)
	big := `"` + strings.Repeat("<", topic.MaxMessage-2) + `"`
	for range 5 {
		c.publish("ci", big)
	}
	after, n := int64(0), 0
	for {
		m, _ := c.read("lead", protocol.Read{After: &after})
		if len(m.Messages) == 0 {
			break
		}
		size := 0
		for _, one := range m.Messages {
			size += len(one.Body)
			after = one.Seq
		}
		if n += len(m.Messages); size > maxGiven {
			t.Fatalf("%d bytes in one answer", size)
		}
	}
	if n != 5 {
		t.Errorf("%d of 5 messages", n)
	}
}

func TestSubscriptionsAreBoundedForEachAgent(t *testing.T) {
	c := start(t)
	for i := range topic.MaxSubscriptions {
		c.subscribe("ci", fmt.Sprint(i), false)
	}
	_, err := c.Subscribe(t.Context(), "ci", anyTopic, protocol.Subscribe{Topic: "builds", Subscription: "more"})
	denied(t, err, deny.ToolQuota)
	c.subscribe("ci", "0", false) // is there
	c.subscribe("qa", "more", false)
}

// Whatever is done, the sums are those of the rows, no publisher has more than
// it may, and what a publisher loses is its own oldest.
func TestSharesAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := tempDir(t)
		if err != nil {
			t.Fatal(err)
		}
		s, now := open(t, dir)
		defer func() { _ = s.Close() }()
		s.keep = 5
		const storage = 3000
		keys := 0
		kept := map[string][]int64{} // numbers of each publisher that must be there
		times := map[int64]time.Time{}
		t.Repeat(map[string]func(*rapid.T){
			"publish": func(t *rapid.T) {
				agent := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "agent")
				keys++
				out, err := s.Publish(context.Background(), agent, storage, protocol.Publish{
					Topic: "builds", Key: fmt.Sprint(keys), Message: json.RawMessage(`"` + strings.Repeat("x", rapid.IntRange(0, 1500).Draw(t, "size")) + `"`),
				})
				var r *deny.Reason
				switch {
				case err == nil:
					kept[agent] = append(kept[agent], out.Seq)
					if n := len(kept[agent]); int64(n) > s.keep {
						kept[agent] = kept[agent][1:]
					}
					times[out.Seq] = now.Now()
				case !errors.As(err, &r) || r.Code != deny.ToolQuota:
					t.Fatal(err)
				}
			},
			"wait":  func(t *rapid.T) { now.add(time.Duration(rapid.IntRange(1, 20).Draw(t, "hours")) * time.Hour) },
			"sweep": func(t *rapid.T) { _ = s.Sweep(context.Background()) },
			"": func(t *rapid.T) {
				after := int64(0)
				got, err := s.Read(context.Background(), "r", protocol.Read{Topic: "builds", After: &after, Limit: topic.MaxPolled})
				if err != nil {
					t.Fatal(err)
				}
				have := map[string][]int64{}
				for _, m := range got.Messages {
					have[m.From] = append(have[m.From], m.Seq)
				}
				for agent, all := range kept {
					var want []int64
					for _, seq := range all {
						if now.Now().Sub(times[seq]) < topic.For {
							want = append(want, seq)
						}
					}
					if fmt.Sprint(have[agent]) != fmt.Sprint(want) {
						t.Fatalf("of %s there are %v, not %v", agent, have[agent], want)
					}
				}
				err = s.store.View(context.Background(), func(x *store.Tx) error {
					return x.Query(`SELECT publisher, messages, bytes, (SELECT count(*) FROM event e WHERE e.topic = s.topic AND e.publisher = s.publisher),
						(SELECT coalesce(sum(size), 0) FROM event e WHERE e.topic = s.topic AND e.publisher = s.publisher) FROM share s`, func(row []sqlite.Value) error {
						if sqlite.Int(row[1]) != sqlite.Int(row[3]) || sqlite.Int(row[2]) != sqlite.Int(row[4]) || sqlite.Int(row[1]) > s.keep || sqlite.Int(row[2]) > storage {
							return fmt.Errorf("share %v", row)
						}
						return nil
					})
				})
				if err != nil {
					t.Fatal(err)
				}
			},
		})
	})
}

func tempDir(t *rapid.T) (string, error) {
	dir, err := os.MkdirTemp("", "shelf")
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir, err
}
