package main

import (
	"encoding/json"
	"flag"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"bulkhead/internal/wire"
)

var update = flag.Bool("update", false, "rewrite golden files")

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got); go test -update rewrites it:\n%s", file, diff)
	}
}

// answers is a counterpart that speaks the warden protocol over a real socket
// and gives a fixed answer to each verb.
func answers(t *testing.T, results map[string]any) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "warden.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	serve := func(c *wire.Conn) {
		defer func() { _ = c.Close() }()
		if _, _, err := c.Recv(); err != nil || c.Send(0, wire.VerbHello, wire.Hello{Protocol: wire.WardenProtocol, Version: wire.WardenVersion, Build: "warden-build"}) != nil {
			return
		}
		m, _, err := c.Recv()
		if err != nil {
			return
		}
		result := results[m.Verb]
		if f, ok := result.(func(json.RawMessage) any); ok {
			result = f(m.Body)
		}
		switch res := result.(type) {
		case nil:
			_ = c.Send(m.ID, wire.VerbError, wire.Failure{Message: "unknown verb", Exit: wire.ExitFailed})
		case wire.Failure:
			_ = c.Send(m.ID, wire.VerbError, res)
		case *os.File:
			_ = c.Send(m.ID, wire.VerbResult, struct{}{}, res)
		default:
			_ = c.Send(m.ID, wire.VerbProgress, wire.Progress{Agent: "writer", Step: "working"})
			_ = c.Send(m.ID, wire.VerbResult, res)
		}
	}
	var owner sync.WaitGroup
	owner.Go(func() {
		for {
			u, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			serve(wire.New(u))
		}
	})
	t.Cleanup(func() { _ = ln.Close(); owner.Wait() })
	return socket
}

// said runs the program and gives what it printed and its exit code.
func said(t *testing.T, args ...string) (out, errout string, code int) {
	t.Helper()
	file := func() *os.File {
		f, err := os.CreateTemp(t.TempDir(), "said")
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	in, o, e := file(), file(), file()
	code = run(args, in, o, e)
	text := func(f *os.File) string {
		_ = f.Close()
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	return text(o), text(e), code
}

func exit(n int) *int { return &n }

// sample is a team in which one agent is well and one is not. The witness
// tries to act on the operator's terminal.
func sample() wire.StatusResult {
	return wire.StatusResult{SchemaVersion: 1, Build: "c0ffee0123456789", Programs: "d2d90f0e7a6b5c43", Teams: []wire.TeamStatus{{Team: "pair", Agents: []wire.AgentStatus{
		{
			Agent: "writer", State: "running", Account: "bh-pair-writer", Range: "1000000-1065535", Programs: "0123456789abcdef",
			Containers: []wire.ContainerStatus{
				{Name: "runtime", Running: true, PID: 4711, HostID: 1000999, MemoryBytes: 47 << 20, Since: "2026-01-02T03:04:05Z"},
				{Name: "gateway", Running: true, PID: 4712, HostID: 1001999, MemoryBytes: 9 << 20, Since: "2026-01-02T03:04:05Z"},
			},
			Layers: []wire.LayerStatus{
				{Layer: "account", InForce: true, Witness: "/proc/4711/status: Uid 1000999"},
				{Layer: "quota", InForce: true, Witness: "statfs: /var/lib/bulkhead/teams/pair/agents/writer/runtime 957 of 957 MiB"},
				{Layer: "pod", InForce: true, Witness: "/proc/4711/status: Seccomp 2"},
				{Layer: "egress", InForce: true, Witness: "nftables: table inet bulkhead"},
			},
			Disks: []wire.DiskStatus{
				{Name: "runtime", Bytes: 957 << 20, UsedBytes: 900 << 20, Inodes: 131072, UsedInodes: 131072},
				{Name: "gateway", Bytes: 58 << 20, UsedBytes: 1 << 20, Inodes: 4096, UsedInodes: 12},
			},
		},
		{
			Agent: "reviewer", State: "degraded", Why: "the gateway ended", Account: "bh-pair-reviewer", Range: "1065536-1131071", Restarts: 3,
			Containers: []wire.ContainerStatus{
				{Name: "runtime", Running: true, PID: 4713, HostID: 1066535, MemoryBytes: 5 << 20, Since: "2026-01-02T03:04:05Z"},
				{Name: "gateway", HostID: 1067535, Exit: exit(137)},
			},
			Layers: []wire.LayerStatus{
				{Layer: "account", InForce: true, Witness: "/proc/4713/status: Uid 1066535"},
				{Layer: "egress", Witness: "nftables: the set is gone \x1b]0;evil\a\u202e"},
			},
		},
	}}}}
}

func sampleResults() map[string]any {
	return map[string]any{
		wire.VerbStatus: sample(), wire.VerbRestart: sample(), wire.VerbHalt: sample(),
		wire.VerbPlan: wire.PlanResult{
			SchemaVersion: 1, Team: "pair",
			Changes: []wire.Change{
				{Agent: "writer", Action: wire.ActionUpdate, Why: []string{"egress: + api.example.com:443", "egress: - old.example.com:443"}},
				{Agent: "reviewer", Action: wire.ActionRestart, Why: []string{"limits.memory: 256Mi -> 512Mi"}},
				{Agent: "helper", Action: wire.ActionCreate},
				{Agent: "old", Action: wire.ActionRemove, Why: []string{"no longer in the manifest"}},
				{Agent: "same", Action: wire.ActionKeep},
			},
			MissingLayers: []string{"pod: no Landlock in this kernel"},
		},
		wire.VerbApply: wire.ApplyResult{SchemaVersion: 1, Changes: []wire.Change{{Agent: "writer", Action: wire.ActionCreate}, {Agent: "reviewer", Action: wire.ActionKeep}}, Status: sample()},
		wire.VerbDown: wire.DownResult{
			SchemaVersion: 1, Teams: []string{"pair"}, Removed: []string{"account bh-pair-writer", "cgroup pair/writer"},
			Kept: []string{"data /var/lib/bulkhead/teams/pair"},
		},
		wire.VerbVerify: json.RawMessage(verifyReport),
	}
}

const verifyReport = `{"schemaVersion":1,"team":"pair","agents":["writer"],"attacks":3,"denied":2,"succeeded":0,"unproven":0,"not_run":1,
"leftOut":[{"why":"it has no front","of":["reviewer","writer"],"attacks":["front.port","front.token"],"rows":8}],
"controls":{"run":2,"bit":1,"not_run":0,"rows":[
 {"attack":"mount.tmpfs","mechanism":"seccomp","off":["user-namespace"],"position":"runtime","on":"EPERM","without":"mounted","bit":true},
 {"attack":"net.unlisted","mechanism":"nftables","off":[],"position":"gateway","on":"EPERM","without":"EPERM","bit":false}]},
"rows":[
 {"agent":"writer","position":"runtime","target":"","attack":"mount.tmpfs","layer":"pod","verdict":"denied","evidence":"mount tmpfs: EPERM"},
 {"agent":"writer","position":"gateway","target":"reviewer","attack":"net.unlisted","layer":"egress","verdict":"denied","evidence":"connect: EPERM"},
 {"agent":"writer","position":"account","target":"","attack":"lsm.apparmor","layer":"pod","verdict":"not_run","evidence":"this kernel has no AppArmor"}]}`

func TestWhatEachCommandShowsAndItsJSON(t *testing.T) {
	socket := answers(t, sampleResults())
	manifest := filepath.Join(t.TempDir(), "bulkhead.yaml")
	text := "apiVersion: bulkhead/v1\nteam: pair\nagents:\n  writer: {image: pi, mode: session}\n"
	if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		code int
		args []string
	}{
		{"plan", 0, []string{"plan", "-f", manifest}},
		{"up", 1, []string{"up", "-f", manifest}}, // an agent is degraded
		{"status", 0, []string{"status"}},
		{"restart", 0, []string{"restart", "writer"}},
		{"stop", 0, []string{"stop", "writer"}},
		{"down", 0, []string{"down", "--team", "pair"}},
		{"verify", 1, []string{"verify"}}, // a control did not bite
	} {
		t.Run(c.name, func(t *testing.T) {
			out, errout, code := said(t, append(c.args, "--socket", socket)...)
			if code != c.code || !strings.Contains(errout, "  writer: working\n") {
				t.Errorf("exit code %d, want %d; errors: %q", code, c.code, errout)
			}
			if strings.ContainsAny(out, "\x1b\a\u202e") {
				t.Errorf("controls reach the terminal: %q", out)
			}
			golden(t, filepath.Join("testdata", "screens", c.name+".txt"), out)

			out, errout, code = said(t, append(c.args, "--json", "--socket", socket)...)
			if code != c.code || errout != "" {
				t.Errorf("--json: exit code %d, want %d; errors: %q", code, c.code, errout)
			}
			if strings.ContainsAny(out, "\x1b\a\u202e") {
				t.Errorf("--json: controls reach the terminal: %q", out)
			}
			var doc struct {
				SchemaVersion int `json:"schemaVersion"`
			}
			if err := json.Unmarshal([]byte(out), &doc); err != nil || doc.SchemaVersion != 1 {
				t.Errorf("--json: schemaVersion %d, %v", doc.SchemaVersion, err)
			}
			golden(t, filepath.Join("..", "..", "docs", "contracts", "json", c.name+".json"), out)
		})
	}
}

func TestARefusalOfTheWardenIsPassedOn(t *testing.T) {
	socket := answers(t, map[string]any{wire.VerbDown: wire.Failure{Message: "only root \x1b[2Jmay do this", Mend: "sudo", Exit: wire.ExitRefused}})
	out, errout, code := said(t, "down", "--team", "pair", "--socket", socket)
	if code != wire.ExitRefused || out != "" || errout != "error: only root may do this\n  to mend: sudo\n" {
		t.Errorf("%d, %q, %q", code, out, errout)
	}
	out, errout, code = said(t, "down", "--team", "pair", "--socket", socket, "--json")
	if code != wire.ExitRefused || errout != "" {
		t.Errorf("%d, %q", code, errout)
	}
	golden(t, filepath.Join("..", "..", "docs", "contracts", "json", "error.json"), out)
}

// What is wrong with the command line is said without asking a warden.
func TestMistakesOfTheCommandLineNeedNoWarden(t *testing.T) {
	nobody := filepath.Join(t.TempDir(), "no.sock")
	for _, c := range []struct{ args, want string }{
		{"verify --every 1h", "add --watch"},
		{"verify --watch --no-controls", "leave out"},
		{"evidence report /nonexistent", "cannot be read"},
		{"evidence verify /nonexistent", "cannot be read"},
	} {
		_, errout, code := said(t, append(strings.Fields(c.args), "--socket", nobody)...)
		if code != wire.ExitBadInput || !strings.Contains(errout, c.want) || !strings.Contains(errout, "to mend: ") {
			t.Errorf("%s: %d, %q", c.args, code, errout)
		}
	}
}

func TestWhichTeamIsMeant(t *testing.T) {
	many := sample()
	many.Teams = append(many.Teams, wire.TeamStatus{Team: "other"})
	for _, c := range []struct {
		name   string
		status wire.StatusResult
		want   string
	}{
		{"none", wire.StatusResult{SchemaVersion: 1}, "no team is up"},
		{"several", many, "several teams are up: other, pair"},
	} {
		t.Run(c.name, func(t *testing.T) {
			socket := answers(t, map[string]any{wire.VerbStatus: c.status})
			_, errout, code := said(t, "stop", "--socket", socket)
			if code != wire.ExitBadInput || !strings.Contains(errout, c.want) {
				t.Errorf("%d, %q", code, errout)
			}
		})
	}
}

func TestVerifyJudgesTheWholeReport(t *testing.T) {
	for _, c := range []struct {
		name, report string
		want         int
	}{
		{"all held", `{"schemaVersion":1,"denied":3,"attacks":3,"controls":{"run":2,"bit":2}}`, 0},
		{"one succeeded", `{"schemaVersion":1,"denied":2,"succeeded":1,"controls":{"run":2,"bit":2}}`, 1},
		{"one unproven", `{"schemaVersion":1,"denied":2,"unproven":1,"controls":{"run":2,"bit":2}}`, 1},
		{"a control did not bite", `{"schemaVersion":1,"denied":3,"controls":{"run":2,"bit":1}}`, 1},
		{"nothing was tried", `{"schemaVersion":1,"not_run":3}`, 1},
		{"another version", `{"schemaVersion":2,"denied":3}`, 1},
		{"no report", `null`, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			socket := answers(t, map[string]any{wire.VerbVerify: json.RawMessage(c.report)})
			for _, format := range []string{"--json=false", "--json=true"} {
				if _, errout, code := said(t, "verify", "--team", "pair", format, "--socket", socket); code != c.want {
					t.Errorf("%s: exit code %d, want %d: %s", format, code, c.want, errout)
				}
			}
		})
	}
}

const criLog = "2026-01-02T03:04:05.000000001Z stdout F one\n" +
	"2026-01-02T03:04:05.000000002Z stdout P two be\n" +
	"2026-01-02T03:04:05.000000003Z stderr F \x1b]0;evil\arror\n" +
	"2026-01-02T03:04:05.000000004Z stdout F gins\n" +
	"2026-01-02T03:04:05.000000005Z stdout F \n" +
	"torn line\n" +
	"2026-01-02T03:04:05.000000006Z stdout F last"

func TestLogs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "runtime.log")
	if err := os.WriteFile(path, []byte(criLog), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	socket := answers(t, map[string]any{wire.VerbLogs: f})
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"all", nil, "one\nrror\ntwo begins\n\ntorn line\nlast\n"},
		{"the last two", []string{"--tail", "2"}, "torn line\nlast\n"},
		{"none", []string{"--tail", "0"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, errout, code := said(t, append([]string{"logs", "writer", "--team", "pair", "--socket", socket}, c.args...)...)
			if code != 0 || out != c.want || errout != "" {
				t.Errorf("%d, %q, %q", code, out, errout)
			}
		})
	}
	out, _, code := said(t, "logs", "writer", "--team", "pair", "--socket", socket, "--json")
	if code != 0 {
		t.Errorf("--json: %d", code)
	}
	golden(t, filepath.Join("..", "..", "docs", "contracts", "json", "logs.jsonl"), out)
}

func FuzzLogSplitter(f *testing.F) {
	f.Add([]byte(criLog), 3)
	f.Add([]byte("x stdout P a\nx stdout P b\n"), 1)
	f.Fuzz(func(t *testing.T, data []byte, cut int) {
		lines := func(size int) (out []logLine) {
			s := logSplitter{show: func(l logLine) error { out = append(out, l); return nil }}
			for rest := data; len(rest) > 0; rest = rest[min(size, len(rest)):] {
				if _, err := s.Write(rest[:min(size, len(rest))]); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.end(); err != nil {
				t.Fatal(err)
			}
			return out
		}
		whole := lines(1 << 20)
		if diff := cmp.Diff(whole, lines(1+max(0, cut)%32)); diff != "" {
			t.Errorf("how the log is cut matters:\n%s", diff)
		}
		for _, l := range whole {
			if strings.ContainsAny(l.clean(), "\x1b\n\r\u009b") {
				t.Errorf("unsafe line %q", l.clean())
			}
		}
	})
}
