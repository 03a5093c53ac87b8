package wire

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"bulkhead/internal/deny"
)

var update = flag.Bool("update", false, "rewrite golden files")

const contracts = "../../docs/contracts/"

// Programs of different builds meet on these frames: a running shim, dialer or
// gateway is adopted by a newer warden.
func TestProtocolContract(t *testing.T) {
	expires := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	reason := deny.Reason{Layer: deny.LayerEgress, Code: deny.NotListed, What: "dial evil.example:443", Why: "not in the manifest", Mend: "list it"}
	exec := ExecRequest{Argv: []string{"sh"}, Env: []string{"TERM=xterm"}, Dir: "/workspace", Terminal: true, Rows: 24, Cols: 80}
	type frame struct {
		Protocol string `json:"protocol"`
		Version  int    `json:"version"`
		Frame    any    `json:"frame"`
	}
	var frames []frame
	add := func(protocol string, version int, id uint64, verb string, body any) {
		raw, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, frame{protocol, version, Message{ID: id, Verb: verb, Body: raw}})
	}
	for _, p := range []struct {
		name    string
		version int
	}{
		{WardenProtocol, WardenVersion},
		{ShimProtocol, ShimVersion},
		{GatewayProtocol, GatewayVersion},
		{GrantsProtocol, GrantsVersion},
		{DialerProtocol, DialerVersion},
		{PinProtocol, PinVersion},
		{ResolverProtocol, ResolverVersion},
		{CodeProtocol, CodeVersion},
	} {
		add(p.name, p.version, 0, VerbHello, Hello{Protocol: p.name, Version: p.version, Build: "b1"})
	}
	w := func(verb string, body any) { add(WardenProtocol, WardenVersion, 1, verb, body) }
	w(VerbApply, ApplyRequest{Path: "/srv/team/bulkhead.yaml", Manifest: []byte("team: pair\n"), AcceptMissing: []string{"pod"}})
	w(VerbPlan, ApplyRequest{Path: "/srv/team/bulkhead.yaml", Manifest: []byte("team: pair\n")})
	w(VerbStatus, TeamRequest{Team: "pair"})
	w(VerbRestart, AgentRequest{Team: "pair", Agents: []string{"writer"}})
	w(VerbHalt, AgentRequest{Team: "pair"})
	w(VerbDown, DownRequest{Team: "pair", Purge: true})
	w(VerbLogs, LogsRequest{Team: "pair", Agent: "writer", Container: "runtime"})
	w(VerbVerify, VerifyRequest{Team: "pair", NoControls: true})
	w(VerbProve, TeamRequest{Team: "pair"})
	w(VerbRun, RunRequest{Team: "pair", Agent: "writer", Exec: ExecRequest{Argv: []string{"true"}}})
	w(VerbExec, AgentExec{Team: "pair", Agent: "writer", Container: "runtime", Exec: exec})
	w(VerbDenials, AgentRequest{Team: "pair", Agents: []string{"writer"}})
	w(VerbAllow, AllowRequest{Team: "pair", Agent: "writer", Target: "files.example.com:443", For: time.Hour, Once: true})
	w(VerbRevoke, RevokeRequest{Team: "pair", Agent: "writer", Target: "files.example.com:443"})
	w(VerbGrants, AgentRequest{Team: "pair"})
	w(VerbApprovals, ApprovalsRequest{Team: "pair", Agents: []string{"writer"}, ID: "xk2m9qa7b"})
	w(VerbDecide, DecideRequest{Team: "pair", Agent: "writer", ID: "xk2m9qa7b", Approve: true, Kind: PermitFor, For: time.Hour, Exact: true})
	w(VerbDecide, DecideRequest{Team: "pair", Agent: "writer", ID: "xk2m9qa7b", Reason: "not to customers"})
	w(VerbPermits, AgentRequest{Team: "pair"})
	w(VerbRevokePermit, RevokePermitRequest{Team: "pair", Agent: "writer", ID: "gq7xk2m9a"})
	w(VerbExecutions, ExecutionsRequest{Team: "pair", All: true})
	w(VerbExecution, ExecutionRequest{Team: "pair", Agent: "writer", ID: "xk2m9qa7b", Action: ExecutionPause})
	w(VerbForward, ForwardRequest{Team: "pair", Agent: "writer", Port: 8080, Check: true})
	w(VerbWorkspace, WorkspaceRequest{Team: "pair", Agent: "writer", For: WorkspacePull})
	w(VerbWatch, WatchRequest{Team: "pair", Agent: "writer"})
	w(VerbWhy, WhyRequest{Team: "pair", Agent: "writer", What: "evil.example:443"})
	w(VerbFence, FenceRequest{Team: "pair", Agents: []string{"writer"}, Why: "it mails strangers"})
	w(VerbUnfence, AgentRequest{Team: "pair", Agents: []string{"writer"}})
	w(VerbShutdown, struct{}{})
	w(VerbProgress, Progress{Agent: "writer", Step: "starting"})
	w(VerbResult, StatusResult{SchemaVersion: 1})
	w(VerbError, Failure{Message: "only root may do this", Mend: "sudo", Exit: ExitRefused})
	s := func(verb string, body any) { add(ShimProtocol, ShimVersion, 1, verb, body) }
	s(VerbExec, exec)
	s(VerbStarted, ExecStarted{PID: 7})
	s(VerbResize, Resize{Rows: 24, Cols: 80})
	s(VerbSignal, Signal{Number: 2})
	s(VerbExited, ExecExited{Code: 137, Signal: "killed"})
	s(VerbState, StateRequest{WaitMillis: 250})
	s(VerbConnect, ConnectRequest{Port: 8080})
	s(VerbConnected, struct{}{})
	s(VerbOK, ShimState{Build: "b1", Ready: true, PID: 2, Listeners: 3, Landlock: 7})
	s(VerbStop, StopRequest{GraceMillis: 10000})
	add(GatewayProtocol, GatewayVersion, 1, VerbListen, ListenRequest{
		Token:     "t",
		Listeners: []Listener{{Address: "11.77.0.5:443", Target: "api.example.com:443"}, {Address: "127.0.0.1:3128"}},
	})
	add(GatewayProtocol, GatewayVersion, 1, VerbRelay, RelayRequest{Token: "t", Target: "api.example.com:443"})
	add(GrantsProtocol, GrantsVersion, 1, VerbGrants, Grants{Grants: []Grant{{Target: "files.example.com:443", Until: expires, Once: true, Spent: true, At: expires}}})
	g := func(verb string, body any) { add(GrantsProtocol, GrantsVersion, 1, verb, body) }
	given := []Given{{Name: "url", Form: "text", Text: "https://api.example.com/", Bytes: 24}}
	permit := Permit{ID: "gq7xk2m9a", Tool: "net_http_post", Scope: "https://api.example.com:443", Kind: PermitFor, Until: expires, At: expires, By: 1000, Execution: "xk2m9qa7b", Uses: 2}
	g(VerbApprovals, ApprovalsRequest{ID: "xk2m9qa7b"})
	g(VerbOK, AgentApprovals{Agent: "writer", Approvals: []Approval{{ID: "xk2m9qa7b", Tool: "net_http_post", Step: 1, Steps: 1, Scope: "https://api.example.com:443", Since: expires, Until: expires, Digest: "ab", Given: given}}})
	g(VerbDecide, DecideRequest{Team: "pair", Agent: "writer", ID: "xk2m9qa7b", Approve: true, Kind: PermitFor, For: time.Hour, By: 1000})
	g(VerbOK, DecideResult{SchemaVersion: 1, Agent: "writer", ID: "xk2m9qa7b", Tool: "net_http_post", Approved: true, State: "queued", Grant: &permit})
	g(VerbPermits, struct{}{})
	g(VerbRevokePermit, RevokePermitRequest{Team: "pair", Agent: "writer", ID: "gq7xk2m9a", By: 1000})
	g(VerbOK, AgentPermits{Agent: "writer", Grants: []Permit{permit}})
	g(VerbExecutions, ExecutionsRequest{All: true})
	g(VerbExecution, ExecutionRequest{Team: "pair", Agent: "writer", ID: "xk2m9qa7b", Action: ExecutionPause, By: 1000})
	g(VerbOK, AgentExecutions{Agent: "writer", Executions: []Execution{{ID: "xk2m9qa7b", State: "paused", Created: expires, Changed: expires, Detail: "paused", Steps: []ExecutionStep{{Step: 1, Tool: "mem_get", State: "failed", Why: "no"}}}}})
	g(VerbEvent, GatewayEvent{Asking: &Asking{Waiting: 1, Since: expires}})
	d := func(verb string, body any) { add(DialerProtocol, DialerVersion, 1, verb, body) }
	d(VerbDial, DialRequest{Host: "api.example.com", Port: 443})
	d(VerbConnected, Connected{Address: netip.MustParseAddrPort("203.0.113.7:443")})
	d(VerbDenied, Denied{Reason: reason})
	d(VerbSocket, struct{}{})
	d(VerbAddresses, Answer{Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.7")}})
	k := func(verb string, body any) { add(CodeProtocol, CodeVersion, 1, verb, body) }
	k(VerbRunCode, CodeRequest{Language: "python", Code: "print(1)", Limits: CodeLimits{Millis: 30_000}})
	k(VerbStarted, CodeStarted{Container: "code-abc"})
	k(VerbKillCode, struct{}{})
	k(VerbExited, CodeExited{Code: 137, Signal: "killed", TimedOut: true, Microsecs: 30_000_000})
	p := func(verb string, body any) { add(PinProtocol, PinVersion, 1, verb, body) }
	p(VerbPin, DialRequest{Host: "api.example.com", Port: 443})
	p(VerbPinned, Pinned{Addresses: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.7:443")}, Expires: expires, Stale: true, Age: time.Minute})
	p(VerbProxied, Pinned{Addresses: []netip.AddrPort{netip.MustParseAddrPort("10.1.2.3:3128")}, Expires: expires, Via: &Via{
		Proxy: "proxy.corp.example:3128", Target: "api.example.com:443", Authorization: "Basic dXNlcjpwYXNzd29yZA==", Ends: expires,
	}})
	p(VerbUnpin, DialRequest{Host: "api.example.com", Port: 443})
	r := func(verb string, body any) { add(ResolverProtocol, ResolverVersion, 1, verb, body) }
	r(VerbNames, Names{Names: []string{"api.example.com", "*.cdn.example.com"}})
	r(VerbLookup, Lookup{Name: "api.example.com"})
	r(VerbAnswer, Answer{Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.7")}})

	var b bytes.Buffer
	for _, f := range frames {
		line, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(line, '\n'))
	}
	const file = contracts + "golden/frames.jsonl"
	if *update {
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("the contract changed (-golden +now):\n%s", diff)
	}
	page, err := os.ReadFile(contracts + "protocols.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range frames {
		m, ok := f.Frame.(Message)
		if ok && !strings.Contains(string(page), "`"+m.Verb+"`") {
			t.Errorf("docs/contracts/protocols.md does not name the verb %s of %s", m.Verb, f.Protocol)
		}
	}
}

func TestExitCodesAreThoseOfTheContract(t *testing.T) {
	page, err := os.ReadFile(contracts + "exit-codes.md")
	if err != nil {
		t.Fatal(err)
	}
	for code, name := range map[int]string{
		ExitOK: "ExitOK", ExitFailed: "ExitFailed", ExitBadInput: "ExitBadInput",
		ExitNoWarden: "ExitNoWarden", ExitRefused: "ExitRefused", ExitMissing: "ExitMissing",
	} {
		if !strings.Contains(string(page), "| "+string(rune('0'+code))+" | `"+name+"` |") {
			t.Errorf("docs/contracts/exit-codes.md does not say %d, %s", code, name)
		}
	}
}
