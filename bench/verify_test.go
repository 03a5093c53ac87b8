package bench

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"bulkhead/internal/evidence"
	"bulkhead/internal/prove"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
)

// Rounds of each measurement of what verify and prove cost.
const (
	verifyRounds  = 3
	proveRounds   = 9
	checkRounds   = 9
	settleForDump = 3 * time.Second // the check that follows an up is not what is measured
)

// TestVerifyAndProve measures the matrix, its controls, the proof and one check
// of `verify --watch`, of six agents and the adapter, on both engines.
func TestVerifyAndProve(t *testing.T) {
	wanted(t)
	eachEngine(t, func(t *testing.T, bin, engine string) {
		c := newTeam(t, bin, manifest(engine, theSeven, true))
		patientUp(t, c)
		time.Sleep(settleForDump)
		matrix(t, c, engine)
		proofs(t, c, engine)
		checks(t, c, engine)
		c.Run(t, "down", "--purge")
	})
}

// answered runs a command that prints one document, however long it takes, and
// gives its time and the processor time of the whole host.
func answered(t *testing.T, c stage.CLI, into interface{ Text() string }, args ...string) (took, spent time.Duration) {
	t.Helper()
	before, at := hostTime(t), time.Now()
	cmd := exec.CommandContext(t.Context(), filepath.Join(c.Bin, "bulkhead"), args...) // #nosec G204 -- our own program
	cmd.Dir = c.Dir
	out, err := cmd.Output()
	took = time.Since(at)
	spent = hostTime(t) - before
	if bad := json.Unmarshal(out, into); bad != nil {
		t.Fatalf("%v: %v, %v", args, err, bad)
	}
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, into.Text())
	}
	return took, spent
}

func matrix(t *testing.T, c stage.CLI, engine string) {
	t.Helper()
	var took, spent, controls, exhaustion []time.Duration
	var r evidence.Report
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	for range verifyRounds {
		r = evidence.Report{}
		_, cpu := answered(t, c, &r, "verify", "--no-controls", "--json")
		took, spent = append(took, seconds(r.Seconds.Attacks)), append(spent, cpu)
	}
	t.Logf("%d attempts: %d denied, %d succeeded, %d unproven, %d not run", r.Attacks, r.Denied, r.Succeeded, r.Unproven, r.NotRun)
	report(t, "the matrix, "+engine, took, spent)
	spent = nil
	for range verifyRounds {
		r = evidence.Report{}
		_, cpu := answered(t, c, &r, "verify", "--json")
		controls, exhaustion, spent = append(controls, seconds(r.Seconds.Controls)), append(exhaustion, seconds(r.Seconds.Exhaustion)), append(spent, cpu)
	}
	t.Logf("controls: %d of %d bit, %d not run", r.Controls.Bit, r.Controls.Run, r.Controls.NotRun)
	slices.Sort(controls)
	slices.Sort(exhaustion)
	slices.Sort(spent)
	t.Logf("%-28s controls p50 %v, exhaustion p50 %v; processor time of all three p50 %v; load %s", "the decoys, "+engine,
		controls[verifyRounds/2].Round(time.Millisecond), exhaustion[verifyRounds/2].Round(time.Millisecond), spent[verifyRounds/2].Round(time.Millisecond), load())
}

func proofs(t *testing.T, c stage.CLI, engine string) {
	t.Helper()
	var took, spent []time.Duration
	var r prove.Report
	for i := range proveRounds + 1 {
		r = prove.Report{}
		wall, cpu := answered(t, c, &r, "prove", "--json")
		if i == 0 {
			t.Logf("the first proof, when no filter was compared: %v, processor time %v", wall.Round(time.Millisecond), cpu)
			continue
		}
		took, spent = append(took, wall), append(spent, cpu)
	}
	report(t, fmt.Sprintf("prove, %d statements, %s", r.Held+r.Failed, engine), took, spent)
}

// checks measures what one check costs that an operator watches: the first one
// makes attacks as well, which is done once an hour.
func checks(t *testing.T, c stage.CLI, engine string) {
	t.Helper()
	var plain []time.Duration
	var attacking time.Duration
	for range checkRounds + 1 {
		before := hostTime(t)
		check := watched(t, c)
		cpu := hostTime(t) - before
		if check.Problem != "" || len(check.Broken) > 0 {
			t.Fatalf("%+v", check)
		}
		if check.Attacks > 0 {
			attacking = cpu
			continue
		}
		plain = append(plain, cpu)
	}
	if attacking == 0 || len(plain) == 0 {
		t.Fatalf("%d checks, and attacks in %v", len(plain), attacking)
	}
	slices.Sort(plain)
	p50 := plain[len(plain)/2]
	// An operator who watches has one a minute, and attacks once an hour.
	share := p50.Seconds()/60 + (attacking-p50).Seconds()/3600
	t.Logf("%-28s processor time p50 %v, with its attacks %v: one a minute and attacks once an hour are %.2f %% of one core; load %s", "a check, "+engine, p50, attacking, 100*share, load())
}

// watched gives the check that a new watcher hears of first.
func watched(t *testing.T, c stage.CLI) wire.Check {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(c.Bin, "bulkhead"), "verify", "--watch", "--json") // #nosec G204 -- our own program
	cmd.Dir = c.Dir
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	for lines := json.NewDecoder(out); ; {
		var check wire.Check
		if err := lines.Decode(&check); err != nil {
			t.Fatal(err)
		}
		if check.Why == "watch" {
			return check
		}
	}
}
