package agents

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/engine"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// real are the agents. own are destinations that each asks for by itself in a
// turn, for telemetry, updates or models, without anybody having listed them.
// OpenClaw and pi ask for nothing in a turn, and are expected not to:
// OpenClaw's gateway and pi's update do ([asksForMore]).
var real = []struct {
	name  string // of the example and the image
	agent string
	path  string // of the model's API
	tool  string
	own   []string
}{
	{"claude-code", "coder", "/v1/messages", "Bash", []string{"api.anthropic.com:443"}},
	{"codex", "coder", "/v1/responses", "exec_command", []string{"chatgpt.com:443", "github.com:443"}},
	{"openclaw", "worker", "/v1/chat/completions", "exec", nil},
	{"pi", "coder", "/v1/chat/completions", "bash", nil},
}

func TestRealAgentsTakeATurnBehindTheWalls(t *testing.T) {
	for _, a := range real {
		t.Run(a.name, func(t *testing.T) {
			bin, option := prepare(t, a.name)
			throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
				importImages(t, bin, a.name)
				model := serveModel(t, bin)
				for _, kind := range []engine.Kind{engine.Cell, engine.Podman} {
					t.Run(string(kind), func(t *testing.T) {
						needEngine(t, kind)
						c := example(t, bin, a.name, kind)
						c.Run(t, "up")
						defer c.Run(t, "down", "--purge")
						model()
						out := execIn(t, c, a.agent, "sh", "/workspace/turn.sh")
						if !strings.Contains(out, "uid=1000(agent)") || !strings.Contains(out, "shell tool works") || !strings.Contains(out, "FINAL: ") {
							t.Errorf("its shell tool did not run, or it did not finish:\n%s", out)
						}
						asked(t, model(), a.path, a.tool, out)
						if t.Failed() {
							t.Logf("gateway: %s\ndialer: %s\ndenials: %s", c.Run(t, "logs", a.agent, "--container", "gateway"), c.Run(t, "logs", a.agent, "--container", "dialer"), c.Run(t, "denials", a.agent))
							raw, _ := os.ReadFile("/var/lib/bulkhead/log/warden.log")
							t.Logf("warden: %s", raw)
						}
						targets := refused(t, c, a.agent)
						for _, want := range append([]string{"exfiltrate.example:443"}, a.own...) {
							if !slices.Contains(targets, want) {
								t.Errorf("%s is not among the denials: %v", want, targets)
							}
						}
						if len(a.own) == 0 && len(targets) != 1 {
							t.Errorf("%s asked for more than its turn does: %v", a.name, targets)
						}
						if a.name == "pi" {
							// It looks for a newer version in its terminal form and here.
							r := c.Try(t, "exec", a.agent, "-t=false", "--", "pi", "update", "--self")
							asksForMore(t, c, a.agent, "pi.dev:443", r.String)
						}
						if a.name == "openclaw" {
							serves(t, c)
							takesPushes(t, c, model, kind == engine.Cell)
							asksForMore(t, c, "service", "telemetry.openclaw.ai:443", func() string { return c.Run(t, "logs", "service") })
						}
					})
				}
			}, option)
		})
	}
}

// asksForMore expects that an agent was refused what nobody listed and no
// prompt asked for; it may take a while until it asks.
func asksForMore(t *testing.T, c stage.CLI, agent, target string, said func() string) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
		targets := refused(t, c, agent)
		if slices.Contains(targets, target) {
			return
		}
		if time.Now().After(end) {
			t.Errorf("%s is not among the denials of %s: %v\n%s", target, agent, targets, said())
			return
		}
	}
}

// asked says that the agent followed its script of two calls, by the API.
func asked(t *testing.T, log []request, path, tool, out string) {
	t.Helper()
	calls, final := 0, ""
	for _, r := range log {
		if r.Path != path {
			t.Errorf("%s asked %s, want %s", r.Agent, r.Path, path)
		}
		if r.Tool == tool {
			calls++
		} else if strings.Contains(r.Text, "shell tool works") {
			final = r.Text
		}
	}
	if calls != 2 || !strings.Contains(final, "curl: exit") {
		t.Errorf("the model was asked %d times for %s; at the end it was told %q; %+v\n%s", calls, tool, final, log, out)
	}
}

// serves reaches OpenClaw's gateway, a service, by bulkhead forward.
func serves(t *testing.T, c stage.CLI) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); !strings.Contains(c.Run(t, "logs", "service"), "[gateway] ready"); time.Sleep(time.Second) {
		if time.Now().After(end) {
			t.Fatalf("OpenClaw's gateway is not ready:\n%s\n%s", c.Run(t, "logs", "service"), c.Run(t, "status"))
		}
	}
	var said bytes.Buffer
	cmd := exec.CommandContext(t.Context(), filepath.Join(c.Bin, "bulkhead"), "forward", "service", "18789", "--json")
	cmd.Dir, cmd.Stderr = c.Dir, &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait() // interrupted is how it ends
	}()
	var forwarded struct{ Forwards []struct{ Listen string } }
	if err := json.NewDecoder(out).Decode(&forwarded); err != nil || len(forwarded.Forwards) != 1 {
		t.Fatalf("forward: %v %+v\n%s", err, forwarded, &said)
	}
	client := http.Client{Timeout: time.Minute}
	for path, want := range map[string]string{"/health": `"ok":true`, "/": "<!doctype html"} {
		r, err := client.Get("http://" + forwarded.Forwards[0].Listen + path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		_ = r.Body.Close()
		if err != nil || r.StatusCode != http.StatusOK || !strings.Contains(strings.ToLower(string(body)), want) {
			t.Errorf("%s: %s, %v: %.300s", path, r.Status, err, body)
		}
	}
	if targets := refused(t, c, "service"); slices.Contains(targets, "exfiltrate.example:443") {
		t.Errorf("the service has the worker's denials: %v", targets)
	}
}
