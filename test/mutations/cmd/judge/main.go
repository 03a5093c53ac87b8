// Command judge takes measures away one by one and says who noticed; see
// package mutations. It reads a plan and writes its answers as JSON, and has to
// run as root in a throwaway host.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/evidence"
	"bulkhead/internal/host/nft"
	"bulkhead/internal/layout"
	"bulkhead/internal/prove"
	"bulkhead/test/mutations"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "judge:", err)
		os.Exit(1)
	}
}

// judge keeps what is the same for every mutant.
type judge struct {
	plan   mutations.Plan
	dir    string // of the names of the mutated program
	root   string // of containers
	groups *cgroup.Tree
	table  *nft.Table
	bit    map[string]bool // controls that bite, and attacks that are denied, without a mutation
	held   map[string]bool // statements that hold
	count  int
}

// agent is whom the containers are of.
var agent = prove.Agent{Name: "a", Account: "bh-mutant-a", IDs: layout.IDs{Account: 910_000_000, Dialer: 910_000_001, Base: 910_000_000 + layout.RangeSize}}

// front and quiet are servers: one that listens, and one without any network.
var (
	front = prove.Agent{
		Name: "front", Account: "bh-mutant-front", IDs: layout.IDs{Account: 910_000_200}, Server: true,
		Listen: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8484")},
	}
	quiet = prove.Agent{Name: "audit", Account: "bh-mutant-audit", IDs: layout.IDs{Account: 910_000_100}, Server: true}
)

func run(ctx context.Context) error {
	j := &judge{dir: "/run/mutants", root: "/var/lib/mutants/root"}
	if err := json.NewDecoder(os.Stdin).Decode(&j.plan); err != nil {
		return err
	}
	unix.Umask(0o022)
	for _, d := range []string{j.dir, j.root, "/run/bulkhead"} {
		if err := os.MkdirAll(d, 0o755); err != nil { // #nosec G301 -- for every id
			return err
		}
	}
	for _, d := range []string{"etc", "tmp", "proc", "dev", "sys", "programs"} {
		if err := os.MkdirAll(filepath.Join(j.root, d), 0o755); err != nil { // #nosec G301 -- as above
			return err
		}
	}
	var err error
	if j.groups, err = cgroup.Open(cgroup.RootName); err != nil {
		return err
	}
	if j.table, err = nft.Open(); err != nil {
		return err
	}
	defer j.table.Close()
	if err := j.table.Apply(ctx, nft.Want{
		Agents:  []nft.Binding{{Account: agent.Account, IDs: agent.IDs}},
		Servers: []nft.Server{{ID: front.IDs.Account, Listen: front.Listen}}, Refused: []nft.Range{{First: quiet.IDs.Account, Last: quiet.IDs.Account}},
	}); err != nil {
		return err
	}
	out := []mutations.Noticed{}
	whole, err := j.whole(ctx)
	if err != nil {
		return err
	}
	out = append(out, whole)
	all, err := j.each(ctx)
	if err != nil {
		return err
	}
	out = append(out, all...)
	more, err := j.rules(ctx)
	if err != nil {
		return err
	}
	opened, err := j.modes(ctx)
	if err != nil {
		return err
	}
	held, err := j.sockets(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(slices.Concat(out, more, opened, held))
}

// program names the mutated program after a mutant, by which it knows.
func (j *judge) program(id string) (string, error) {
	p := filepath.Join(j.dir, id)
	return p, os.Symlink(j.plan.Subject, p)
}

// whole runs everything without a mutation.
func (j *judge) whole(ctx context.Context) (mutations.Noticed, error) {
	n := mutations.Noticed{ID: mutations.Whole, Verify: []string{}, Prove: []string{}}
	var all []string
	for _, m := range j.plan.Mutants {
		all = append(all, m.Attacks...)
	}
	p, err := j.program(n.ID)
	if err != nil {
		return n, err
	}
	controls, rows, err := j.decoys(ctx, p, all)
	if err != nil {
		return n, err
	}
	j.bit, j.held = map[string]bool{}, map[string]bool{}
	for _, c := range controls {
		switch {
		case c.Bit:
			j.bit[control(c)] = true
		case c.NotRun != "":
			n.Lacks = append(n.Lacks, c.Attack)
		default:
			n.Verify = append(n.Verify, fmt.Sprintf("%s: with it: %s; without: %s", control(c), c.On, c.Without))
		}
	}
	for _, r := range rows {
		switch r.Verdict {
		case evidence.Denied:
			j.bit[row(r)] = true
		case evidence.NotRun:
		default:
			n.Verify = append(n.Verify, fmt.Sprintf("%s from %s: %s: %s", r.Attack, r.Position, r.Verdict, r.Evidence))
		}
	}
	for _, role := range []string{"runtime", "gateway", "run", "service"} {
		statements, err := j.statements(ctx, p, role)
		if err != nil {
			return n, err
		}
		for _, s := range statements {
			j.held[role+s.ID] = s.Holds
			if !s.Holds && s.ID != "modes" && s.ID != "sockets" { // of which these containers have none: see modes
				n.Prove = append(n.Prove, fmt.Sprintf("%s of a %s: %v", s.ID, role, s.Against))
			}
		}
	}
	n.Lacks = slices.Compact(n.Lacks)
	return n, nil
}

func control(c evidence.ControlRow) string {
	return fmt.Sprintf("%s, control of %s from %s", c.Attack, c.Mechanism, c.Position)
}

func row(r evidence.Row) string { return r.Attack + " from a whole " + string(r.Position) }

// each takes one measure away after the other. Decoys and containers do not
// share anything, so both go on at the same time.
func (j *judge) each(ctx context.Context) ([]mutations.Noticed, error) {
	out := make([]mutations.Noticed, len(j.plan.Mutants))
	programs := make([]string, len(out))
	for i, m := range j.plan.Mutants {
		out[i] = mutations.Noticed{ID: m.ID, Verify: []string{}, Prove: []string{}}
		var err error
		if programs[i], err = j.program(m.ID); err != nil {
			return nil, err
		}
	}
	var proving sync.WaitGroup
	proving.Go(func() {
		for i, m := range j.plan.Mutants {
			j.proved(ctx, m, programs[i], &out[i])
		}
	})
	var errs []error
	for i, m := range j.plan.Mutants {
		if err := j.verified(ctx, m, programs[i], &out[i]); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", m.ID, err))
		}
	}
	proving.Wait()
	return out, errors.Join(errs...)
}

// verified fills in by which attacks verify notices.
func (j *judge) verified(ctx context.Context, m mutations.Mutant, program string, n *mutations.Noticed) error {
	if len(m.Attacks) == 0 {
		return nil
	}
	controls, rows, err := j.decoys(ctx, program, m.Attacks)
	if err != nil {
		return err
	}
	// Only what went through counts: a decoy that did not even start proves
	// nothing about who watches.
	for _, c := range controls {
		if j.bit[control(c)] && !c.Bit && strings.Contains(c.On, "WENT THROUGH") {
			n.Verify = append(n.Verify, c.Attack)
		}
	}
	for _, r := range rows {
		if j.bit[row(r)] && r.Verdict == evidence.Succeeded {
			n.Verify = append(n.Verify, r.Attack)
		}
	}
	slices.Sort(n.Verify)
	n.Verify = slices.Compact(n.Verify)
	return nil
}

// proved fills in by which statements prove notices.
func (j *judge) proved(ctx context.Context, m mutations.Mutant, program string, n *mutations.Noticed) {
	statements, err := j.statements(ctx, program, m.Role)
	if err != nil {
		n.Start = err.Error()
		return
	}
	for _, s := range statements {
		if j.held[m.Role+s.ID] && !s.Holds {
			n.Prove = append(n.Prove, s.ID)
		}
	}
}

// decoys runs the controls of some attacks in a decoy host of a program.
func (j *judge) decoys(ctx context.Context, program string, ids []string) ([]evidence.ControlRow, []evidence.Row, error) {
	d := &evidence.DecoyHost{Self: program, Programs: j.plan.Programs, FirstID: 900_000_000, Scratch: "/run/bulkhead/decoy", CgroupRoot: cgroup.RootName}
	others := func(a evidence.Attack) bool { return !slices.Contains(ids, a.ID) }
	var controls []evidence.ControlRow
	var rows []evidence.Row
	if attacks := slices.DeleteFunc(evidence.Attacks(), others); len(attacks) > 0 {
		var err error
		if controls, rows, err = d.Whole(ctx, attacks); err != nil {
			return nil, nil, err
		}
	}
	if attacks := slices.DeleteFunc(evidence.Exhaustion(), others); len(attacks) > 0 {
		more, err := d.ExhaustionOf(ctx, attacks)
		if err != nil {
			return nil, nil, err
		}
		for _, r := range more {
			controls = append(controls, r.ControlRow)
		}
	}
	return controls, rows, nil
}
