package system

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	control "bulkhead/internal/control/protocol"
	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

const frontURL = "http://127.0.0.1:8484"

// asks gives the status of a request to front, and its body.
func asks(t *testing.T, path, token string) (int, string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, frontURL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		q.Header.Set("Authorization", "Bearer "+token)
	}
	client := http.Client{Timeout: 20 * time.Second}
	r, err := client.Do(q)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = r.Body.Close() }()
	body, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(body)
}

// calls calls a tool through front.
func calls(t *testing.T, tool, input, token string) (int, string) {
	t.Helper()
	return callsWithin(t, 20*time.Second, tool, input, token)
}

// callsWithin is calls for goroutines of a test as well.
func callsWithin(t *testing.T, patience time.Duration, tool, input, token string) (int, string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, frontURL+"/v1/tools/"+tool, strings.NewReader(input))
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	q.Header.Set("Authorization", "Bearer "+token)
	q.Header.Set("Content-Type", "application/json")
	client := http.Client{Timeout: patience}
	r, err := client.Do(q)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer func() { _ = r.Body.Close() }()
	body, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(body)
}

// A token of control lets a program of the host in to one agent's gateway,
// until it is revoked; the servers behind it survive kills and leave nothing.
func TestTokensLetInThroughFront(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		before := stage.Picture(t)
		write(t, c.Dir, strings.Replace(strings.Replace(talk, "  lead:\n", "  lead:\n    tools: {allow: [mem]}\n", 1), "defaults:\n", "front: {listen: \"127.0.0.1:8484\"}\naudit: true\ndefaults:\n", 1))
		c.Run(t, "up")
		for _, s := range c.Status(t).Services {
			if s.State != "running" {
				t.Errorf("%s is %s: %s", s.Agent, s.State, s.Why)
			}
		}
		if n := len(c.Status(t).Services); n != 3 {
			t.Errorf("%d servers", n)
		}
		var lead, worker control.Issued
		if err := json.Unmarshal([]byte(c.Run(t, "token", "issue", "lead", "--json")), &lead); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(c.Dir, "worker.token")
		if err := json.Unmarshal([]byte(c.Run(t, "token", "issue", "worker", "--alg", "HS256", "--out", file, "--json")), &worker); err != nil || worker.Token != "" {
			t.Fatalf("%+v, %v", worker, err)
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", st, err)
		}
		worker.Token = strings.TrimSpace(string(raw))
		took := func(token string) bool {
			status, body := asks(t, "/v1/tools", token)
			if status != 200 && status != 401 && status != 503 {
				t.Errorf("front answers %d %s", status, body)
			}
			return status == 200
		}
		stage.Until(t, "the lead's token is taken", func() bool { return took(lead.Token) })
		stage.Until(t, "the worker's is taken, for which front vouches", func() bool { return took(worker.Token) })
		for name, token := range map[string]string{
			"none": "", "not one": "x.y.z", "a changed one": lead.Token[:len(lead.Token)-20] + strings.Repeat("A", 20), "the other's signature": lead.Token[:strings.LastIndexByte(lead.Token, '.')] + worker.Token[strings.LastIndexByte(worker.Token, '.'):],
		} {
			if status, body := asks(t, "/v1/tools", token); status != 401 || !strings.Contains(body, "identity.bad_token") {
				t.Errorf("token %s: %d %s", name, status, body)
			}
		}
		// Inside, HS256 counts for nothing: whoever checks it could make it.
		inside := func(token string) string {
			return c.Run(t, "exec", "worker", "--", "sh", "-c", "wget -q -O - --header 'Authorization: Bearer "+token+"' http://bulkhead.internal/v1/tools 2>&1 || true")
		}
		if out := inside(worker.Token); !strings.Contains(out, "401") {
			t.Errorf("the gateway takes HS256 from inside: %s", out)
		}
		if out := inside(lead.Token); !strings.Contains(out, "401") {
			t.Errorf("the worker's gateway takes the lead's token: %s", out)
		}

		// Nobody but that gateway reaches its sockets, and front's id opens nothing.
		team := layout.Default().Agent("talk", "lead")
		if out := stage.Sh(t, fmt.Sprintf("setpriv --reuid %d --regid %d --clear-groups test -w %s && echo may || echo may not", stage.Container(t, c.Agent(t, "lead"), "gateway").HostID, stage.Container(t, c.Agent(t, "lead"), "gateway").HostID, team.ServiceSocket(layout.FrontName))); strings.TrimSpace(out) != "may" {
			t.Error("the lead's own gateway may not connect")
		}
		w := c.Agent(t, "worker")
		ids := []uint32{stage.Container(t, w, "gateway").HostID, stage.Container(t, w, "runtime").HostID}
		for _, s := range c.Status(t).Services {
			ids = append(ids, s.Containers[0].HostID)
		}
		for _, name := range []string{layout.FrontName, layout.AuditName} {
			for _, id := range ids {
				// Connecting to a unix socket needs the right to write (unix(7)).
				if out := stage.Sh(t, fmt.Sprintf("setpriv --reuid %d --regid %d --clear-groups test -w %s && echo may || echo may not", id, id, team.ServiceSocket(name))); strings.TrimSpace(out) != "may not" {
					t.Errorf("id %d may connect to %s", id, name)
				}
			}
		}
		for _, id := range ids[2:] {
			if out := stage.Sh(t, fmt.Sprintf("setpriv --reuid %d --regid %d --clear-groups wget -q -T 2 -O - http://203.0.113.10:8080/ 2>&1 || echo refused", id, id)); !strings.Contains(out, "refused") {
				t.Errorf("a server's id reaches the world: %q", out)
			}
		}

		// Each may be killed; tokens and revocations stand.
		for _, s := range c.Status(t).Services {
			kill9(t, s.Containers[0].PID)
		}
		stage.Until(t, "the servers are back", func() bool {
			for _, s := range c.Status(t).Services {
				if s.State != "running" {
					return false
				}
			}
			return true
		})
		stage.Until(t, "the lead's token is taken again", func() bool { return took(lead.Token) })
		if status, body := calls(t, "mem_set", `{"key":"a","value":"b"}`, lead.Token); status != 200 || !strings.Contains(body, `"key":"a"`) {
			t.Errorf("mem_set: %d %s", status, body)
		}
		c.Run(t, "token", "revoke", lead.ID)
		if took(lead.Token) {
			t.Error("a revoked token is taken")
		}
		if !took(worker.Token) {
			t.Error("another token ended with it")
		}
		if out := c.Run(t, "token", "list"); strings.Contains(out, lead.ID) || !strings.Contains(out, worker.ID) {
			t.Errorf("token list: %s", out)
		}
		c.Run(t, "token", "rotate-keys", "--overlap", "0s")
		if took(worker.Token) {
			t.Error("a token outlives its key")
		}
		stage.Until(t, "what the lead's tools did is in the audit log", func() bool {
			return strings.Contains(c.Run(t, "audit", "tail", "lead"), " allowed tool mem_set ")
		})
		c.Run(t, "audit", "verify")
		if out := stage.Sh(t, "grep -rl '"+worker.Token[len(worker.Token)-24:]+"' /var/lib/bulkhead /run/bulkhead 2>/dev/null || true"); out != "" {
			t.Errorf("the token lies in %s", out)
		}

		var again control.Issued
		if err := json.Unmarshal([]byte(c.Run(t, "token", "issue", "lead", "--json")), &again); err != nil {
			t.Fatal(err)
		}
		speaksTLS(t, c, readManifest(t, c), again.Token)

		// Without front and audit nothing of them is left but their data; a purge
		// takes those.
		write(t, c.Dir, talk)
		c.Run(t, "up")
		if n := len(c.Status(t).Services); n != 1 {
			t.Errorf("%d servers, want control alone", n)
		}
		if status, _ := asks(t, "/health", ""); status != 0 {
			t.Errorf("something answers at front's address: %d", status)
		}
		if r := c.Try(t, "audit", "verify"); r.Exit != wire.ExitBadInput {
			t.Errorf("audit without one: %s", r)
		}
		c.Run(t, "down", "--purge")
		stage.Leaves(t, before)
	})
}
