package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// guestsManifest lets so many guests be made, so many awake at a time. Their
// disks are as small as the manifest lets them be: 23 MiB each.
const guestsManifest = `apiVersion: bulkhead/v1
team: bench
front:
  listen: 127.0.0.1:8484
  guests: {adminTokenFile: /srv/admin.token, max: %d, awake: %d, idle: 24h, tools: {allow: [mem], memory: 1Mi, storage: 1Mi}}
agents:
  one: {rootfs: /srv/rootfs, mode: session, limits: {disk: 16Mi, inodes: 512, memory: 64Mi, pids: 64}}
`

// A thousand agents without a runtime: made over HTTP, eight requests at a
// time, and called once each in turn, by as many callers, with 32 awake at a
// time; then half of the 32 that are awake again. BULKHEAD_BENCH_GUESTS says how
// many, 1000 by default; they take 23 MiB of disk each.
func TestGuests(t *testing.T) {
	wanted(t)
	n, awake := 1000, 32
	if text := os.Getenv("BULKHEAD_BENCH_GUESTS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		stage.Sh(t, "umask 077; head -c 64 /dev/urandom | base64 -w0 > /srv/admin.token")
		raw, err := os.ReadFile("/srv/admin.token")
		if err != nil {
			t.Fatal(err)
		}
		c := newTeam(t, bin, fmt.Sprintf(guestsManifest, n, awake))
		patientUp(t, c)
		memory(t, 1)
		client := &http.Client{Timeout: 10 * time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
		ask := func(path, token, body string) (int, string) {
			q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:8484"+path, strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return 0, ""
			}
			q.Header.Set("Authorization", "Bearer "+token)
			r, err := client.Do(q)
			if err != nil {
				t.Error(err)
				return 0, ""
			}
			defer func() { _ = r.Body.Close() }()
			text, _ := io.ReadAll(r.Body)
			return r.StatusCode, string(text)
		}
		tokens := make([]string, n)
		// each does something with every guest, eight at a time, and says how long
		// one took.
		each := func(what string, of []int, do func(i int) bool) {
			var all sync.WaitGroup
			took := make([]time.Duration, len(of))
			next := make(chan int)
			at := time.Now()
			for range 8 {
				all.Go(func() {
					for k := range next {
						begin := time.Now()
						if !do(of[k]) {
							t.Errorf("%s of guest %d failed", what, of[k])
						}
						took[k] = time.Since(begin)
					}
				})
			}
			for k := range of {
				next <- k
			}
			close(next)
			all.Wait()
			whole := time.Since(at)
			t.Logf("%s: %d in %v, %v each", what, len(of), whole.Round(time.Millisecond), (whole / time.Duration(len(of))).Round(100*time.Microsecond))
			quantiles(t, what+", one of eight at a time", took)
		}
		var whole []int
		for i := range n {
			whole = append(whole, i)
		}
		each("make", whole, func(i int) bool {
			status, body := ask("/admin/agents", string(raw), fmt.Sprintf(`{"name":"g%d"}`, i))
			var made struct{ Token string }
			if status != http.StatusCreated || json.Unmarshal([]byte(body), &made) != nil {
				t.Logf("%d %s", status, body)
				return false
			}
			tokens[i] = made.Token
			return true
		})
		memory(t, n)
		call := func(i int) bool {
			status, body := ask("/v1/tools/mem_set", tokens[i], fmt.Sprintf(`{"key":"k","value":%d}`, i))
			if status != http.StatusOK {
				t.Logf("guest %d: %d %s", i, status, body)
			}
			return status == http.StatusOK
		}
		each("first call, which wakes", whole, call)
		g := c.Status(t).Teams[0].Guests
		t.Logf("%d of %d awake, with %.1f MB of cgroup memory", g.Running, g.Made, float64(g.MemoryBytes)/1e6)
		if g.Running > awake {
			t.Errorf("%d are awake", g.Running)
		}
		memory(t, g.Running)
		var again []int
		for _, name := range g.Awake {
			i, err := strconv.Atoi(strings.TrimPrefix(name, "g"))
			if err != nil {
				t.Fatal(err)
			}
			again = append(again, i)
		}
		each("call of one that is awake", again, call)
		at := time.Now()
		c.Run(t, "down", "--purge")
		t.Logf("down --purge: %v", time.Since(at).Round(time.Millisecond))
	})
}
