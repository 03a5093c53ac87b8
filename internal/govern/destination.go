package govern

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/record"
	"bulkhead/internal/sqlite"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
	"bulkhead/internal/wire"
)

// Egress stands for a tool in grants of destinations; their scope is host:port. No tool
// has this name.
const Egress = "egress"

// maxWhy bounds what a person says of a denial, in bytes.
const maxWhy = 1024

// denied is how long a destination that a person denied is not asked for again.
const denied = time.Hour

var questions = [][]string{{
	`CREATE TABLE question (
		target TEXT PRIMARY KEY, -- host:port
		id     TEXT NOT NULL UNIQUE,
		since  INTEGER NOT NULL, -- ms since 1970
		until  INTEGER NOT NULL, -- it is over, or its denial is
		denied INTEGER NOT NULL, -- 1: a person said no
		why    TEXT NOT NULL     -- and why, in that person's words
	) STRICT, WITHOUT ROWID`,
}}

// Destinations keeps a person before destinations (ask.egress). What is not granted is
// refused, and asked for once. Its methods may be called concurrently.
type Destinations struct {
	Team    string
	Agent   string
	Book    *Book
	Expire  time.Duration       // of a question
	Waiting int                 // open questions at a time
	Tell    func(record.Record) // hears of each question and decision

	mu   sync.Mutex // guards open, and deciding whether a new connection may stay in it
	open map[*granted]bool
}

// OpenDestinations makes the tables of d.
func OpenDestinations(ctx context.Context, d *Destinations) error {
	d.open = map[*granted]bool{}
	return d.Book.store.Migrate(ctx, "destinations", questions)
}

// Dial connects to a destination by f when a grant covers it. The connection is closed
// when none does any more. Without a grant nothing is looked up or dialled.
func (d *Destinations) Dial(ctx context.Context, host dial.Host, port uint16, f func() (net.Conn, error)) (net.Conn, error) {
	to := dial.Target(host, port)
	if _, ok := d.Book.Find(Asked{Tool: Egress, Scope: to}); !ok {
		return nil, d.ask(ctx, to)
	}
	c, err := f()
	if err != nil {
		return nil, err
	}
	g := &granted{Conn: c, to: to, of: d}
	d.mu.Lock()
	d.open[g] = true
	d.mu.Unlock()
	d.look(g) // the grant may have ended meanwhile
	return g, nil
}

// Granted says whether a grant covers host:port, without using it.
func (d *Destinations) Granted(to string) bool {
	_, ok := d.Book.end(Asked{Tool: Egress, Scope: to})
	return ok
}

// Ask refuses a destination, and has a person asked.
func (d *Destinations) ask(ctx context.Context, to string) error {
	var id, why string
	var no, first bool
	err := d.Book.store.Update(ctx, func(t *store.Tx) error {
		now := t.Now()
		if _, err := t.Exec("DELETE FROM question WHERE until <= ?", now.UnixMilli()); err != nil {
			return err
		}
		if err := t.Query("SELECT id, denied, why FROM question WHERE target = ?", func(row []sqlite.Value) error {
			id, no, why = sqlite.Text(row[0]), sqlite.Int(row[1]) != 0, sqlite.Text(row[2])
			return nil
		}, to); err != nil || id != "" {
			return err
		}
		n, err := t.Int("SELECT count(*) FROM question WHERE denied = 0")
		if err != nil {
			return err
		}
		if int(n) >= d.Waiting {
			return refuse(deny.EgressApproval, to, fmt.Sprintf("a person approves this destination first, and %d others wait already", n), "try again when some are decided (`bulkhead approvals`)")
		}
		id, first = NewID("e"), true
		_, err = t.Exec("INSERT INTO question (target, id, since, until, denied, why) VALUES (?, ?, ?, ?, 0, '')", to, id, now.UnixMilli(), now.Add(d.Expire).UnixMilli())
		return err
	})
	if err != nil {
		return err
	}
	if no {
		said := "a person denied this destination within the last hour"
		if why != "" {
			said += ": " + why
		}
		return refuse(deny.EgressDisapproved, to, said, "go on without it")
	}
	r := refuse(deny.EgressApproval, to, "a person approves this destination first (ask.egress); "+id+" waits for one", "try again later: an operator says `bulkhead approve AGENT "+id+" --session`")
	if first {
		d.Tell(record.Record{Kind: record.Approval, Verdict: record.Started, Target: to, Detail: id + " waits for a person: `sudo bulkhead approvals`"})
	}
	return r
}

func refuse(code deny.Code, to, why, mend string) *deny.Reason {
	return &deny.Reason{Layer: deny.LayerEgress, Code: code, What: to, Why: why, Mend: mend}
}

// Approvals gives the open questions, the oldest first; with an id, that one alone.
func (d *Destinations) Approvals(ctx context.Context, id string) (out []wire.Approval, err error) {
	err = d.Book.store.View(ctx, func(t *store.Tx) error {
		return t.Query("SELECT id, target, since, until FROM question WHERE denied = 0 AND until > ? AND (? = '' OR id = ?) ORDER BY since, id", func(row []sqlite.Value) error {
			out = append(out, wire.Approval{
				ID: sqlite.Text(row[0]), Tool: Egress, Step: 1, Steps: 1, Scope: sqlite.Text(row[1]),
				Since: time.UnixMilli(sqlite.Int(row[2])).UTC(), Until: time.UnixMilli(sqlite.Int(row[3])).UTC(), Given: []wire.Given{},
			})
			return nil
		}, t.Now().UnixMilli(), id, id)
	})
	return out, err
}

// Decide takes a person's word. There is nothing to carry out, so an approval says how
// long its grant lasts.
func (d *Destinations) Decide(ctx context.Context, q wire.DecideRequest) (wire.DecideResult, error) {
	res := wire.DecideResult{Agent: q.Agent, ID: q.ID, Tool: Egress, Approved: q.Approve, State: "disapproved"}
	if q.Approve && (q.Kind == "" || q.Kind == wire.PermitOnce || q.Exact || q.Wide) {
		return res, tool.Refuse(deny.ToolInvalid, q.ID, "a destination is approved as it is and for a time: what asked for it was refused already, and is not done again", "say --session, --for 1h or --always")
	}
	to, again := "", false
	if q.Approve {
		// The same word again is answered with what came of it.
		for _, p := range d.Book.List() {
			if p.Tool == Egress && p.Execution == q.ID {
				res.Grant, res.State = &p, "granted"
				return res, nil
			}
		}
	}
	grant, err := d.Book.Decide(ctx, func(t *store.Tx) (*wire.Permit, error) {
		to, again = "", false
		if err := t.Query("SELECT target, denied FROM question WHERE id = ? AND until > ?", func(row []sqlite.Value) error {
			to, again = sqlite.Text(row[0]), sqlite.Int(row[1]) != 0
			return nil
		}, q.ID, t.Now().UnixMilli()); err != nil {
			return nil, err
		}
		if again && !q.Approve {
			return nil, nil
		}
		if to == "" || again {
			return nil, tool.Refuse(deny.ToolMissing, clip(q.ID), "no destination waits under this id", "`bulkhead approvals` shows what waits")
		}
		t.Record(d.decided(t.Now(), to, q))
		if !q.Approve {
			_, err := t.Exec("UPDATE question SET denied = 1, until = ?, why = ? WHERE id = ?", t.Now().Add(denied).UnixMilli(), strings.ToValidUTF8(q.Reason[:min(len(q.Reason), maxWhy)], ""), q.ID)
			return nil, err
		}
		p, reason := NewPermit(q, Asked{Tool: Egress, Scope: to}, q.ID, t.Now())
		if reason != nil {
			return nil, reason
		}
		_, err := t.Exec("DELETE FROM question WHERE id = ?", q.ID)
		return p, err
	})
	if err != nil || again {
		return res, err
	}
	if q.Approve {
		res.Grant, res.State = grant, "granted"
	}
	d.Tell(d.decided(d.Book.now(), to, q))
	return res, nil
}

// decided is the record of a person's word.
func (d *Destinations) decided(at time.Time, to string, q wire.DecideRequest) record.Record {
	verdict, word := record.Denied, "denied"
	if q.Approve {
		verdict, word = record.Allowed, "approved"
	}
	return record.Record{
		SchemaVersion: record.SchemaVersion, Time: at.UTC(), Team: d.Team, Agent: d.Agent, Kind: record.Approval, Verdict: verdict, Target: to,
		Detail: fmt.Sprintf("%s %s by the operator with user id %d", q.ID, word, q.By),
	}
}

// Sweep closes the connections that no grant covers any more.
func (d *Destinations) Sweep() {
	d.mu.Lock()
	all := make([]*granted, 0, len(d.open))
	for g := range d.open {
		all = append(all, g)
	}
	d.mu.Unlock()
	for _, g := range all {
		d.look(g)
	}
}

// look closes g, or looks again when its grant ends.
func (d *Destinations) look(g *granted) {
	until, ok := d.Book.end(Asked{Tool: Egress, Scope: g.to})
	if !ok {
		_ = g.Close()
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
	if d.open[g] && !until.IsZero() {
		g.timer = time.AfterFunc(max(until.Sub(d.Book.now()), 0), func() { d.look(g) })
	}
}

// granted is a connection that a grant lets be.
type granted struct {
	net.Conn
	to    string
	of    *Destinations
	timer *time.Timer // guarded by of.mu
}

// Close implements net.Conn.
func (g *granted) Close() error {
	g.of.mu.Lock()
	delete(g.of.open, g)
	if g.timer != nil {
		g.timer.Stop()
	}
	g.of.mu.Unlock()
	return g.Conn.Close()
}

// CloseWrite ends one direction.
func (g *granted) CloseWrite() error {
	if c, ok := g.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return g.Close()
}

// SyscallConn implements syscall.Conn, for splicing.
func (g *granted) SyscallConn() (syscall.RawConn, error) {
	if c, ok := g.Conn.(syscall.Conn); ok {
		return c.SyscallConn()
	}
	return nil, syscall.EINVAL
}
