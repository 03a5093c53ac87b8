package system

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
	"bulkhead/internal/engine"
	"bulkhead/internal/evidence"
	"bulkhead/internal/layout"
	"bulkhead/test/system/stage"
)

// withTools gives both agents of a manifest every tool that needs no image.
func withTools(manifest string) string {
	return strings.Replace(manifest, "defaults:\n", "defaults:\n  tools: {ratePerMinute: 1000}\n", 1)
}

// callTool calls a tool in an agent's runtime.
func callTool(t *testing.T, c stage.CLI, agent, name, input string) stage.Result {
	t.Helper()
	return c.Try(t, "exec", agent, "--", "bulkhead", "tool", "call", name, input)
}

// TestToolsReachNothingOfAnotherAgent has one agent keep a word in everything that
// its gateway keeps, and the other look for it by the same names; then shows the
// other's token to its gateway, as its runtime and as the attacker's.
func TestToolsReachNothingOfAnotherAgent(t *testing.T) {
	eachEngine(t, func(t *testing.T, kind engine.Kind, c stage.CLI) {
		write(t, c.Dir, withTools(withEngine(kind)))
		c.Run(t, "up")
		c.Run(t, "exec", "reviewer", "--", "true") // starts it
		const word = "a-word-of-the-reviewer"
		for name, input := range map[string]string{
			"fs_write":        `{"path":"notes/kept.txt","text":"` + word + `"}`,
			"mem_set":         `{"key":"kept","value":"` + word + `"}`,
			"mem_remember":    `{"key":"kept","content":"` + word + `"}`,
			"vec_upsert":      `{"id":"kept","vector":[1,0],"metadata":{"word":"` + word + `"}}`,
			"events_publish":  `{"topic":"kept","message":"` + word + `"}`,
			"db_create_table": `{"table":"kept","schema":[{"column":"word","type":"text"}]}`,
		} {
			if r := callTool(t, c, "reviewer", name, input); r.Exit != 0 {
				t.Fatalf("%s: %s", name, r)
			}
		}
		if r := callTool(t, c, "reviewer", "db_insert", `{"table":"kept","data":{"word":"`+word+`"}}`); r.Exit != 0 {
			t.Fatal(r)
		}
		data := layout.Default().Agent("pair", "reviewer").Data()
		for _, look := range []struct{ name, input string }{
			{"fs_read", `{"path":"notes/kept.txt","as":"text"}`},
			{"mem_get", `{"key":"kept"}`},
			{"mem_recall", `{"query":"word reviewer"}`},
			{"vec_query", `{"vector":[1,0]}`},
			{"events_poll", `{"topic":"kept","subscription":"kept","after":0}`},
			{"db_query", `{"sql":"SELECT word FROM kept"}`},
			{"fs_read", `{"path":"../../../../../../../..` + data + `/fs/files/notes/kept.txt"}`},
			{"fs_read", `{"path":"` + data + `/fs/files/notes/kept.txt"}`},
			{"fs_list", `{"path":"/proc/self/fd"}`},
			{"db_query", `{"sql":"ATTACH DATABASE '` + data + `/agent.db' AS other"}`},
		} {
			own := !strings.Contains(look.input, "proc/self") && !strings.Contains(look.input, data)
			if r := callTool(t, c, "reviewer", look.name, look.input); own && !strings.Contains(r.Stdout, word) {
				t.Errorf("%s %s does not show what it should to its own agent: %s", look.name, look.input, r)
			}
			r := callTool(t, c, "writer", look.name, look.input)
			if strings.Contains(r.Stdout, word) || !own && r.Exit != 4 && r.Exit != 1 && r.Exit != 2 {
				t.Errorf("%s %s of the other's: %s", look.name, look.input, r)
			}
		}
		token := func(agent string) string {
			return strings.TrimSpace(c.Run(t, "exec", agent, "--", "cat", "/run/bulkhead-token"))
		}
		runtimeOf := func(agent string) uint32 { return stage.Container(t, c.Agent(t, agent), "runtime").HostID }
		for _, k := range []struct {
			name      string
			id        uint32
			at, token string
			want      string
		}{
			{"its own token at its own gateway", runtimeOf("reviewer"), "reviewer", "reviewer", "HTTP/1.1 200 OK"},
			{"another's token at its own gateway", runtimeOf("writer"), "writer", "reviewer", "HTTP/1.1 401 Unauthorized"},
			{"its own token at another's gateway", runtimeOf("writer"), "reviewer", "writer", "EACCES"},
			{"another's token at another's gateway", runtimeOf("writer"), "reviewer", "reviewer", "EACCES"},
			// As if it had the other's id as well: the token alone refuses.
			{"its own token at another's gateway as the other", runtimeOf("reviewer"), "reviewer", "writer", "HTTP/1.1 401 Unauthorized"},
		} {
			if got := askAs(t, layout.Default().Agent("pair", k.at).GatewaySocket(), k.id, token(k.token)); got != k.want {
				t.Errorf("%s: %s, want %s", k.name, got, k.want)
			}
		}
		r, report := verify(t, c, "--no-controls")
		if r.Exit != 0 {
			t.Errorf("verify ends with %d:\n%s", r.Exit, report.Text())
		}
		for _, id := range []string{"tool.files_of", "tool.sql_of", "tool.memory_of", "tool.events_of", "tool.path", "tool.plant", "tool.attach", "tool.resolve", "tool.smuggle", "proxy.redirect", "net.ping", "net.multicast"} {
			for _, agent := range []string{"writer", "reviewer"} {
				if id == "tool.smuggle" && agent == "reviewer" { // for which nothing is listed
					continue
				}
				i := slices.IndexFunc(report.Rows, func(x evidence.Row) bool {
					return x.Attack == id && x.Agent == agent && x.Position == evidence.FromRuntime
				})
				if i < 0 || report.Rows[i].Verdict != evidence.Denied {
					t.Errorf("%s from %s was not denied, or not made", id, agent)
				}
			}
		}
		if !isLeftOut(report, "tool.kill_of") || !isLeftOut(report, "tool.redirect") {
			t.Error("attacks on what this team has nothing of are not left out")
		}
		t.Logf("%.1f s of attacks", report.Seconds.Attacks)
		c.Run(t, "down", "--purge")
	})
}

// askAs asks a gateway for a value as an id, and gives the first line of what it
// answers, or the errno of connecting.
func askAs(t *testing.T, socket string, id uint32, token string) string {
	t.Helper()
	fd, err := connectAs(socket, id)
	if n, ok := err.(unix.Errno); ok { //nolint:errorlint // as it is given
		return unix.ErrnoName(n)
	}
	f := os.NewFile(uintptr(fd), "gateway")
	conn, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	const body = `{"key":"kept"}`
	if _, err := fmt.Fprintf(conn, "POST /v1/tools/mem_get HTTP/1.1\r\nHost: bulkhead.internal\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", token, len(body), body); err != nil {
		return err.Error()
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(line)
}

// TestARedirectOfAListedDestinationLeadsNowhereElse has a listed destination
// redirect to what is not: by the proxy the client follows, with tools the gateway.
func TestARedirectOfAListedDestinationLeadsNowhereElse(t *testing.T) {
	eachEngine(t, func(t *testing.T, kind engine.Kind, c stage.CLI) {
		write(t, c.Dir, withTools(strings.Replace(withEngine(kind), "egress: ['listed.example:8080']", "egress: ['listed.example:8080', 'listed.example:8081']", 1)))
		var reached atomic.Int64 // what no redirect may reach
		inner := serve(t, "127.0.0.1:0", func(w http.ResponseWriter, _ *http.Request) {
			reached.Add(1)
			_, _ = fmt.Fprintln(w, "what is inside")
		})
		unlisted := serve(t, "203.0.113.11:0", func(w http.ResponseWriter, _ *http.Request) {
			reached.Add(1)
			_, _ = fmt.Fprintln(w, "what is not listed")
		})
		_ = serve(t, "203.0.113.10:8081", func(w http.ResponseWriter, r *http.Request) {
			status, to, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
			code, err := strconv.Atoi(status)
			if err != nil {
				code = http.StatusBadRequest
			}
			w.Header().Set("Location", "http://"+to)
			w.WriteHeader(code)
		})
		c.Run(t, "up")
		const good = "http://listed.example:8081/302/listed.example:8080/"
		if r := callTool(t, c, "writer", "net_http_get", `{"url":"`+good+`"}`); r.Exit != 0 || !strings.Contains(r.Stdout, "hello from outside") {
			t.Fatalf("a redirect to a listed destination: %s", r)
		}
		before := denials(t, c)
		for _, to := range []string{
			unlisted + "/", inner + "/", "localhost:" + inner[strings.LastIndexByte(inner, ':')+1:] + "/", "169.254.169.254/latest/meta-data/", "[::1]/",
			"203.0.113.10:8082/", "evil.example/", "reviewer:8080/", "bulkhead.internal/v1/tools",
		} {
			for _, status := range []int{301, 302, 303, 307, 308} {
				url := fmt.Sprintf("http://listed.example:8081/%d/%s", status, to)
				for _, method := range []string{"get", "post"} {
					r := callTool(t, c, "writer", "net_http_"+method, `{"url":"`+url+`"}`)
					if r.Exit == 0 || strings.Contains(r.Stdout, "what is") || !strings.Contains(r.Stdout+r.Stderr, "egress.") && !strings.Contains(r.Stdout+r.Stderr, string(deny.ToolUnsafe)) {
						t.Errorf("net_http_%s of %s: %s", method, url, r)
					}
				}
				if status != 302 {
					continue
				}
				if to == "bulkhead.internal/v1/tools" {
					continue // the proxy's own name, which wants a token
				}
				if out := c.Run(t, "exec", "writer", "--", "sh", "-c", "wget -q -O - "+url+" 2>&1 || true"); strings.Contains(out, "what is") || strings.Contains(out, "hello") {
					t.Errorf("%s by the proxy: %q", url, out)
				}
			}
		}
		if n := reached.Load(); n != 0 {
			t.Errorf("%d redirects reached what is not listed", n)
		}
		if denials(t, c) <= before {
			t.Error("no refusal is on record")
		}
		c.Run(t, "down", "--purge")
	})
}

// denials counts the refusals of egress that are on record of the writer.
func denials(t *testing.T, c stage.CLI) int {
	t.Helper()
	return strings.Count(c.Run(t, "denials", "writer"), "egress.")
}

// serve answers HTTP at an address of the throwaway host, and gives where.
func serve(t *testing.T, address string, f http.HandlerFunc) string {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: f, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), <-done); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return l.Addr().String()
}
