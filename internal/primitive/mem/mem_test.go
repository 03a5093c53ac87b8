package mem

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"bulkhead/internal/deny"
	"bulkhead/internal/store"
	"bulkhead/internal/tool/tooltest"
)

// clock is a time that a test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.now }

func (c *clock) add(d time.Duration) { c.mu.Lock(); defer c.mu.Unlock(); c.now = c.now.Add(d) }

func start(t testing.TB, quota int64) (tooltest.Caller, *store.Store, *clock) {
	t.Helper()
	c := &clock{now: time.Unix(1_800_000_000, 0)}
	s := tooltest.Store(t, func(cfg *store.Config) { cfg.Now, cfg.Quota = c.Now, quota })
	m, err := Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return tooltest.New(t, s, m.Tools()...), s, c
}

type object = map[string]any

func TestValuesComeBackAsTheyWereGiven(t *testing.T) {
	c, _, _ := start(t, 0)
	for _, value := range []string{`1`, `"text"`, `null`, `[]`, `{"a":[1,2.50,12345678901234567890]}`, `"\u0000\ud83d\ude00"`, `1e400`, `true`} {
		c.Do("mem_set", `{"key":"k","value":`+value+`}`)
		if got := c.Do("mem_get", `{"key":"k"}`); got != `{"key":"k","value":`+value+`}` {
			t.Errorf("%s became %s", value, got)
		}
	}
	if got := c.Do("mem_delete", `{"key":"k"}`); got != `{"deleted":true,"key":"k"}` {
		t.Error(got)
	}
	if got := c.Do("mem_delete", `{"key":"k"}`); got != `{"deleted":false,"key":"k"}` {
		t.Error(got)
	}
}

func TestKeysAreWhatTheContractSays(t *testing.T) {
	c, _, _ := start(t, 0)
	for _, key := range []string{"a", strings.Repeat("k", 512), "A-Z_:./0"} {
		c.Do("mem_set", object{"key": key, "value": 1})
	}
	for _, key := range []string{"", strings.Repeat("k", 513), "a b", "a\n", "ä", "a\x00", "a%", "../\\"} {
		c.Denied(deny.ToolInvalid, "mem_set", object{"key": key, "value": 1})
	}
	c.Denied(deny.ToolInvalid, "mem_set", object{"key": "k", "value": 1, "ttl": 0})
	c.Denied(deny.ToolInvalid, "mem_set", object{"key": "k", "value": 1, "ttl": 2592001})
}

func TestValuesExpire(t *testing.T) {
	c, s, now := start(t, 0)
	c.Do("mem_set", `{"key":"short","value":1,"ttl":10}`)
	c.Do("mem_set", `{"key":"week","value":1}`)
	c.Do("mem_set", `{"key":"n","value":41}`)
	if got := c.Do("mem_expire", `{"key":"n","ttl":5}`); !strings.Contains(got, `"set":true`) {
		t.Error(got)
	}
	now.add(10 * time.Second)
	for _, key := range []string{"short", "n"} {
		if got := c.Do("mem_get", object{"key": key}); !strings.Contains(got, `"value":null`) {
			t.Error(got)
		}
		if got := c.Do("mem_expire", object{"key": key, "seconds": 5}); !strings.Contains(got, `"set":false`) {
			t.Error(got)
		}
	}
	if got := c.Do("mem_incr", `{"key":"n"}`); got != `{"key":"n","value":1}` {
		t.Errorf("a counter that had expired went on: %s", got)
	}
	if got := c.Do("mem_list", `{}`); got != `{"keys":["n","week"],"more":false}` {
		t.Error(got)
	}
	now.add(7 * 24 * time.Hour)
	if got := c.Do("mem_list", `{}`); got != `{"keys":[],"more":false}` {
		t.Errorf("the default is 7 days: %s", got)
	}
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if used := usage(t, s); used != [2]int64{} {
		t.Errorf("%v bytes are left counted, and there", used)
	}
}

func TestListsArePaged(t *testing.T) {
	c, _, _ := start(t, 0)
	for i := range 1500 {
		c.Do("mem_set", object{"key": fmt.Sprintf("p:%04d", i), "value": i})
	}
	c.Do("mem_set", `{"key":"q","value":1}`)
	var all []string
	after, more := "", true
	for more {
		var page struct {
			Keys []string
			More bool
		}
		if err := json.Unmarshal([]byte(c.Do("mem_list", object{"prefix": "p:", "after": after})), &page); err != nil || len(page.Keys) > 1000 {
			t.Fatal(err, len(page.Keys))
		}
		all, more = append(all, page.Keys...), page.More
		after = all[len(all)-1]
	}
	if len(all) != 1500 || all[0] != "p:0000" || all[1499] != "p:1499" {
		t.Errorf("%d keys", len(all))
	}
}

func TestCountersAreAtomicAndBounded(t *testing.T) {
	c, _, _ := start(t, 0)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 20 {
				c.Do("mem_incr", `{"key":"n","by":3}`)
			}
		})
	}
	wg.Wait()
	if got := c.Do("mem_get", `{"key":"n"}`); got != `{"key":"n","value":960}` {
		t.Error(got)
	}
	c.Do("mem_set", `{"key":"top","value":9223372036854775807}`)
	c.Denied(deny.ToolConflict, "mem_incr", `{"key":"top"}`)
	c.Do("mem_incr", `{"key":"top","amount":-9223372036854775807}`)
	c.Do("mem_set", `{"key":"text","value":"1"}`)
	c.Denied(deny.ToolConflict, "mem_incr", `{"key":"text"}`)
	if got := c.Do("mem_get", `{"key":"text"}`); got != `{"key":"text","value":"1"}` {
		t.Error(got)
	}
}

func TestMemoriesAreFoundByWordsAndTags(t *testing.T) {
	c, _, now := start(t, 0)
	for _, m := range []object{
		{"key": "deploy", "content": "Deploying the service takes ten minutes.", "tags": []string{"ops", "service"}},
		{"key": "cafe", "content": "The café opens at eight; minutes away.", "tags": []string{"town"}},
		{"key": "syntax", "content": `AND OR NOT NEAR( "quoted" * ^ col:`, "tags": []string{"ops"}},
	} {
		c.Do("mem_remember", m)
		now.add(time.Second)
	}
	for _, q := range []struct {
		in   object
		want []string
	}{
		{object{"query": "deployed services"}, []string{"deploy"}},
		{object{"query": "cafe"}, []string{"cafe"}},
		{object{"query": "ten minutes"}, []string{"deploy", "cafe"}}, // two words of it before one
		{object{"query": "nothing like that"}, nil},
		{object{"query": "minutes", "tags": []string{"town"}}, []string{"cafe"}},
		{object{"tags": []string{"ops"}}, []string{"syntax", "deploy"}},
		{object{"tags": []string{"ops", "service"}}, []string{"deploy"}},
		{object{}, []string{"syntax", "cafe", "deploy"}},
		{object{"limit": 1}, []string{"syntax"}},
		{object{"query": `"`}, nil},
		{object{"query": `NEAR("quoted`}, []string{"syntax"}},
		{object{"query": `content:deploying - * ) (`}, []string{"deploy"}},
	} {
		var out struct{ Memories []Memory }
		if err := json.Unmarshal([]byte(c.Do("mem_recall", q.in)), &out); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range out.Memories {
			got = append(got, m.Key)
		}
		if fmt.Sprint(got) != fmt.Sprint(q.want) {
			t.Errorf("%v: %v, want %v", q.in, got, q.want)
		}
	}
}

func TestAnAnswerHasOnlySoManyBytesOfMemories(t *testing.T) {
	c, _, _ := start(t, 64<<20)
	long := strings.Repeat("語", maxContent)
	for i := range 15 {
		c.Do("mem_remember", map[string]any{"key": fmt.Sprint("k", i), "content": long})
		c.Do("mem_remember", map[string]any{"key": "one", "content": long})
	}
	for name, in := range map[string]map[string]any{
		"mem_recall":  {"limit": 100},
		"mem_history": {"key": "one", "limit": 20},
	} {
		out := c.Do(name, in)
		if n := strings.Count(out, long); n != maxGiven/len(long) || !strings.Contains(out, `"more":true`) {
			t.Errorf("%s: %d of 15; %.100s", name, n, out)
		}
	}
	if out := c.Do("mem_recall", map[string]any{"limit": 2}); strings.Contains(out, "more") {
		t.Errorf("%.100s", out)
	}
}

func TestAMemoryHasVersions(t *testing.T) {
	c, s, _ := start(t, 0)
	for i := range 25 {
		c.Do("mem_remember", object{"key": "k", "content": fmt.Sprintf("word%d", i)})
	}
	var out struct{ Versions []Memory }
	if err := json.Unmarshal([]byte(c.Do("mem_history", `{"key":"k","limit":100}`)), &out); err != nil {
		t.Fatal(err)
	}
	if len(out.Versions) != maxVersions || out.Versions[0].Version != 25 || out.Versions[0].Content != "word24" {
		t.Errorf("%d versions, %+v", len(out.Versions), out.Versions[0])
	}
	if got := c.Do("mem_recall", `{"query":"word3"}`); got != `{"memories":[]}` {
		t.Errorf("an old version was found: %s", got)
	}
	if got := c.Do("mem_forget", `{"key":"k"}`); got != `{"forgotten":true,"key":"k"}` {
		t.Error(got)
	}
	if got := c.Do("mem_recall", `{"query":"word24"}`); got != `{"memories":[]}` {
		t.Errorf("a forgotten one was found: %s", got)
	}
	if used := usage(t, s); used != [2]int64{} {
		t.Errorf("%v bytes are left counted, and there", used)
	}
}

// usage gives the bytes that are counted, and those that are there.
func usage(t testing.TB, s *store.Store) (out [2]int64) {
	t.Helper()
	err := s.View(t.Context(), func(x *store.Tx) (err error) {
		out[0] = x.Used()
		out[1], err = x.Int("SELECT coalesce((SELECT sum(length(key) + length(value) + 64) FROM mem), 0)" +
			" + coalesce((SELECT sum(length(CAST(key AS BLOB)) + length(CAST(content AS BLOB)) + length(CAST(tags AS BLOB)) + 64) FROM memory), 0)")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestTheQuotaIsExactWhateverIsDoneAtOnce does anything, by several at once, and
// compares what is counted with what is there.
func TestTheQuotaIsExactWhateverIsDoneAtOnce(t *testing.T) {
	const quota = 4096
	c, s, now := start(t, quota)
	rapid.Check(t, func(r *rapid.T) {
		if err := s.Update(t.Context(), func(x *store.Tx) error {
			for _, sql := range []string{"DELETE FROM mem", "DELETE FROM memory_text", "DELETE FROM memory"} {
				if _, err := x.Exec(sql); err != nil {
					return err
				}
			}
			return x.Charge(-x.Used())
		}); err != nil {
			r.Fatal(err)
		}
		type step struct {
			name string
			in   any
		}
		key := rapid.SampledFrom([]string{"a", "b", "c", "dd"})
		text := rapid.StringMatching(`[a-zä ]{1,600}`)
		steps := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) step {
			switch rapid.IntRange(0, 6).Draw(r, "kind") {
			case 0, 1:
				return step{"mem_set", object{"key": key.Draw(r, "key"), "value": text.Draw(r, "value"), "ttl": rapid.IntRange(1, 30).Draw(r, "ttl")}}
			case 2:
				return step{"mem_incr", object{"key": "n" + key.Draw(r, "key"), "by": rapid.IntRange(-5, 5000).Draw(r, "by")}}
			case 3:
				return step{"mem_delete", object{"key": key.Draw(r, "key")}}
			case 4:
				return step{"mem_remember", object{"key": key.Draw(r, "key"), "content": text.Draw(r, "content"), "tags": []string{"x"}}}
			case 5:
				return step{"mem_forget", object{"key": key.Draw(r, "key")}}
			}
			return step{"wait", rapid.IntRange(1, 20).Draw(r, "seconds")}
		}), 1, 40).Draw(r, "steps")
		var wg sync.WaitGroup
		for w := range 3 {
			wg.Go(func() {
				for i := w; i < len(steps); i += 3 {
					if steps[i].name == "wait" {
						now.add(time.Duration(steps[i].in.(int)) * time.Second)
						continue
					}
					if out, reason := c.Try(steps[i].name, steps[i].in); reason != nil && reason.Code != deny.ToolQuota {
						r.Errorf("%v: %s, %v", steps[i], out, reason)
					}
				}
			})
		}
		wg.Wait()
		if u := usage(t, s); u[0] != u[1] || u[0] > quota {
			r.Fatalf("%d bytes are counted, %d are there, %d are allowed", u[0], u[1], quota)
		}
	})
}

func FuzzTerms(f *testing.F) {
	for _, s := range []string{"a b", `"x" OR y`, "NEAR(a b)", "a*", "^a", "-a", "é", "\x00", "col : x"} {
		f.Add(s)
	}
	c, _, _ := start(f, 0)
	c.Do("mem_remember", `{"key":"k","content":"a b c"}`)
	f.Fuzz(func(t *testing.T, text string) {
		in, err := json.Marshal(object{"query": text})
		if err != nil {
			return
		}
		c.T = t
		if out, reason := c.Try("mem_recall", string(in)); reason != nil && reason.Code != deny.ToolInvalid {
			t.Errorf("%q: %s, %v", text, out, reason)
		}
	})
}
