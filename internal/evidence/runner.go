package evidence

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
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
	// gateway, or by the launcher's account role. It is called concurrently.
	Probe(ctx context.Context, agent string, from Position, request []byte) (answer []byte, err error)
}

// Decoys runs controls. [DecoyHost] is the real one.
type Decoys interface {
	// Controls runs every control of attacks and returns one row for each.
	Controls(ctx context.Context, attacks []Attack) ([]ControlRow, error)
}

// Request says whom to attack.
type Request struct {
	Team   string
	Agents []Agent // all agents of the team; every one is a target
	Only   []string
	// Idle are agents that do not run: nothing is tried from them, and the
	// report says so.
	Idle []string
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
const patience = 30 * time.Second

// giveUp is how many probes of one position may run out of patience until no
// more are sent: an agent that stops each of them would keep verify for an hour.
const giveUp = 2

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
	r := &Report{SchemaVersion: SchemaVersion, Team: q.Team, Agents: []string{}, Notes: q.Notes, Rows: []Row{}, Controls: Controls{Rows: []ControlRow{}}}
	bait, err := newBait()
	if err != nil {
		return nil, err
	}
	defer bait.close()
	for _, name := range q.Only {
		if !slices.ContainsFunc(q.Agents, func(a Agent) bool { return a.Name == name }) {
			return nil, fmt.Errorf("evidence: team %s has no agent %q", q.Team, name)
		}
	}
	for _, from := range q.Agents {
		if len(q.Only) > 0 && !slices.Contains(q.Only, from.Name) {
			continue
		}
		r.Agents = append(r.Agents, from.Name)
		if q.Progress != nil {
			q.Progress("attacking from " + from.Name)
		}
		r.Rows = append(r.Rows, attackFrom(ctx, h, q, from, bait)...)
	}
	for _, name := range q.Idle {
		for _, p := range Positions() {
			r.Rows = append(r.Rows, Row{Agent: name, Position: p, Attack: "none", Verdict: NotRun, Evidence: "the agent does not run"})
		}
	}
	if q.Decoys != nil {
		if q.Progress != nil {
			q.Progress("running controls in decoys")
		}
		rows, err := q.Decoys.Controls(ctx, q.Attacks)
		if err != nil {
			return nil, fmt.Errorf("evidence: controls: %w", err)
		}
		r.Controls.Rows = rows
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.count()
	return r, nil
}

// attackFrom makes every attack of one agent.
func attackFrom(ctx context.Context, h Host, q Request, from Agent, bait *bait) []Row {
	var rows []Row
	var aims []func(*Row)
	for _, p := range Positions() {
		var slow atomic.Int32 // probes from here that did not end
		for _, a := range q.Attacks {
			if !slices.Contains(a.From, p) {
				continue
			}
			targets := []Agent{from}
			if a.At == AtOthers {
				targets = slices.DeleteFunc(slices.Clone(q.Agents), func(o Agent) bool { return o.Name == from.Name })
			}
			for _, at := range targets {
				row := Row{Agent: from.Name, Position: p, Attack: a.ID, Layer: a.Layer}
				if a.At == AtOthers {
					row.Target = at.Name
				}
				rows = append(rows, row)
				aims = append(aims, func(row *Row) { attackOnce(ctx, h, q, a, from, at, bait, row, &slow) })
			}
		}
	}
	var wait sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for i := range rows {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			aims[i](&rows[i])
		})
	}
	wait.Wait()
	return rows
}

// attackOnce makes one attempt and fills its row.
func attackOnce(ctx context.Context, h Host, q Request, a Attack, from, at Agent, bait *bait, row *Row, slow *atomic.Int32) {
	defer row.allowFor(q.Missing)
	defer row.takenFrom(from.Taken)
	if a.At == AtOthers {
		if err := stands(a, at); err != nil {
			row.Verdict, row.Evidence = Unproven, err.Error()
			return
		}
	}
	before := bait.taken.Load()
	answer, err := ask(a, from, at, bait.world, from.own(row.Position), func(request []byte) ([]byte, error) {
		if n := slow.Load(); n >= giveUp {
			return nil, fmt.Errorf("not tried: %d probes from here did not end; something stops them", n)
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		raw, err := h.Probe(ctx, from.Name, row.Position, request)
		if ctx.Err() != nil {
			slow.Add(1)
		}
		return raw, err
	})
	row.Verdict, row.Evidence = judge(answer, err, a.Witness())
	if (a.ID == "net.loopback" || a.ID == "dialer.aim") && bait.taken.Load() != before {
		// The listener is the witness that no probe can talk away.
		row.Verdict, row.Evidence = Succeeded, "the host's own listener was reached; the probe said: "+row.Evidence
	}
}

// allowFor takes back a success where the layer is not whole: it is no surprise
// there. What was refused all the same, by the rest of the layer, stays denied.
func (r *Row) allowFor(missing map[deny.Layer]string) {
	why, ok := missing[r.Layer]
	if ok && r.Verdict == Succeeded {
		r.Verdict, r.Evidence = NotRun, "layer "+string(r.Layer)+" is not in force here: "+why+"; it was tried, and succeeded: "+r.Evidence
	}
}

// takenFrom is allowFor where an agent's own manifest makes the attack possible.
func (r *Row) takenFrom(taken []Taken) {
	for _, t := range taken {
		if t.Attack == r.Attack && t.Position == r.Position && r.Verdict == Succeeded {
			r.Verdict, r.Evidence = NotRun, t.Why+"; it was tried, and succeeded: "+r.Evidence
		}
	}
}

// ask sends one request and checks the answer. own are the attacker's ids as
// it sees them itself.
func ask(a Attack, from, at Agent, w World, own []attempt.Span, probe func([]byte) ([]byte, error)) (attempt.Answer, error) {
	q := a.Aim(from, at, w)
	q.Version, q.Nonce, q.Attempt = attempt.Version, rand.Text(), a.Attempt
	q.Own, q.Spare = own, w.Spare
	request, err := json.Marshal(q)
	if err != nil {
		return attempt.Answer{}, err
	}
	raw, err := probe(request)
	if err != nil {
		return attempt.Answer{}, fmt.Errorf("%w: %w", attempt.ErrLost, err)
	}
	return attempt.ParseAnswer(raw, q)
}

// stands checks that the target is really there: an attack on what does not
// exist is refused everywhere.
func stands(a Attack, at Agent) error {
	switch a.Attempt {
	case "file.read":
		return anyExists(at.Name, at.Secrets())
	case "socket.connect":
		return anyExists(at.Name, at.Sockets())
	case "process.see", "process.signal", "process.ptrace", "process.memory":
		for _, pid := range at.PIDs {
			if unix.Kill(pid, 0) == nil {
				return nil
			}
		}
		return fmt.Errorf("agent %s has no running process to aim at", at.Name)
	}
	return nil
}

func anyExists(agent string, paths []string) error {
	for _, p := range paths {
		if _, err := os.Lstat(p); err == nil {
			return nil
		}
	}
	return fmt.Errorf("agent %s has none of %v to aim at", agent, paths)
}

// bait is what the runner itself offers on the host for attacks to reach: if
// one is reached, the attack succeeded, whatever the probe says.
type bait struct {
	world    World
	tcp      net.Listener
	abstract net.Listener
	taken    atomic.Int64 // connections to tcp
	wait     sync.WaitGroup
}

func newBait() (*bait, error) {
	spare, err := namespacesHere()
	if err != nil {
		return nil, err
	}
	b := &bait{world: World{
		Unlisted: "203.0.113.11:443", // TEST-NET-3 (RFC 5737): nobody's
		Table:    "bulkhead", Resolvers: hostResolvers("/etc/resolv.conf"), Spare: spare,
	}}
	if b.tcp, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("evidence: listen on the host's loopback: %w", err)
	}
	if b.abstract, err = net.Listen("unix", "@bulkhead-bait-"+rand.Text()); err != nil {
		return nil, errors.Join(fmt.Errorf("evidence: listen on an abstract socket: %w", err), b.tcp.Close())
	}
	b.world.Loopback, b.world.Abstract = b.tcp.Addr().String(), b.abstract.Addr().String()
	b.wait.Go(func() { accept(b.tcp, func() { b.taken.Add(1) }) })
	b.wait.Go(func() { accept(b.abstract, func() {}) })
	return b, nil
}

func (b *bait) close() {
	_ = b.tcp.Close()
	_ = b.abstract.Close()
	b.wait.Wait()
}

// accept takes connections and closes them, until l is closed.
func accept(l net.Listener, taken func()) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		taken()
		_, _ = io.WriteString(c, "bait")
		_ = c.Close()
	}
}

// namespacesHere gives the inode numbers of this process's mount and network
// namespaces, for probes to spare.
func namespacesHere() ([]uint64, error) {
	var out []uint64
	for _, n := range []string{"mnt", "net"} {
		var st unix.Stat_t
		if err := unix.Stat("/proc/self/ns/"+n, &st); err != nil {
			return nil, fmt.Errorf("evidence: namespace %s: %w", n, err)
		}
		out = append(out, st.Ino)
	}
	return out, nil
}
