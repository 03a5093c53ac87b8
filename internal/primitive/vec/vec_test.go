package vec

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/store"
	"bulkhead/internal/tool/tooltest"
)

type object = map[string]any

func start(t testing.TB, quota int64) (tooltest.Caller, *store.Store) {
	t.Helper()
	s := tooltest.Store(t, func(cfg *store.Config) { cfg.Quota = quota })
	v, err := Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return tooltest.New(t, s, v.Tools()...), s
}

func used(t testing.TB, s *store.Store) (n int64) {
	t.Helper()
	if err := s.View(t.Context(), func(x *store.Tx) error { n = x.Used(); return nil }); err != nil {
		t.Fatal(err)
	}
	return n
}

func ids(t testing.TB, answer string) (out []string) {
	t.Helper()
	var a struct{ Matches []Match }
	if err := json.Unmarshal([]byte(answer), &a); err != nil {
		t.Fatal(err)
	}
	for _, m := range a.Matches {
		out = append(out, m.ID)
	}
	return out
}

func TestTheNearestAreThoseOfAPlainSearch(t *testing.T) {
	c, _ := start(t, 0)
	const n, dim = 300, 24
	rnd := rand.New(rand.NewPCG(1, 2)) // #nosec G404 -- the same vectors each time
	vector := func() []float64 {
		v := make([]float64, dim)
		for i := range v {
			v[i] = rnd.NormFloat64()
		}
		return v
	}
	all := make([][]float64, n)
	for i := range all {
		all[i] = vector()
		c.Do("vec_upsert", object{"id": fmt.Sprint(i), "vector": all[i], "metadata": object{"n": i}})
	}
	for range 5 {
		q := vector()
		order := make([]int, n)
		for i := range order {
			order[i] = i
		}
		cosine := func(a []float64) float64 {
			var dot, x, y float64
			for i := range a {
				dot, x, y = dot+a[i]*q[i], x+a[i]*a[i], y+q[i]*q[i]
			}
			return 1 - dot/math.Sqrt(x*y)
		}
		slices.SortFunc(order, func(a, b int) int { return map[bool]int{true: -1, false: 1}[cosine(all[a]) < cosine(all[b])] })
		var want []string
		for _, i := range order[:7] {
			want = append(want, fmt.Sprint(i))
		}
		if got := ids(t, c.Do("vec_query", object{"embedding": q, "topK": 7})); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
}

func TestVectorsHaveOneLengthUntilThereAreNone(t *testing.T) {
	c, s := start(t, 0)
	c.Do("vec_upsert", `{"id":"a","vector":[1,2,3]}`)
	if got := c.Do("vec_upsert", `{"id":"a","vector":[3,2,1],"metadata":{"x":1}}`); got != `{"dimensions":3,"id":"a","replaced":true}` {
		t.Error(got)
	}
	c.Do("vec_upsert", `{"id":"b","vector":[1,2,3]}`)
	c.Denied(deny.ToolInvalid, "vec_upsert", `{"id":"c","vector":[1,2]}`)
	c.Denied(deny.ToolInvalid, "vec_query", `{"vector":[1,2,3,4]}`)
	c.Denied(deny.ToolInvalid, "vec_upsert", `{"id":"c","vector":[0,0,0]}`)
	c.Denied(deny.ToolInvalid, "vec_upsert", `{"id":"c","vector":[1e300,0,0]}`)
	c.Denied(deny.ToolInvalid, "vec_upsert", `{"id":"c","vector":["1",0,0]}`)
	c.Denied(deny.ToolInvalid, "vec_upsert", `{"id":"c","vector":[]}`)
	c.Denied(deny.ToolInvalid, "vec_upsert", `{"id":"c","vector":[`+strings.Repeat("1,", 4096)+`1]}`)
	if got := ids(t, c.Do("vec_query", `{"vector":[3,2,1],"metric":"l2","limit":1}`)); !slices.Equal(got, []string{"a"}) {
		t.Error(got)
	}
	c.Do("vec_delete", `{"id":"a"}`)
	c.Do("vec_delete", `{"id":"b"}`)
	if got := c.Do("vec_delete", `{"id":"b"}`); got != `{"deleted":false,"id":"b"}` {
		t.Error(got)
	}
	if n := used(t, s); n != 0 {
		t.Errorf("%d bytes are still counted", n)
	}
	c.Do("vec_upsert", `{"id":"c","vector":[1,2]}`)
}

func TestVectorsCountExactly(t *testing.T) {
	one := int64(1 + 12 + 2 + rowCost)
	c, s := start(t, 5*one)
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			if _, reason := c.Try("vec_upsert", object{"id": fmt.Sprint(i), "vector": []int{1, 2, 3}}); reason != nil && reason.Code != deny.ToolQuota {
				t.Error(reason)
			}
		})
	}
	wg.Wait()
	if n := used(t, s); n != 5*one {
		t.Errorf("%d bytes are counted, want exactly %d", n, 5*one)
	}
	if got := ids(t, c.Do("vec_query", `{"vector":[1,2,3],"limit":100}`)); len(got) != 5 {
		t.Errorf("%d vectors are there", len(got))
	}
}

func FuzzEncode(f *testing.F) {
	f.Add("[1,2,3]")
	f.Add("[1e39]")
	f.Fuzz(func(t *testing.T, text string) {
		var list []any
		if json.Unmarshal([]byte(text), &list) != nil {
			return
		}
		out, err := encode(list)
		if err == nil && len(out) != 4*len(list) {
			t.Errorf("%s: %d bytes", text, len(out))
		}
	})
}
