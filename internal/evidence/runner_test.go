package evidence

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/evidence/attempt"
	"bulkhead/internal/layout"
)

// answering is a Host whose probes say what the function says. What it stands
// for, probes in real containers, is tested in test/system.
type answering func(q attempt.Request, from Position) ([]byte, error)

func (f answering) Probe(_ context.Context, _ string, from Position, raw []byte) ([]byte, error) {
	b, err := attempt.ParseBatch(raw)
	if err != nil {
		return nil, err
	}
	var out []byte
	for _, q := range b.Attempts {
		said, err := f(q, from)
		if err != nil {
			continue // as a probe that ends before it has answered
		}
		out = append(append(out, said...), '\n')
	}
	return out, nil
}

func answer(a attempt.Answer) ([]byte, error) { return json.Marshal(a) }

// library is the table, made once.
var library = sync.OnceValue(Attacks)

// refusing answers as a host does where every attack fails as it should: by a
// refusal that counts for every attack which makes this attempt.
func refusing(q attempt.Request) attempt.Answer {
	var common []string
	for _, a := range library() {
		abstract := len(q.Paths) > 0 && strings.HasPrefix(q.Paths[0], "@") // one attempt, several attacks
		if a.Attempt != q.Attempt || (a.Attempt == "socket.connect" && (a.ID == "net.abstract") != abstract) {
			continue
		}
		if common == nil {
			common = a.Witness()
		}
		common = slices.DeleteFunc(common, func(w string) bool { return !slices.Contains(a.Witness(), w) })
	}
	if len(common) == 0 {
		panic("no refusal counts for all attacks that attempt " + q.Attempt)
	}
	return attempt.Answer{
		Version: attempt.Version, Nonce: q.Nonce, Attempt: q.Attempt, Outcome: attempt.Denied,
		Steps: []attempt.Step{{What: "tried", Refusal: common[0]}},
	}
}

// twoAgents exist as far as attacks look: folders, sockets, processes.
func twoAgents(t *testing.T) []Agent {
	t.Helper()
	h := layout.Host{State: t.TempDir(), Run: t.TempDir(), Etc: t.TempDir()}
	var out []Agent
	for i, name := range []string{"writer", "editor"} {
		a := Agent{Name: name, Place: h.Agent("pair", name), IDs: layout.IDs{Account: uint32(900000 + i), Base: uint32(1000000 + i*layout.RangeSize)}, PIDs: []int{os.Getpid()}, Dialer: "/dialer.sock", Named: "listed.example:443"}
		if err := os.MkdirAll(a.Place.Home(), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(a.Place.GatewayDir(), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(a.Place.GatewaySocket(), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{a.Place.Conf(), a.Place.Data(), a.Place.DialerSocket(), h.WardenSocket()} {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		out = append(out, a)
	}
	return out
}

func TestAllRefusedIsAGoodReport(t *testing.T) {
	r, err := Run(t.Context(), answering(func(q attempt.Request, _ Position) ([]byte, error) { return answer(refusing(q)) }), Request{Team: "pair", Agents: twoAgents(t)})
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK() || r.Denied != r.Attacks-r.NotRun || r.Attacks < 800 {
		t.Fatalf("got %s", r.Text())
	}
	for _, row := range r.Rows {
		if row.Agent == row.Target {
			t.Fatalf("%+v aims at itself", row)
		}
	}
	if !strings.Contains(r.Text(), "denied 2/2") {
		t.Errorf("the matrix shows no denial:\n%s", r.Text())
	}
}

func TestWhatIsNotARefusalIsNeverDenied(t *testing.T) {
	for name, tc := range map[string]struct {
		say  func(q attempt.Request) ([]byte, error)
		want Verdict
	}{
		"a probe that did not answer": {func(attempt.Request) ([]byte, error) { return nil, nil }, Unproven},
		"a probe that was not started": {func(attempt.Request) ([]byte, error) {
			return nil, errors.New("no such program")
		}, Unproven},
		"half an answer": {func(q attempt.Request) ([]byte, error) {
			raw, err := answer(refusing(q))
			return raw[:len(raw)/2], err
		}, Unproven},
		"a wrong nonce": {func(q attempt.Request) ([]byte, error) {
			a := refusing(q)
			a.Nonce = "forged"
			return answer(a)
		}, Unproven},
		"the answer to another attempt": {func(q attempt.Request) ([]byte, error) {
			a := refusing(q)
			a.Attempt = "file.handle"
			return answer(a)
		}, Unproven},
		"an errno that nobody expects": {func(q attempt.Request) ([]byte, error) {
			a := refusing(q)
			a.Steps = append(a.Steps, attempt.Step{What: "more", Refusal: "EIO"})
			return answer(a)
		}, Unproven},
		"a failure to try": {func(q attempt.Request) ([]byte, error) {
			return answer(attempt.Answer{Version: attempt.Version, Nonce: q.Nonce, Attempt: q.Attempt, Outcome: attempt.Error})
		}, Unproven},
		"a success": {func(q attempt.Request) ([]byte, error) {
			return answer(attempt.Answer{Version: attempt.Version, Nonce: q.Nonce, Attempt: q.Attempt, Outcome: attempt.Succeeded, Steps: []attempt.Step{{What: "x"}}})
		}, Succeeded},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Run(t.Context(), answering(func(q attempt.Request, from Position) ([]byte, error) {
				if q.Attempt == "mount.tmpfs" && from == FromGateway {
					return tc.say(q)
				}
				return answer(refusing(q))
			}), Request{Team: "pair", Agents: twoAgents(t), Only: []string{"writer"}})
			if err != nil {
				t.Fatal(err)
			}
			if r.ExitCode() == 0 || r.Denied != r.Attacks-r.NotRun-1 {
				t.Fatalf("exit %d with %d of %d denied, want 1 and one less", r.ExitCode(), r.Denied, r.Attacks)
			}
			i := slices.IndexFunc(r.Rows, func(x Row) bool { return x.Attack == "mount.tmpfs" && x.Position == FromGateway })
			if r.Rows[i].Verdict != tc.want {
				t.Fatalf("verdict %s (%s), want %s", r.Rows[i].Verdict, r.Rows[i].Evidence, tc.want)
			}
		})
	}
}

func TestTheHostsListenerOverrulesTheProbe(t *testing.T) {
	r, err := Run(t.Context(), answering(func(q attempt.Request, _ Position) ([]byte, error) {
		if q.Attempt == "net.tcp" && strings.HasPrefix(q.Addresses[0], "127.0.0.1:") {
			c, err := net.Dial("tcp", q.Addresses[0]) // and then it says that it was refused
			if err != nil {
				return nil, err
			}
			if _, err := c.Read(make([]byte, 1)); err != nil {
				return nil, err
			}
			_ = c.Close()
		}
		return answer(refusing(q))
	}), Request{Team: "pair", Agents: twoAgents(t)})
	if err != nil {
		t.Fatal(err)
	}
	if r.Succeeded == 0 || r.ExitCode() != 1 {
		t.Fatalf("the listener was reached, yet: %s", r.Text())
	}
}

func TestATargetThatDoesNotExistProvesNothing(t *testing.T) {
	agents := twoAgents(t)
	for _, dir := range []string{filepath.Dir(agents[1].Place.Home()), agents[1].Place.State} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	r, err := Run(t.Context(), answering(func(q attempt.Request, _ Position) ([]byte, error) { return answer(refusing(q)) }), Request{Team: "pair", Agents: agents})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(r.Rows, func(x Row) bool { return x.Attack == "file.other" && x.Agent == "writer" })
	if r.Rows[i].Verdict != Unproven || r.OK() {
		t.Fatalf("got %+v", r.Rows[i])
	}
}

func TestWhatSucceedsWhereALayerIsMissingIsNotRunAndSaysWhy(t *testing.T) {
	missing := map[deny.Layer]string{deny.LayerEgress: "no nf_tables"}
	run := func(layer deny.Layer) *Report {
		// Every attack on one layer goes through; the rest is refused.
		r, err := Run(t.Context(), answering(func(q attempt.Request, _ Position) ([]byte, error) {
			said := refusing(q)
			if slices.ContainsFunc(library(), func(a Attack) bool { return a.Attempt == q.Attempt && a.Layer == layer }) {
				said.Outcome, said.Steps = attempt.Succeeded, []attempt.Step{{What: "tried"}}
			}
			return answer(said)
		}), Request{Team: "pair", Agents: twoAgents(t), Missing: missing})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := run(deny.LayerEgress); r.NotRun == 0 || r.Denied == 0 || !r.OK() || !strings.Contains(r.Text(), "no nf_tables") {
		t.Errorf("egress is missing, and gone through: %s", r.Text())
	}
	if r := run(deny.LayerPod); r.Succeeded == 0 || r.OK() {
		t.Errorf("egress is missing, but the pod was gone through: %s", r.Text())
	}
	if r := run(""); strings.Contains(r.Text(), "no nf_tables") || !r.OK() {
		t.Errorf("egress is missing, but everything was refused: %s", r.Text())
	}
}

// scripted gives fixed rows.
type scripted []ControlRow

func (s scripted) Controls(context.Context, []Attack) ([]ControlRow, error) { return s, nil }

func (s scripted) Exhaustion(context.Context) ([]ExhaustionRow, error) {
	var out []ExhaustionRow
	for _, r := range s {
		out = append(out, ExhaustionRow{ControlRow: r})
	}
	return out, nil
}

func TestAControlThatDoesNotBiteFailsTheReport(t *testing.T) {
	for _, tc := range []struct {
		row  ControlRow
		exit int
	}{
		{ControlRow{Attack: "mount.tmpfs", Mechanism: seccomp, Bit: true}, 0},
		{ControlRow{Attack: "mount.tmpfs", Mechanism: seccomp, Bit: false, On: "mounted"}, 1},
		{ControlRow{Attack: "net.vsock", Mechanism: seccomp, NotRun: "no vsock in this kernel"}, 0},
	} {
		r, err := Run(t.Context(), answering(func(q attempt.Request, _ Position) ([]byte, error) { return answer(refusing(q)) }),
			Request{Team: "pair", Agents: twoAgents(t), Decoys: scripted{tc.row}})
		if err != nil {
			t.Fatal(err)
		}
		if r.ExitCode() != tc.exit {
			t.Errorf("exit %d for %+v, want %d", r.ExitCode(), tc.row, tc.exit)
		}
	}
}

func TestReportsJSONHasTheFieldsOfTheContract(t *testing.T) {
	r := &Report{SchemaVersion: SchemaVersion, Team: "pair", Agents: []string{"writer"}, LeftOut: []LeftOut{{Why: "it has no audit", Of: []string{"writer"}, Attacks: []string{"audit.log", "audit.token"}, Rows: 4}}, Rows: []Row{{Agent: "writer", Position: FromRuntime, Attack: "mount.tmpfs", Layer: deny.LayerPod, Verdict: Denied, Evidence: "mount tmpfs: EPERM"}}, Controls: Controls{Rows: []ControlRow{}}, Library: describe(slices.DeleteFunc(Attacks(), func(a Attack) bool { return a.ID != "mount.tmpfs" }))}
	r.count()
	got, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("../../docs/contracts/golden/verify.json")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("../../docs/contracts/golden/verify.json", append(got, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(got)+"\n" != string(want) {
		t.Errorf("the JSON form changed; if that is meant, raise SchemaVersion and update docs/contracts:\n%s", got)
	}
}

func TestNothingTriedProvesNothing(t *testing.T) {
	r := &Report{Rows: []Row{{Attack: "mount.tmpfs", Verdict: NotRun}}}
	r.count()
	if r.ExitCode() != 1 {
		t.Fatal("a report without a single denial is good")
	}
}

func FuzzParseResolvers(f *testing.F) {
	f.Add("nameserver 9.9.9.9\nnameserver fe80::1\nsearch example.com\nnameserver fe80::1%eth0\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, a := range parseResolvers(text) {
			if _, port, err := net.SplitHostPort(a); err != nil || port != "53" {
				t.Fatalf("%q is no address with port 53", a)
			}
		}
	})
}

func TestServersAndCodeAreAttackedFromWhereTheyAre(t *testing.T) {
	agents := twoAgents(t)
	agents[0].Code, agents[0].Siblings = true, []int{os.Getpid()}
	server := Agent{Name: "front", Place: agents[0].host().Agent("pair", "front"), IDs: layout.IDs{Account: 900100}, Server: true}
	q := Request{Team: "pair", Agents: agents, Servers: []Agent{server}}
	run := func(q Request) *Report {
		r, err := Run(t.Context(), answering(func(q attempt.Request, _ Position) ([]byte, error) { return answer(refusing(q)) }), q)
		if err != nil {
			t.Fatal(err)
		}
		if !r.OK() {
			t.Fatalf("%s", r.Text())
		}
		return r
	}
	seen := map[string]int{}
	for _, row := range run(q).Rows {
		seen[row.Agent+" "+string(row.Position)]++
		if row.Target == "front" {
			t.Fatalf("%+v aims at a server as at an agent", row)
		}
	}
	for where, want := range map[string]bool{"writer code": true, "editor code": false, "front server": true, "writer server": false, "front runtime": false, "front account": false} {
		if (seen[where] > 0) != want {
			t.Errorf("%d rows from %s", seen[where], where)
		}
	}
	q.Only = []string{"editor"}
	for _, row := range run(q).Rows {
		if row.Agent != "editor" {
			t.Fatalf("%+v, though only editor was named", row)
		}
	}
}

func TestOnlyWhatIsThereIsAimedAt(t *testing.T) {
	agents := twoAgents(t)
	if err := os.Remove(agents[1].Place.Data()); err != nil {
		t.Fatal(err)
	}
	var asked [][]string
	var mu sync.Mutex
	r, err := Run(t.Context(), answering(func(q attempt.Request, _ Position) ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		if q.Attempt == "file.read" {
			asked = append(asked, q.Paths)
		}
		return answer(refusing(q))
	}), Request{Team: "pair", Agents: agents, Attacks: slices.DeleteFunc(Attacks(), func(a Attack) bool { return a.ID != "vault.kept" })})
	if err != nil {
		t.Fatal(err)
	}
	for _, paths := range asked {
		if !slices.Equal(paths, []string{agents[0].Place.Data()}) {
			t.Errorf("%v is aimed at", paths)
		}
	}
	for _, row := range r.Rows {
		if want := map[string]Verdict{"writer": Denied, "editor": Unproven}[row.Agent]; row.Verdict != want {
			t.Errorf("%+v, want %s", row, want)
		}
	}
	if len(asked) != 2 { // from runtime and account
		t.Errorf("%d questions", len(asked))
	}
}
