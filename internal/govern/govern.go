// Package govern keeps which calls of an agent's tools a person has to approve, and
// the grants that persons gave.
//
// # What a grant covers
//
// A grant is for one tool and one caller: the agent itself, or one token of control's.
// It may be bound to the destination of the input (tool.Tool.Scope), or to the very
// input. It lasts for a session, a time, or until it is revoked. An approval of one call
// alone makes no grant: it belongs to the execution of that call.
//
// A session is that of the runtime: it ends when a connection of its shim ends by which
// the gateway got listeners, which is when the runtime is started anew, and with the
// gateway. A one-off container (`bulkhead run`) has a shim too, whose end ends it as well.
//
// # Where it is kept, and who decides
//
// Grants lie in the agent's system.db (internal/store), table permit. They come from
// [Book.Add] alone, which the gateway calls for root, over a socket that nobody else
// reaches; no tool of the table leads there (docs/decisions/0095).
//
// A gateway that is captured does what it wants with its own tools, with or without a
// grant: this stands between the runtime and the gateway.
package govern

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/sqlite"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
	"bulkhead/internal/wire"
)

// maxPermits bounds the grants of an agent.
const maxPermits = 64

// MaxFor bounds a grant for a time; one for longer is for always.
const MaxFor = 365 * 24 * time.Hour

// Asked is a call, as grants look at it.
type Asked struct {
	Tool   string
	Scope  string // the destination; empty: its tool has none
	Digest string // of the input
	Token  string // of the caller; empty: the agent itself
}

// permit is a grant and how often it was used.
type permit struct {
	wire.Permit
	uses atomic.Int64
}

func (p *permit) covers(a Asked, now time.Time) bool {
	return p.Tool == a.Tool && p.Token == a.Token &&
		(p.Scope == "" || p.Scope == a.Scope) && (p.Digest == "" || p.Digest == a.Digest) &&
		(p.Until.IsZero() || now.Before(p.Until))
}

// Book is the grants of one agent. Its methods may be called concurrently.
type Book struct {
	store *store.Store
	now   func() time.Time

	deciding sync.Mutex // over a change in the store and in list

	mu   sync.RWMutex // guards list; the permits in it do not change
	list []*permit
}

var schema = [][]string{{
	`CREATE TABLE permit (
		id        TEXT PRIMARY KEY,
		tool      TEXT NOT NULL,
		scope     TEXT NOT NULL,    -- destination; empty: any
		digest    TEXT NOT NULL,    -- of the input; empty: any
		token     TEXT NOT NULL,    -- of the caller; empty: the agent itself
		kind      TEXT NOT NULL,    -- session, for, always
		until     INTEGER NOT NULL, -- ms since 1970; 0: no end
		at        INTEGER NOT NULL,
		by        INTEGER NOT NULL, -- user id
		execution TEXT NOT NULL
	) STRICT, WITHOUT ROWID`,
}}

// Open reads the grants. Those of a session are over: the gateway that they belonged
// to has ended.
func Open(ctx context.Context, s *store.Store, now func() time.Time) (*Book, error) {
	b := &Book{store: s, now: now}
	if err := s.Migrate(ctx, "govern", schema); err != nil {
		return nil, err
	}
	err := s.Update(ctx, func(t *store.Tx) error {
		if _, err := t.Exec("DELETE FROM permit WHERE kind = ? OR until > 0 AND until <= ?", wire.PermitSession, t.Now().UnixMilli()); err != nil {
			return err
		}
		b.list = nil
		return t.Query("SELECT id, tool, scope, digest, token, kind, until, at, by, execution FROM permit ORDER BY at, id", func(row []sqlite.Value) error {
			p := &permit{Permit: wire.Permit{
				ID: sqlite.Text(row[0]), Tool: sqlite.Text(row[1]), Scope: sqlite.Text(row[2]), Digest: sqlite.Text(row[3]), Token: sqlite.Text(row[4]),
				Kind: sqlite.Text(row[5]), At: time.UnixMilli(sqlite.Int(row[7])).UTC(), By: uint32(sqlite.Int(row[8])), // #nosec G115 -- was one
				Execution: sqlite.Text(row[9]),
			}}
			if until := sqlite.Int(row[6]); until > 0 {
				p.Until = time.UnixMilli(until).UTC()
			}
			b.list = append(b.list, p)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("grants of tool calls: %w", err)
	}
	return b, nil
}

// Find says which grant covers a call, and uses it.
func (b *Book) Find(a Asked) (by string, ok bool) {
	now := b.now()
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, p := range b.list {
		if p.covers(a, now) {
			p.uses.Add(1)
			return fmt.Sprintf("grant %s of the operator with user id %d", p.ID, p.By), true
		}
	}
	return "", false
}

// end says whether a grant covers a call, without using it, and when the last one that
// does ends; zero: never.
func (b *Book) end(a Asked) (until time.Time, ok bool) {
	now := b.now()
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, p := range b.list {
		switch {
		case !p.covers(a, now):
		case p.Until.IsZero():
			return time.Time{}, true
		case !ok || p.Until.After(until):
			until, ok = p.Until, true
		}
	}
	return until, ok
}

// List gives the grants that are not over, the oldest first.
func (b *Book) List() []wire.Permit {
	now := b.now()
	b.mu.RLock()
	defer b.mu.RUnlock()
	out := []wire.Permit{}
	for _, p := range b.list {
		if p.Until.IsZero() || now.Before(p.Until) {
			one := p.Permit
			one.Uses = p.uses.Load()
			out = append(out, one)
		}
	}
	return out
}

// NewPermit makes the grant that a decision about a call asks for; nil: it is for that
// call alone.
func NewPermit(q wire.DecideRequest, a Asked, execution string, now time.Time) (*wire.Permit, *deny.Reason) {
	p := &wire.Permit{
		ID: NewID("g"), Tool: a.Tool, Scope: a.Scope, Token: a.Token, Kind: q.Kind, At: now.UTC().Truncate(time.Millisecond), By: q.By, Execution: execution,
	}
	invalid := func(why, mend string) (*wire.Permit, *deny.Reason) {
		return nil, tool.Refuse(deny.ToolInvalid, execution, why, mend)
	}
	switch q.Kind {
	case "", wire.PermitOnce:
		if q.Exact || q.Wide {
			return invalid("an approval for one call covers that call alone", "say for how long: --session, --for 1h or --always")
		}
		return nil, nil
	case wire.PermitSession, wire.PermitAlways:
	case wire.PermitFor:
		if q.For < time.Second || q.For > MaxFor {
			return invalid(fmt.Sprintf("%s is not between a second and %s", q.For, MaxFor), "say --for 1h, or --always")
		}
		p.Until = p.At.Add(q.For.Truncate(time.Millisecond))
	default:
		return invalid(fmt.Sprintf("%.20q is no way to approve", q.Kind), "one of once, session, for, always")
	}
	switch {
	case q.Exact && q.Wide:
		return invalid("a grant is either for this very input or for any", "keep one of --exact and --wide")
	case q.Exact:
		p.Digest = a.Digest
	case q.Wide:
		p.Scope = ""
	case p.Scope == "": // without a word it would be for any input
		return invalid("this call has no destination that a grant could be bound to", "say --exact for this very input, --wide for any, or approve this call alone")
	}
	return p, nil
}

// Decide runs f, which changes the store, alone; the grant that it gives is in force
// when Decide returns.
func (b *Book) Decide(ctx context.Context, f func(*store.Tx) (*wire.Permit, error)) (given *wire.Permit, err error) {
	b.deciding.Lock()
	defer b.deciding.Unlock()
	err = b.store.Update(ctx, func(t *store.Tx) error {
		var err error
		if given, err = f(t); err != nil || given == nil {
			return err
		}
		return b.insert(t, given)
	})
	if err != nil || given == nil {
		return nil, err
	}
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := make([]*permit, 0, len(b.list)+1)
	for _, p := range b.list {
		if p.Until.IsZero() || now.Before(p.Until) {
			kept = append(kept, p)
		}
	}
	b.list = append(kept, &permit{Permit: *given})
	return given, nil
}

func (b *Book) insert(t *store.Tx, p *wire.Permit) error {
	if _, err := t.Exec("DELETE FROM permit WHERE until > 0 AND until <= ?", t.Now().UnixMilli()); err != nil {
		return err
	}
	n, err := t.Int("SELECT count(*) FROM permit")
	if err != nil {
		return err
	}
	if n >= maxPermits {
		return tool.Refuse(deny.ToolQuota, p.Tool, fmt.Sprintf("this agent has %d grants of tool calls already", n), "revoke some (`bulkhead grants`, `bulkhead revoke`), or approve this call alone")
	}
	until := int64(0)
	if !p.Until.IsZero() {
		until = p.Until.UnixMilli()
	}
	_, err = t.Exec("INSERT INTO permit (id, tool, scope, digest, token, kind, until, at, by, execution) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		p.ID, p.Tool, p.Scope, p.Digest, p.Token, p.Kind, until, p.At.UnixMilli(), int64(p.By), p.Execution)
	return err
}

// Revoke ends a grant, with a record. No call begins with it once Revoke has returned.
func (b *Book) Revoke(ctx context.Context, id string, r record.Record) error {
	b.deciding.Lock()
	defer b.deciding.Unlock()
	err := b.store.Update(ctx, func(t *store.Tx) error {
		n, err := t.Exec("DELETE FROM permit WHERE id = ?", id)
		if err != nil {
			return err
		}
		if n == 0 {
			return tool.Refuse(deny.ToolMissing, clip(id), "there is no such grant of a tool call", "`bulkhead grants` shows them")
		}
		t.Record(r)
		return nil
	})
	if err != nil {
		return err
	}
	b.drop(func(p *permit) bool { return p.ID == id })
	return nil
}

// EndSession ends the grants of a session.
func (b *Book) EndSession(ctx context.Context) error {
	b.deciding.Lock()
	defer b.deciding.Unlock()
	// First here: what the disk still says ends with the next start at the latest.
	if !b.drop(func(p *permit) bool { return p.Kind == wire.PermitSession }) {
		return nil
	}
	return b.store.Update(ctx, func(t *store.Tx) error {
		_, err := t.Exec("DELETE FROM permit WHERE kind = ?", wire.PermitSession)
		return err
	})
}

func (b *Book) drop(over func(*permit) bool) (dropped bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var kept []*permit
	for _, p := range b.list {
		if over(p) {
			dropped = true
			continue
		}
		kept = append(kept, p)
	}
	b.list = kept
	return dropped
}

// NewID makes an id that a person can type and that is not used again: a letter and
// 40 random bits.
func NewID(kind string) string {
	const letters = "abcdefghijklmnopqrstuvwxyz234567"
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // never fails
	for i := range raw {
		raw[i] = letters[raw[i]%32]
	}
	return kind + string(raw[:])
}

func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}
