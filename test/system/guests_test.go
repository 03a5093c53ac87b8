package system

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// withGuests is a team of one agent whose manifest lets guests be made.
const withGuests = `apiVersion: bulkhead/v1
team: pair
audit: true
front:
  listen: 127.0.0.1:8484
  guests:
    adminTokenFile: /srv/admin.token
    max: 20
    awake: 4
    idle: 5s
    egress: ['203.0.113.10:8080']
    tools: {allow: [mem, fs, db, net], ratePerMinute: 100, memory: 1Mi, storage: 2Mi}
agents:
  writer: {rootfs: /srv/rootfs, mode: session, limits: {memory: 96Mi, pids: 64, disk: 32Mi}}
`

// guestMade is the answer of POST /admin/agents.
type guestMade struct {
	Name, Token, Mend string
	Created           bool
	ExpiresIn         int64
}

// admin asks /admin/agents.
func admin(t *testing.T, token, method, path, body string, header ...string) (int, http.Header, string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), method, frontURL+"/admin/agents"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		q.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	client := http.Client{Timeout: 2 * time.Minute}
	r, err := client.Do(q)
	if err != nil {
		t.Error(err)
		return 0, nil, err.Error()
	}
	defer func() { _ = r.Body.Close() }()
	raw, _ := io.ReadAll(r.Body)
	return r.StatusCode, r.Header, string(raw)
}

// wakes calls a tool of a guest, which may have to wake first.
func wakes(t *testing.T, tool, input, token string) (int, string) {
	t.Helper()
	return callsWithin(t, 2*time.Minute, tool, input, token)
}

// TestGuestsAreMadeThroughFront makes as many agents without a runtime as the
// manifest allows, over the endpoint, and has each of them called, with fewer
// awake at a time than there are.
func TestGuestsAreMadeThroughFront(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		before := stage.Picture(t)
		write(t, c.Dir, withGuests)

		// Without a token of enough bits nothing starts; nobody's but root's counts.
		for name, script := range map[string]string{
			"none": "rm -f /srv/admin.token", "weak": "umask 077; printf %0128d 0 > /srv/admin.token",
			"short": "umask 077; head -c 63 /dev/urandom | base64 -w0 > /srv/admin.token", "readable": "head -c 64 /dev/urandom | base64 -w0 > /srv/admin.token; chmod 644 /srv/admin.token",
		} {
			stage.Sh(t, script)
			if r := c.Try(t, "up"); r.Exit != wire.ExitBadInput || !strings.Contains(r.Stderr, "front.guests.adminTokenFile") {
				t.Errorf("admin token %s: %s", name, r)
			}
		}
		stage.Sh(t, "rm -f /srv/admin.token; umask 077; head -c 64 /dev/urandom | base64 -w0 > /srv/admin.token")
		raw, err := os.ReadFile("/srv/admin.token")
		if err != nil {
			t.Fatal(err)
		}
		token := string(raw)
		c.Run(t, "up")

		for name, bad := range map[string]string{"none": "", "a wrong one": token[:80] + "AAAAAAAA"} {
			if status, _, body := admin(t, bad, "POST", "", `{"name":"app"}`); status != 401 || !strings.Contains(body, "identity.bad_token") {
				t.Errorf("admin token %s: %d %s", name, status, body)
			}
		}
		status, _, body := admin(t, token, "POST", "", `{"name":"app","egress":["evil.example:443"],"tools":{"memory":"2Mi"}}`)
		if status != 400 || !strings.Contains(body, "evil.example:443") || !strings.Contains(body, "tools.memory") {
			t.Errorf("above the ceiling: %d %s", status, body)
		}
		if status, _, body := admin(t, token, "POST", "", `{"name":"writer"}`); status != 409 {
			t.Errorf("an agent of the manifest: %d %s", status, body)
		}

		// All of them, side by side; the last one may speak to somebody.
		const n = 20
		request := func(i int) string {
			if i == n-1 {
				return fmt.Sprintf(`{"name":"app%d","egress":["203.0.113.10:8080"],"expiresIn":3600}`, i)
			}
			return fmt.Sprintf(`{"name":"app%d","tools":{"allow":["mem","fs"]}}`, i)
		}
		apps := make([]guestMade, n)
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				status, _, body := admin(t, token, "POST", "", request(i), "Idempotency-Key", fmt.Sprint("key", i))
				if err := json.Unmarshal([]byte(body), &apps[i]); err != nil || status != 201 || !apps[i].Created || apps[i].Token == "" {
					t.Errorf("app%d: %d %s", i, status, body)
				}
			})
		}
		all.Wait()
		if t.Failed() {
			t.Fatal(stage.Sh(t, "cat /var/lib/bulkhead/log/warden.log"))
		}
		if apps[n-1].ExpiresIn < 3500 || apps[n-1].ExpiresIn > 3600 {
			t.Errorf("expires in %d", apps[n-1].ExpiresIn)
		}
		var again guestMade
		if status, _, body := admin(t, token, "POST", "", request(0), "Idempotency-Key", "key0"); status != 200 || json.Unmarshal([]byte(body), &again) != nil || again.Token != "" || again.Created || again.Mend == "" {
			t.Errorf("asked again: %d %s", status, body)
		}
		for name, c := range map[string]struct {
			body, key string
			status    int
		}{
			"another request of that name": {`{"name":"app0","tools":{"allow":["mem"]}}`, "", 409},
			"one too many":                 {`{"name":"more"}`, "key0", 429},
		} {
			if status, _, body := admin(t, token, "POST", "", c.body, "Idempotency-Key", c.key); status != c.status {
				t.Errorf("%s: %d %s", name, status, body)
			}
		}
		if g := c.Status(t).Teams[0].Guests; g == nil || g.Made != n || g.Max != n {
			t.Errorf("%+v", g)
		}
		if out := stage.Sh(t, "grep -c bh-pair-app /etc/passwd || true"); strings.TrimSpace(out) != "0" {
			t.Errorf("%s accounts were made for guests", out)
		}

		// One call to each and one more, never more awake than may be.
		for round, tool := range []string{"mem_set", "mem_get"} {
			for i := range n {
				all.Go(func() {
					in := `{"key":"mine"}`
					if tool == "mem_set" {
						in = fmt.Sprintf(`{"key":"mine","value":"of app%d"}`, i)
					}
					if status, body := wakes(t, tool, in, apps[i].Token); status != 200 || round == 1 && !strings.Contains(body, fmt.Sprintf(`"of app%d"`, i)) {
						t.Errorf("%s of app%d: %d %s", tool, i, status, body)
					}
				})
			}
			done := make(chan struct{})
			go func() { all.Wait(); close(done) }()
			for looking := true; looking; {
				select {
				case <-done:
					looking = false
				default:
					gateways := strings.TrimSpace(stage.Sh(t, "pgrep -fc '[b]ulkhead-serve gateway' || true"))
					if g := c.Status(t).Teams[0].Guests; g.Running > 4 || len(gateways) > 1 {
						t.Errorf("%d guests are awake, %s gateways run", g.Running, gateways)
					}
				}
			}
		}
		if t.Failed() {
			t.Fatal(stage.Sh(t, "cat /var/lib/bulkhead/log/warden.log"))
		}

		// Between two of them are the walls that are between any two agents.
		a, b := layout.Default().Agent("pair", "app0"), layout.Default().Agent("pair", "app1")
		touch := func(i int) {
			if status, body := wakes(t, "mem_get", `{"key":"mine"}`, apps[i].Token); status != 200 {
				t.Errorf("app%d: %d %s", i, status, body)
			}
		}
		touch(0)
		touch(1)
		id := strings.TrimSpace(stage.Sh(t, "stat -c %u "+a.Data()))
		if other := strings.TrimSpace(stage.Sh(t, "stat -c %u "+b.Data())); id == other || id == "0" {
			t.Errorf("the data belong to %s and %s", id, other)
		}
		for what, script := range map[string]string{
			"its own data": "ls " + a.Data() + " >/dev/null && echo may", "the other's": "ls " + b.Data() + " 2>/dev/null || echo may not",
			"the other's socket at front": "test -w " + b.ServiceSocket(layout.FrontName) + " && echo may || echo may not",
			"the world":                   "wget -q -T 2 -O - http://203.0.113.10:8080/ >/dev/null 2>&1 && echo may || echo may not",
		} {
			want := "may not"
			if what == "its own data" {
				want = "may"
			}
			if out := stage.Sh(t, fmt.Sprintf("setpriv --reuid %s --regid %s --clear-groups sh -c '%s'", id, id, script)); strings.TrimSpace(out) != want {
				t.Errorf("app0's gateway and %s: %s", what, out)
			}
		}
		ns := stage.Sh(t, "for p in $(pgrep -f '[b]ulkhead-serve gateway'); do readlink /proc/$p/ns/net /proc/$p/ns/pid /proc/$p/ns/mnt /proc/$p/ns/user; done | sort | uniq -d")
		if strings.TrimSpace(ns) != "" {
			t.Errorf("gateways share namespaces: %s", ns)
		}
		if status, body := wakes(t, "net_http_get", `{"url":"http://203.0.113.10:8080/"}`, apps[n-1].Token); status != 200 || !strings.Contains(body, "hello from outside") {
			t.Errorf("the one with egress: %d %s", status, body)
		}
		if status, body := wakes(t, "net_http_get", `{"url":"http://203.0.113.11:8080/"}`, apps[n-1].Token); status != 403 {
			t.Errorf("what is not listed: %d %s", status, body)
		}
		if status, body := wakes(t, "db_query", `{"sql":"SELECT 1"}`, apps[0].Token); status != 403 {
			t.Errorf("a tool that was not asked for: %d %s", status, body)
		}

		// The warden's end ends none of them, and what was made stays made.
		touch(0)
		gateway := func() string {
			return strings.TrimSpace(stage.Sh(t, "cat /sys/fs/cgroup/*/pair/app0/gateway/cgroup.procs /sys/fs/cgroup/pair/app0/gateway/cgroup.procs 2>/dev/null | sort | head -1 || true"))
		}
		was := gateway()
		kill9(t, wardens(t)...)
		c.Run(t, "up")
		touch(0)
		if is := gateway(); is != was {
			t.Errorf("app0's gateway was process %q, and is %q", was, is)
		}
		touch(7)
		stage.Until(t, "who is not called sleeps", func() bool { return c.Status(t).Teams[0].Guests.Running == 0 })
		if out := stage.Sh(t, "grep -c '/agents/app' /proc/self/mountinfo || true"); strings.TrimSpace(out) != "0" {
			t.Errorf("%s disks of guests that sleep are mounted", out)
		}

		// Fenced, none wakes.
		c.Run(t, "panic")
		if status, body := wakes(t, "mem_get", `{"key":"mine"}`, apps[3].Token); status != 503 || !strings.Contains(body, "fenced") {
			t.Errorf("fenced: %d %s", status, body)
		}
		c.Run(t, "release", "writer", "--guests")
		touch(3)

		// A new token ends the old one; a removed guest is gone with its data.
		if status, _, body := admin(t, token, "POST", "", `{"name":"app2","tools":{"allow":["mem","fs"]},"newToken":true}`); status != 200 || json.Unmarshal([]byte(body), &again) != nil || again.Token == "" {
			t.Errorf("a new token: %d %s", status, body)
		}
		if status, _ := wakes(t, "mem_get", `{"key":"mine"}`, apps[2].Token); status != 401 {
			t.Errorf("the token before: %d", status)
		}
		if status, body := wakes(t, "mem_get", `{"key":"mine"}`, again.Token); status != 200 || !strings.Contains(body, "of app2") {
			t.Errorf("the new one: %d %s", status, body)
		}
		for i, want := range []int{200, 404} {
			if status, _, body := admin(t, token, "DELETE", "/app2", ""); status != want {
				t.Errorf("removed %d times: %d %s", i+1, status, body)
			}
		}
		if status, _ := wakes(t, "mem_get", `{"key":"mine"}`, again.Token); status != 401 {
			t.Errorf("the token of one that is gone: %d", status)
		}
		if _, err := os.Lstat(filepath.Dir(layout.Default().Agent("pair", "app2").GuestFile())); !os.IsNotExist(err) {
			t.Errorf("its data: %v", err)
		}
		if status, _, body := admin(t, token, "GET", "", ""); status != 200 || strings.Count(body, `"state"`) != n-1 {
			t.Errorf("%d %s", status, body)
		}

		// They are there again after a down that keeps data.
		touch(5)
		c.Run(t, "down")
		if out := stage.Sh(t, "grep -c '/agents/app' /proc/self/mountinfo || true; pgrep -fa '[b]ulkhead-serve' || true"); strings.TrimSpace(out) != "0" {
			t.Errorf("after down: %s", out)
		}
		c.Run(t, "up")
		if g := c.Status(t).Teams[0].Guests; g == nil || g.Made != n-1 {
			t.Errorf("%+v", g)
		}
		if status, body := wakes(t, "mem_get", `{"key":"mine"}`, apps[5].Token); status != 200 || !strings.Contains(body, "of app5") {
			t.Errorf("after down and up: %d %s", status, body)
		}

		// Who guesses is locked out, the right token with it.
		for range 5 {
			admin(t, "x"+token, "GET", "", "")
		}
		if status, h, body := admin(t, token, "GET", "", ""); status != 429 || h.Get("Retry-After") == "" || !strings.Contains(body, "identity.locked") {
			t.Errorf("after five wrong tokens: %d %v %s", status, h, body)
		}
		touch(6) // agents' own tokens are no part of that

		// Without a ceiling there is no endpoint, and nobody wakes.
		write(t, c.Dir, withGuests[:strings.Index(withGuests, "  guests:")]+withGuests[strings.Index(withGuests, "agents:"):])
		c.Run(t, "up")
		if status, _, body := admin(t, token, "POST", "", `{"name":"more"}`); status != 403 || !strings.Contains(body, "front.guests") {
			t.Errorf("without a ceiling: %d %s", status, body)
		}
		if status, _ := wakes(t, "mem_get", `{"key":"mine"}`, apps[6].Token); status != 503 {
			t.Errorf("without a ceiling a guest answers: %d", status)
		}
		// What an agent of the manifest left behind is no guest's.
		write(t, c.Dir, strings.Replace(withGuests, "  writer:", "  other:", 1))
		c.Run(t, "up")
		if status, _, body := admin(t, token, "POST", "", `{"name":"writer"}`); status != 409 || !strings.Contains(body, "kept") {
			t.Errorf("a guest with the data of a former agent: %d %s", status, body)
		}
		touch(6) // and with a ceiling again they wake
		c.Run(t, "down", "--purge")
		stage.Leaves(t, before)
		if out := stage.Sh(t, "ls /var/lib/bulkhead/teams 2>/dev/null || true; grep -h id-range /var/lib/bulkhead/ledger.jsonl | grep -c '\"make\"' || true"); strings.Contains(out, "pair") {
			t.Errorf("left behind: %s", out)
		}
	})
}
