package evidence

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
	"bulkhead/internal/evidence/attempt"
)

// Host starts probes in live agents. Implemented by the warden.
type Host interface {
	// Probe starts bulkhead-probe at a position of an agent, gives it request
	// on its standard input and returns what it wrote to its standard output.
	// It must be the position's real place: through the shim of the runtime or
	// gateway, by the launcher's account role, or in a twin of a cell that has no
	// shim, as one of code or of a server. It is called concurrently.
	Probe(ctx context.Context, agent string, from Position, request []byte) (answer []byte, err error)
}

// Decoys runs controls. [DecoyHost] is the real one.
type Decoys interface {
	// Controls runs every control of attacks and returns one row for each.
	Controls(ctx context.Context, attacks []Attack) ([]ControlRow, error)
	// Exhaustion takes too much of everything, and returns one row for each of
	// [Exhaustion].
	Exhaustion(ctx context.Context) ([]ExhaustionRow, error)
}

// Request says whom to attack.
type Request struct {
	Team   string
	Agents []Agent // all agents of the team; every one is a target
	Only   []string
	// Neighbours are agents of other teams on this host, each named TEAM/AGENT:
	// targets of what aims at the host's accounts, and nothing is tried from them.
	Neighbours []Agent
	// Servers are attacked from as well, unless Only names agents.
	Servers []Agent
	// Idle are agents that do not run, as it was asked for: nothing is tried from
	// them, and the report says so. Dead are those that should, each with the
	// reason: they fail the report.
	Idle []string
	Dead map[string]string
	// Expected are paths of the host that the team's manifest says are there, beside
	// those of its agents.
	Expected []string
	// Notes are what a reader has to know beside the rows.
	Notes []string
	// Attacks narrows the table; nil means all of it.
	Attacks []Attack
	// Missing are layers that this host was accepted without, and why: their
	// attacks are not run.
	Missing map[deny.Layer]string
	// Decoys is nil when no controls are wanted.
	Decoys Decoys
	// Progress may be nil.
	Progress func(string)
}

// parallel bounds how many probes run at once: each is a process.
const parallel = 4

// patience bounds one probe, above the probe's own limit.
const patience = 130 * time.Second

// Run attacks from every agent of Only (all, when it is empty) and runs the
// controls. The error is for what kept it from attacking at all; everything
// that came of an attack is in the report. Unlike an error, a report may be
// bad: see [Report.OK].
func Run(ctx context.Context, h Host, q Request) (*Report, error) {
	if len(q.Agents) == 0 {
		return nil, fmt.Errorf("evidence: team %s has no running agent to attack from: start it with 'bulkhead up'", q.Team)
	}
	if q.Attacks == nil {
		q.Attacks = Attacks()
	}
	r := &Report{SchemaVersion: SchemaVersion, Team: q.Team, Agents: []string{}, Notes: q.Notes, Rows: []Row{}, Controls: Controls{Rows: []ControlRow{}}, Library: describe(q.Attacks)}
	for _, name := range q.Only {
		if !slices.ContainsFunc(q.Agents, func(a Agent) bool { return a.Name == name }) {
			return nil, fmt.Errorf("evidence: team %s has no agent %q", q.Team, name)
		}
	}
	begin := time.Now()
	since := func() float64 {
		s := time.Since(begin).Seconds()
		begin = time.Now()
		return s
	}
	rows, absent, err := attackAll(ctx, h, q, r)
	if err != nil {
		return nil, err
	}
	r.Rows, r.LeftOut = rows, leftOut(absent, q.Attacks)
	r.Seconds.Attacks = since()
	for _, name := range q.Idle {
		for _, p := range Positions()[:3] { // that every agent has
			r.Rows = append(r.Rows, Row{Agent: name, Position: p, Attack: "none", Verdict: NotRun, Evidence: "the agent does not run"})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(q.Dead)) {
		r.Rows = append(r.Rows, Row{Agent: name, Position: FromRuntime, Attack: "none", Verdict: Unproven, Evidence: "it should run, and does not: " + q.Dead[name]})
	}
	if q.Decoys != nil {
		if q.Progress != nil {
			q.Progress("running controls in decoys")
		}
		rows, err := q.Decoys.Controls(ctx, q.Attacks)
		if err != nil {
			return nil, fmt.Errorf("evidence: controls: %w", err)
		}
		r.Controls.Rows, r.Seconds.Controls = rows, since()
		if q.Progress != nil {
			q.Progress("taking too much in decoys")
		}
		if r.Exhaustion, err = q.Decoys.Exhaustion(ctx); err != nil {
			return nil, fmt.Errorf("evidence: exhaustion: %w", err)
		}
		r.Seconds.Exhaustion = since()
		r.Library = append(r.Library, describe(Exhaustion())...)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.count()
	return r, nil
}

// place is one position of one agent, from which one probe makes everything.
type place struct {
	from Agent
	p    Position
}

// attackAll makes every attack of every agent that is to be attacked from.
func attackAll(ctx context.Context, h Host, q Request, r *Report) ([]Row, []absence, error) {
	var places []place
	attackers := slices.Clone(q.Agents)
	if len(q.Only) == 0 {
		attackers = append(attackers, q.Servers...)
	}
	for _, from := range attackers {
		if len(q.Only) > 0 && !slices.Contains(q.Only, from.Name) {
			continue
		}
		if !from.Server {
			r.Agents = append(r.Agents, from.Name)
			if from.Guest {
				r.Guests = append(r.Guests, from.Name)
			}
		}
		for _, p := range Positions() {
			if from.has(p) {
				places = append(places, place{from, p})
			}
		}
	}
	attackers = slices.DeleteFunc(attackers, func(a Agent) bool { return len(q.Only) > 0 && !slices.Contains(q.Only, a.Name) })
	rows, absent, errs := make([][]Row, len(places)), make([][]absence, len(places)), make([]error, len(places))
	var wait sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for i, pl := range places {
		slots <- struct{}{}
		if q.Progress != nil && (pl.p == Positions()[0] || pl.p == FromServer) {
			q.Progress("attacking from " + pl.from.Name)
		}
		wait.Go(func() {
			defer func() { <-slots }()
			rows[i], absent[i], errs[i] = attackFrom(ctx, h, q, pl)
		})
	}
	wait.Wait()
	return slices.Concat(rows...), append(slices.Concat(absent...), nowhereFrom(attackers, q.Attacks)...), errors.Join(errs...)
}

// attackFrom makes every attack from one place, and says what is left out.
func attackFrom(ctx context.Context, h Host, q Request, pl place) ([]Row, []absence, error) {
	bait, err := newBait()
	if err != nil {
		return nil, nil, err
	}
	defer bait.close()
	from := pl.from
	from.Foreign = q.foreign(from, pl.p)
	var rows []Row
	var asked []asking
	var of []int // the row of each
	var absent []absence
	expected := q.expected()
	for _, a := range q.Attacks {
		if !slices.Contains(a.From, pl.p) {
			continue
		}
		targets := []Agent{from}
		if a.At == AtOthers {
			if targets = append(targetsOf(from, q.Agents), a.neighboursOf(from, q)...); len(targets) == 0 {
				absent = append(absent, absence{a.ID, from.Name, "there is no other agent"})
			}
		}
		if a.At == AtNext {
			if targets = nextTo(from, q.Agents); len(targets) == 0 {
				absent = append(absent, absence{a.ID, from.Name, "there is no other agent"})
			}
		}
		for _, at := range targets {
			row := Row{Agent: from.Name, Position: pl.p, Attack: a.ID, Layer: a.Layer, Verdict: Unproven}
			if a.At != AtNobody {
				row.Target = at.Name
			}
			one := asking{a: a}
			if who, why := a.absent(from, at); why != "" {
				absent = append(absent, absence{a.ID, who, why})
				continue
			}
			one.q = request(a, from, at, bait.world, from.own(pl.p))
			why, v := a.impossible(from, at, bait.world, expected, &one.q)
			switch {
			case v == leftOutVerdict:
				absent = append(absent, absence{a.ID, at.Name, why})
				continue
			case why != "":
				row.Verdict, row.Evidence = v, why
			default:
				asked, of = append(asked, one), append(of, len(rows))
			}
			rows = append(rows, row)
		}
	}
	results := ask(asked, func(batch []byte) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return h.Probe(ctx, from.Name, pl.p, batch)
	})
	for i, res := range results {
		row := &rows[of[i]]
		row.Verdict, row.Evidence = judge(res.Answer, res.Err, asked[i].a.Witness())
	}
	bait.overrule(asked, of, rows)
	for i := range rows {
		rows[i].takenFrom(from.Taken)
		rows[i].allowFor(q.Missing)
	}
	return rows, absent, nil
}

// aimedAt bounds at how many guests, and at how many agents of other teams, each
// attacker aims: rows grow with the square of the agents.
const aimedAt = 4

// neighboursOf are the agents of other teams at which one attacker aims: those
// that follow its own place, so that each of them is somebody's target. Teams
// share the host and nothing else; what aims by names within a team has no other.
func (a Attack) neighboursOf(from Agent, q Request) []Agent {
	if len(q.Neighbours) == 0 || a.Layer != deny.LayerAccount && a.Attempt != "socket.connect" {
		return nil
	}
	i := max(slices.IndexFunc(q.Agents, func(o Agent) bool { return o.Name == from.Name }), 0) * aimedAt % len(q.Neighbours)
	return slices.Concat(q.Neighbours[i:], q.Neighbours[:i])[:min(aimedAt, len(q.Neighbours))]
}

// nextTo is the agent that follows one among all; none when there is no other.
func nextTo(from Agent, all []Agent) []Agent {
	i := slices.IndexFunc(all, func(o Agent) bool { return o.Name == from.Name })
	if len(all) < 2 || i < 0 {
		return nil
	}
	return []Agent{all[(i+1)%len(all)]}
}

// targetsOf are at whom one attacker aims: all other agents of the manifest, and
// of guests those that follow it, so that each of them is somebody's target.
func targetsOf(from Agent, all []Agent) []Agent {
	var out, guests []Agent
	place := 0
	for i, o := range all {
		switch {
		case o.Name == from.Name && !from.Server:
			place = i
			if o.Guest {
				place = len(guests)
			}
		case o.Guest:
			guests = append(guests, o)
		default:
			out = append(out, o)
		}
	}
	if len(guests) > aimedAt {
		if !from.Guest {
			place *= aimedAt
		}
		place %= len(guests)
		guests = append(guests[place:len(guests):len(guests)], guests[:place]...)[:aimedAt]
	}
	return append(out, guests...)
}

// foreign are the tokens that must not be found at one place: those of all others,
// and of its own agent's those that this part of it is not given.
func (q *Request) foreign(from Agent, p Position) []string {
	var out []string
	for _, o := range slices.Concat(q.Agents, q.Neighbours) {
		own := o.Name == from.Name && !from.Server
		for _, sum := range o.Tokens {
			if !own || p != FromGateway && (p != FromRuntime || !slices.Contains(o.Shown, sum)) {
				out = append(out, sum)
			}
		}
	}
	return out
}

// expected are the paths that should be there.
func (q *Request) expected() map[string]bool {
	out := map[string]bool{}
	for _, p := range q.Expected {
		out[p] = true
	}
	for _, a := range slices.Concat(q.Agents, q.Neighbours) {
		for _, p := range a.Expected {
			out[p] = true
		}
	}
	return out
}

// leftOutVerdict is of a row that is none.
const leftOutVerdict Verdict = "left out"

// impossible says why an attack cannot be made at all, and what its row then
// proves. It leaves in the request what there is to aim at.
func (a Attack) impossible(from, at Agent, w World, expected map[string]bool, q *attempt.Request) (why string, v Verdict) {
	if a.Lacks != nil {
		if why := a.Lacks(from, w); why != "" {
			return why, NotRun
		}
	}
	if a.OnlyThere {
		wanted := q.Paths
		q.Paths = nil
		for _, p := range wanted {
			if _, err := os.Lstat(p); err == nil {
				q.Paths = append(q.Paths, p)
			} else if expected[p] {
				return p + " should be there, as the manifest says, and is not", Unproven
			}
		}
		switch {
		case len(q.Paths) > 0:
		case a.None != "":
			return a.None, leftOutVerdict
		default:
			return "nothing is there of what every agent has: " + strings.Join(wanted, ", "), Unproven
		}
	}
	if a.At != AtNobody {
		if err := stands(a, at); err != nil {
			return err.Error(), Unproven
		}
	}
	return "", ""
}

// absent is Absent, and what goes for all attacks by the dialer.
func (a Attack) absent(from, at Agent) (who, why string) {
	switch {
	case from.Dialer == "" && strings.HasPrefix(a.Attempt, "dialer."):
		return from.Name, "it has no dialer: nothing is listed for it"
	case a.Absent != nil:
		return a.Absent(from, at)
	}
	return "", ""
}

// lacking says why an attack cannot be made from one agent on another.
func (a Attack) lacking(from, at Agent, w World) string {
	if _, why := a.absent(from, at); why != "" {
		return why
	}
	if a.Lacks != nil {
		return a.Lacks(from, w)
	}
	return ""
}

// allowFor takes back a success where the layer is not whole: it is no surprise
// there. What was refused all the same, by the rest of the layer, stays denied.
func (r *Row) allowFor(missing map[deny.Layer]string) {
	why, ok := missing[r.Layer]
	if ok && r.Verdict == Succeeded {
		r.Verdict, r.Evidence = NotRun, "layer "+string(r.Layer)+" is not in force here: "+why+"; it was tried, and succeeded: "+r.Evidence
	}
}

// takenFrom is allowFor where an agent's own manifest makes the attack possible,
// or makes its answer say nothing about this host's kernel.
func (r *Row) takenFrom(taken []Taken) {
	for _, t := range taken {
		if t.Attack != r.Attack || t.Position != r.Position {
			continue
		}
		switch r.Verdict {
		case Succeeded:
			r.Verdict, r.Evidence = NotRun, t.Why+"; it was tried, and succeeded: "+r.Evidence
		case Unproven:
			r.Verdict, r.Evidence = NotRun, t.Why+"; it was tried, and nothing is known: "+r.Evidence
		}
	}
}

// asking is one attempt that a probe is asked for.
type asking struct {
	a Attack
	q attempt.Request
}

// request aims an attack. own are the attacker's ids as it sees them itself.
func request(a Attack, from, at Agent, w World, own []attempt.Span) attempt.Request {
	q := a.Aim(from, at, w)
	q.Version, q.Nonce, q.Attempt = attempt.Version, rand.Text(), a.Attempt
	q.Own, q.Spare = own, w.Spare
	return q
}

// ask sends one batch and checks the answers; there is one result for each.
func ask(list []asking, probe func([]byte) ([]byte, error)) []attempt.Result {
	b := attempt.Batch{Version: attempt.Version, Attempts: []attempt.Request{}}
	for _, one := range list {
		b.Attempts = append(b.Attempts, one.q)
	}
	raw, err := json.Marshal(b)
	var said []byte
	if err == nil {
		said, err = probe(raw)
	}
	out := attempt.ParseAnswers(said, b)
	for i := range out {
		if out[i].Err != nil && err != nil {
			out[i].Err = fmt.Errorf("%w: %w", attempt.ErrLost, err)
		}
	}
	return out
}

// stands checks that the target is really there: an attack on what does not
// exist is refused everywhere.
func stands(a Attack, at Agent) error {
	if strings.HasPrefix(a.Attempt, "process.") {
		for _, pid := range at.PIDs {
			if unix.Kill(pid, 0) == nil {
				return nil
			}
		}
		return fmt.Errorf("agent %s has no running process to aim at", at.Name)
	}
	return nil
}
