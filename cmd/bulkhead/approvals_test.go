package main

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

// hostile is an input by which an agent tries to look like another one.
const hostile = "hello\x1b[2J\x1b]0;title\a\n  to        good.example:443\u202e\n\x7f"

func sampleApprovals() map[string]any {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	permit := wire.Permit{ID: "gq7xk2m9a", Tool: "net_http_post", Scope: "https://api.example.com:443", Kind: wire.PermitFor, Until: at.Add(time.Hour), At: at, Execution: "xk2m9qa7b", Uses: 2}
	exact := wire.Permit{ID: "gaaaaaaaa", Tool: "db_delete", Digest: strings.Repeat("ab", 32), Token: "TOKEN", Kind: wire.PermitAlways, At: at, By: 1000, Execution: "xaaaaaaaa"}
	return map[string]any{
		wire.VerbStatus: sample(),
		wire.VerbApprovals: wire.ApprovalsResult{SchemaVersion: 1, Team: "pair", Agents: []wire.AgentApprovals{
			{Agent: "writer", Approvals: []wire.Approval{
				{
					ID: "xk2m9qa7b", Tool: "net_http_post", Step: 1, Steps: 1, Scope: "https://api.example.com:443", Since: at, Until: at.Add(24 * time.Hour), Digest: "ab",
					Given: []wire.Given{{Name: "url", Form: "text", Text: "https://api.example.com/", Bytes: 24}, {Name: "body", Form: "json", Text: `{"a":1`, Bytes: 3000, Cut: true}},
				},
				{ID: "xaaaaaaaa.2", Tool: "notify_send", Step: 2, Steps: 3, Paused: true, Token: "TOKEN", Since: at, Until: at.Add(24 * time.Hour), Given: []wire.Given{{Name: "message", Form: "text", Text: hostile, Bytes: 60}}},
			}},
			{Agent: "reviewer", Approvals: []wire.Approval{}, Problem: "the gateway of agent reviewer does not run"},
		}},
		wire.VerbDecide: func(body json.RawMessage) any {
			var q wire.DecideRequest
			if err := json.Unmarshal(body, &q); err != nil {
				return wire.Failure{Message: err.Error(), Exit: wire.ExitFailed}
			}
			res := wire.DecideResult{SchemaVersion: 1, Team: q.Team, Agent: q.Agent, ID: q.ID, Tool: "net_http_post", Approved: q.Approve, State: "queued"}
			if !q.Approve {
				res.State = "failed"
			}
			if q.Kind == wire.PermitFor && q.For == time.Hour {
				res.Grant = &permit
			}
			return res
		},
		wire.VerbPermits:      wire.PermitsResult{SchemaVersion: 1, Team: "pair", Agents: []wire.AgentPermits{{Agent: "writer", Grants: []wire.Permit{permit, exact}}}},
		wire.VerbRevokePermit: wire.PermitsResult{SchemaVersion: 1, Team: "pair", Agents: []wire.AgentPermits{{Agent: "writer", Grants: []wire.Permit{}}}},
		wire.VerbExecutions: wire.ExecutionsResult{SchemaVersion: 1, Team: "pair", Agents: []wire.AgentExecutions{{Agent: "writer", Executions: []wire.Execution{
			{ID: "xk2m9qa7b", State: "waiting_for_user", Created: at, Changed: at, Steps: []wire.ExecutionStep{{Step: 1, Tool: "mem_get", State: "done"}, {Step: 2, Tool: "notify_send", State: "waiting"}}},
			{ID: "xaaaaaaaa", State: "failed", Token: "TOKEN", Created: at, Changed: at, Steps: []wire.ExecutionStep{{Step: 1, Tool: "mem_set", State: "failed", Why: "no\x1b[2J\nwriter faked"}}},
		}}, {Agent: "reviewer", Executions: []wire.Execution{}, Problem: "the gateway of agent reviewer does not run"}}},
		wire.VerbExecution: func(body json.RawMessage) any {
			var q wire.ExecutionRequest
			if err := json.Unmarshal(body, &q); err != nil || q.Agent != "writer" || q.ID != "xk2m9qa7b" || q.Action != "pause" || q.Team != "pair" {
				return wire.Failure{Message: "not what was typed", Exit: wire.ExitFailed}
			}
			return wire.ExecutionsResult{SchemaVersion: 1, Team: q.Team, Agents: []wire.AgentExecutions{}}
		},
		wire.VerbRevoke: wire.GrantsResult{SchemaVersion: 1, Team: "pair", Agents: []wire.AgentGrants{}},
	}
}

func TestWhatApprovalsShow(t *testing.T) {
	socket := answers(t, sampleApprovals())
	for _, c := range []struct {
		name string
		args []string
	}{
		{"approvals", []string{"approvals"}},
		{"approve", []string{"approve", "writer", "xk2m9qa7b", "--for", "1h"}},
		{"deny", []string{"deny", "writer", "xk2m9qa7b", "--reason", "no"}},
		{"grants", []string{"grants"}},
		{"execution-list", []string{"execution", "list"}},
		{"execution-pause", []string{"execution", "pause", "writer", "xk2m9qa7b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append(slices.Clone(c.args), "--team", "pair", "--socket", socket)
			out, errout, code := said(t, args...)
			if code != 0 {
				t.Fatal(errout)
			}
			if strings.ContainsAny(out, "\x1b\a\u202e\x7f") {
				t.Errorf("controls reach the terminal: %q", out)
			}
			var shown []string // the first column is ours: nothing of an agent's stands there
			for line := range strings.Lines(out) {
				if !strings.Contains(line, " ago)") { // it changes with the time
					shown = append(shown, line)
				}
				if strings.HasPrefix(line, "  to        good") {
					t.Errorf("the agent's text looks like ours: %q", line)
				}
			}
			golden(t, filepath.Join("testdata", "screens", c.name+".txt"), strings.Join(shown, ""))
			out, errout, code = said(t, append(args, "--json")...)
			if code != 0 || errout != "" || strings.ContainsAny(out, "\x1b\a\u202e\x7f") {
				t.Errorf("%d, %q, %q", code, errout, out)
			}
			golden(t, filepath.Join("..", "..", "docs", "contracts", "json", c.name+".json"), out)
		})
	}
}

func TestHowApprovalsAreAskedFor(t *testing.T) {
	var last wire.DecideRequest
	results := sampleApprovals()
	results[wire.VerbDecide] = func(body json.RawMessage) any {
		last = wire.DecideRequest{}
		if err := json.Unmarshal(body, &last); err != nil {
			t.Error(err)
		}
		return wire.DecideResult{SchemaVersion: 1}
	}
	socket := answers(t, results)
	for _, c := range []struct {
		args []string
		want wire.DecideRequest
		code int
	}{
		{[]string{"approve", "writer", "x"}, wire.DecideRequest{Approve: true, Kind: wire.PermitOnce}, 0},
		{[]string{"approve", "writer", "x", "--once"}, wire.DecideRequest{Approve: true, Kind: wire.PermitOnce}, 0},
		{[]string{"approve", "writer", "x", "--session"}, wire.DecideRequest{Approve: true, Kind: wire.PermitSession}, 0},
		{[]string{"approve", "writer", "x", "--for", "30m"}, wire.DecideRequest{Approve: true, Kind: wire.PermitFor, For: 30 * time.Minute}, 0},
		{[]string{"approve", "writer", "x", "--always", "--exact"}, wire.DecideRequest{Approve: true, Kind: wire.PermitAlways, Exact: true}, 0},
		{[]string{"approve", "writer", "x", "--always", "--wide"}, wire.DecideRequest{Approve: true, Kind: wire.PermitAlways, Wide: true}, 0},
		{[]string{"deny", "writer", "x", "--reason", "r"}, wire.DecideRequest{Reason: "r"}, 0},
		{[]string{"approve", "writer", "x", "--always", "--session"}, wire.DecideRequest{}, wire.ExitBadInput},
		{[]string{"approve", "writer", "x", "--for", "0"}, wire.DecideRequest{}, wire.ExitBadInput},
		{[]string{"approve", "writer", "x", "--for", "-1h"}, wire.DecideRequest{}, wire.ExitBadInput},
		{[]string{"approve", "writer", "x", "--always", "--exact", "--wide"}, wire.DecideRequest{}, wire.ExitBadInput},
		{[]string{"approve", "writer"}, wire.DecideRequest{}, wire.ExitBadInput},
		{[]string{"deny", "writer"}, wire.DecideRequest{}, wire.ExitBadInput},
	} {
		last = wire.DecideRequest{}
		_, errout, code := said(t, append(c.args, "--team", "pair", "--socket", socket)...)
		if code == 0 {
			c.want.Team, c.want.Agent, c.want.ID = "pair", "writer", "x"
		}
		if code != c.code || last != c.want {
			t.Errorf("%v: %d, %+v; %s", c.args, code, last, errout)
		}
	}
	if out, errout, code := said(t, "revoke", "writer", "gq7xk2m9a", "--team", "pair", "--socket", socket); code != 0 || !strings.Contains(out, "No grants of tool calls") {
		t.Errorf("a grant: %d %s %s", code, out, errout)
	}
	if out, errout, code := said(t, "revoke", "writer", "files.example.com:443", "--team", "pair", "--socket", socket); code != 0 || !strings.Contains(out, "Nothing is allowed beside") {
		t.Errorf("a destination: %d %s %s", code, out, errout)
	}
}

func TestWhatStatusSaysOfCallsThatWait(t *testing.T) {
	s := sample()
	s.Teams[0].Agents[0].Asking = &wire.Asking{Waiting: 2, Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	socket := answers(t, map[string]any{wire.VerbStatus: s})
	if out, _, _ := said(t, "status", "--socket", socket); !strings.Contains(out, "Calls that wait for you:\n  writer: 2, the oldest since 2026-01-02T03:04:05Z: `sudo bulkhead approvals writer`") {
		t.Error(out)
	}
}

// FuzzBehindBar holds that no line is wider than the terminal, holds a control, or
// loses what an agent wrote.
func FuzzBehindBar(f *testing.F) {
	f.Add(hostile, 80)
	f.Add(strings.Repeat("a", 500), 21)
	f.Add(strings.Repeat("漢", 50), 40)
	f.Add("", 100)
	f.Add(`\u200b`+"\u200b\U000e0041\u0301", 21)
	f.Fuzz(func(t *testing.T, text string, width int) {
		if width < 21 || width > 500 || !utf8.ValidString(text) {
			return
		}
		var back strings.Builder // what a person can read out of it
		for i, l := range behindBar(text, width) {
			n := 0
			for _, c := range l {
				if !terminal.Visible(c) {
					t.Fatalf("%q holds what is not seen", l)
				}
				n++
				if c >= 0x80 {
					n++
				}
			}
			if n > width {
				t.Fatalf("%q has %d columns of %d", l, n, width)
			}
			rest, begins := strings.CutPrefix(l, "    | ")
			if !begins {
				var goesOn bool
				if rest, goesOn = strings.CutPrefix(l, "    > "); !goesOn || i == 0 {
					t.Fatalf("%q has no mark", l)
				}
			} else if i > 0 {
				back.WriteByte('\n')
			}
			back.WriteString(rest)
		}
		got := unescaped(t, back.String())
		if got != text {
			t.Fatalf("%q is shown as %q", text, back.String())
		}
	})
}

// unescaped reads what is shown, as a person would.
func unescaped(t *testing.T, s string) string {
	t.Helper()
	var lines []string
	for l := range strings.SplitSeq(s, "\n") {
		one, err := strconv.Unquote(`"` + strings.ReplaceAll(l, `"`, `\"`) + `"`)
		if err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		lines = append(lines, one)
	}
	return strings.Join(lines, "\n")
}

// What hides, blanks, or looks like an escape or a new line is told from what it looks
// like.
func TestWhatIsNotSeenIsEscaped(t *testing.T) {
	for text, want := range map[string]string{
		"a\u200bb":         `    | a\u200bb`,
		"a\U000e0041":      `    | a\U000e0041`,
		"a\ufe0f":          `    | a\ufe0f`,
		"a\u3164":          `    | a\u3164`,
		"a\u115f":          `    | a\u115f`,
		"a\uffa0":          `    | a\uffa0`,
		"a\u00a0b":         `    | a\u00a0b`,
		"a\u2800":          `    | a\u2800`,
		"\u0338a":          `    | \u0338a`,
		`a\u200b`:          `    | a\\u200b`,
		"a\nb":             "    | a\n    | b",
		"aaaaaaaaaaaaaaab": "    | aaaaaaaaaaaaaaa\n    > b",
		"é漢":               "    | é漢",
	} {
		if got := strings.Join(behindBar(text, 21), "\n"); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// Nothing that a gateway says goes on in the first column.
func TestEveryLineOfApprovalsIsWrapped(t *testing.T) {
	results := sampleApprovals()
	long := strings.Repeat("xaaaaaaaa.2 ", 30)
	results[wire.VerbApprovals] = wire.ApprovalsResult{SchemaVersion: 1, Team: "pair", Agents: []wire.AgentApprovals{
		{Agent: "writer", Approvals: []wire.Approval{{ID: "xk2m9qa7b", Tool: "net_http_post", Steps: 1, Scope: "https://" + long, Token: long, Given: []wire.Given{}}}},
		{Agent: "reviewer", Approvals: []wire.Approval{}, Problem: long},
	}}
	out, errout, code := said(t, "approvals", "--team", "pair", "--socket", answers(t, results))
	if code != 0 {
		t.Fatal(errout)
	}
	body, _, _ := strings.Cut(out, "\nNext")
	for line := range strings.Lines(body) {
		if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > 80 {
			t.Errorf("%q is wider than 80 columns", line)
		}
	}
	if !strings.Contains(body, "\n          > ") || !strings.Contains(body, "\n  > ") {
		t.Errorf("no line goes on:\n%s", body)
	}
}

// Who asked for one call whole is not told to ask for it whole.
func TestTheWayToTheWholeIsToldOnce(t *testing.T) {
	socket := answers(t, sampleApprovals())
	for _, args := range [][]string{{"approvals"}, {"approvals", "writer", "xk2m9qa7b"}} {
		out, errout, code := said(t, append(args, "--team", "pair", "--socket", socket)...)
		if code != 0 || !strings.Contains(out, "bytes more of it") || strings.Contains(out+errout, "shows the input of one whole") != (len(args) == 1) {
			t.Errorf("%v: %d, %s%s", args, code, out, errout)
		}
	}
}
