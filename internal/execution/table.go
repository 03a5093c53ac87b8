package execution

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"bulkhead/internal/deny"
	"bulkhead/internal/sqlite"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
)

// State is that of an execution.
type State string

// The states.
const (
	Queued    State = "queued"
	Running   State = "running"
	Waiting   State = "waiting_for_user"
	Paused    State = "paused"
	Completed State = "completed"
	Partial   State = "partially_completed" // it ended, and some of its steps were done
	Failed    State = "failed"              // it ended, and none was
	Cancelled State = "cancelled"
)

// ended says whether nothing more happens by itself.
func (s State) ended() bool {
	return s == Completed || s == Partial || s == Failed || s == Cancelled
}

// The states of a step.
const (
	pending     = "pending"
	waiting     = "waiting" // for a person
	granted     = "granted" // by one, and not begun
	running     = "running"
	done        = "done"
	failed      = "failed"      // it was refused, or did not work
	disapproved = "disapproved" // a person said no, or nobody decided
	skipped     = "skipped"     // it never began
)

// Bounds of what is kept.
const (
	maxInput  = 1 << 20 // bytes of a step's input
	maxAnswer = 1 << 20 // of its answer
	maxKept   = 1000    // executions
	keptFor   = 7 * 24 * time.Hour
	// refusedFor is how long what a person denied is not asked again.
	refusedFor = time.Hour
	// rowCost is what an execution and a step count beside their contents.
	rowCost = 512
)

var schema = [][]string{{
	`CREATE TABLE execution (
		id      TEXT PRIMARY KEY,
		state   TEXT NOT NULL,
		direct  INTEGER NOT NULL, -- 1: a call that waits for a person
		who     BLOB NOT NULL,    -- tool.Caller, JSON
		token   TEXT NOT NULL,    -- its token; empty: the agent itself
		stop    INTEGER NOT NULL, -- 1: a step that fails ends it
		created INTEGER NOT NULL, -- ms since 1970
		changed INTEGER NOT NULL,
		size    INTEGER NOT NULL, -- that counts towards the quota
		why     TEXT NOT NULL     -- who paused or cancelled it
	) STRICT, WITHOUT ROWID`,
	`CREATE INDEX execution_state ON execution (state, created)`,
	`CREATE TABLE step (
		execution TEXT NOT NULL,
		n         INTEGER NOT NULL, -- from 1
		tool      TEXT NOT NULL,
		input     BLOB NOT NULL,    -- JSON as it was given
		digest    TEXT NOT NULL,    -- of what the input means
		scope     TEXT NOT NULL,
		state     TEXT NOT NULL,
		approved  TEXT NOT NULL,    -- by whom
		expires   INTEGER NOT NULL, -- of a step that waits or is approved, ms since 1970
		began     INTEGER NOT NULL, -- 0: not yet
		over      INTEGER NOT NULL,
		answer    BLOB,             -- JSON
		reason    BLOB,             -- deny.Reason, JSON
		PRIMARY KEY (execution, n)
	) STRICT, WITHOUT ROWID`,
	`CREATE INDEX step_waiting ON step (expires) WHERE state = 'waiting'`,
	`CREATE INDEX step_digest ON step (digest)`,
	`CREATE TABLE refusal (
		digest TEXT NOT NULL,
		token  TEXT NOT NULL,
		until  INTEGER NOT NULL,
		reason BLOB NOT NULL, -- deny.Reason, JSON
		PRIMARY KEY (digest, token)
	) STRICT, WITHOUT ROWID`,
}, {
	`ALTER TABLE execution ADD COLUMN held INTEGER NOT NULL DEFAULT 0`, // 1: an operator paused it
}, {
	`ALTER TABLE step ADD COLUMN undo BLOB`, // what takes it back, the tool's own form
}, {
	`CREATE INDEX step_granted ON step (expires) WHERE state = 'granted'`,
}, {
	`ALTER TABLE step ADD COLUMN touched INTEGER NOT NULL DEFAULT 1`, // 1: its call may have had an effect
	`ALTER TABLE step ADD COLUMN unsure INTEGER NOT NULL DEFAULT 0`,  // 1: an earlier try of it may have had one
}, {
	`ALTER TABLE step ADD COLUMN since INTEGER NOT NULL DEFAULT 0`, // when it began to wait, ms since 1970
	`UPDATE step SET since = (SELECT created FROM execution e WHERE e.id = execution) WHERE state = 'waiting'`,
}}

// execution is a row, with its steps.
type execution struct {
	id      string
	state   State
	direct  bool
	who     tool.Caller
	stop    bool
	held    bool // by an operator
	created time.Time
	changed time.Time
	size    int64
	why     string
	steps   []step
}

// step is a row; input and answer are loaded where they are needed.
type step struct {
	n        int
	tool     string
	digest   string
	scope    string
	state    string
	approved string
	since    time.Time // when it began to wait
	expires  time.Time // of one that waits, or was approved and has not begun
	began    time.Time // zero: not yet
	over     time.Time
	reason   *deny.Reason
	touched  bool // its call may have had an effect
	unsure   bool // an earlier try of it may have had one
}

func at(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

func ms(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// head is the beginning of a text, of at most so many bytes and whole characters.
func head(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// named is how what somebody typed as an id is repeated.
func named(id string) string {
	if h := head(id, 40); h != id {
		return h + "…"
	}
	return id
}

// missing is the reason of an execution that is not there, or another caller's.
func missing(id string) *deny.Reason {
	return tool.Refuse(deny.ToolMissing, named(id), "there is no such execution", "execution_list shows those that there are; what ended is kept for seven days")
}

// load reads an execution with its steps.
func load(t *store.Tx, id string) (*execution, error) {
	var x *execution
	err := t.Query("SELECT id, state, direct, who, stop, created, changed, size, why, held FROM execution WHERE id = ?", func(row []sqlite.Value) error {
		x = &execution{
			id: sqlite.Text(row[0]), state: State(sqlite.Text(row[1])), direct: sqlite.Int(row[2]) == 1, stop: sqlite.Int(row[4]) == 1,
			created: at(sqlite.Int(row[5])), changed: at(sqlite.Int(row[6])), size: sqlite.Int(row[7]), why: sqlite.Text(row[8]), held: sqlite.Int(row[9]) == 1,
		}
		return json.Unmarshal(sqlite.Blob(row[3]), &x.who)
	}, id)
	if err != nil {
		return nil, fmt.Errorf("execution %s: %w", id, err)
	}
	if x == nil {
		return nil, missing(id)
	}
	err = t.Query("SELECT n, tool, digest, scope, state, approved, expires, began, over, reason, touched, unsure, since FROM step WHERE execution = ? ORDER BY n", func(row []sqlite.Value) error {
		s := step{
			n: int(sqlite.Int(row[0])), tool: sqlite.Text(row[1]), digest: sqlite.Text(row[2]), scope: sqlite.Text(row[3]), state: sqlite.Text(row[4]),
			approved: sqlite.Text(row[5]), expires: at(sqlite.Int(row[6])), began: at(sqlite.Int(row[7])), over: at(sqlite.Int(row[8])),
			touched: sqlite.Int(row[10]) == 1, unsure: sqlite.Int(row[11]) == 1, since: at(sqlite.Int(row[12])),
		}
		if raw := sqlite.Blob(row[9]); len(raw) > 0 {
			s.reason = &deny.Reason{}
			if err := json.Unmarshal(raw, s.reason); err != nil {
				return err
			}
		}
		x.steps = append(x.steps, s)
		return nil
	}, id)
	if err != nil {
		return nil, fmt.Errorf("execution %s: %w", id, err)
	}
	return x, nil
}

// input reads what a step's call was given.
func (x *execution) input(t *store.Tx, n int) (raw []byte, err error) {
	err = t.Query("SELECT input FROM step WHERE execution = ? AND n = ?", func(row []sqlite.Value) error {
		raw = sqlite.Blob(row[0])
		return nil
	}, x.id, n)
	return raw, err
}

// put writes a step's row, without its input and answer.
func (x *execution) put(t *store.Tx, s *step) error {
	var reason []byte
	if s.reason != nil {
		var err error
		if reason, err = json.Marshal(s.reason); err != nil {
			return err
		}
	}
	_, err := t.Exec("UPDATE step SET state = ?3, approved = ?4, expires = ?5, began = ?6, over = ?7, reason = ?8, touched = ?9, unsure = ?10, since = ?11 WHERE execution = ?1 AND n = ?2",
		x.id, s.n, s.state, s.approved, ms(s.expires), ms(s.began), ms(s.over), reason, s.touched, s.unsure, ms(s.since))
	return err
}

// advance makes the execution's state what its steps say, and writes it.
func (x *execution) advance(t *store.Tx) error {
	bad := false
	open := (*step)(nil)
	for i := range x.steps {
		s := &x.steps[i]
		switch s.state {
		case failed, disapproved:
			bad = true
		case pending, waiting, granted:
			if x.state == Cancelled || x.stop && bad {
				s.state, s.over = skipped, t.Now()
				if err := x.put(t, s); err != nil {
					return err
				}
				continue
			}
			if open == nil {
				open = s
			}
		case running:
			if open == nil {
				open = s
			}
		}
	}
	switch {
	case x.state == Cancelled:
	case open == nil:
		x.state = x.outcome()
	case x.state == Paused:
	case open.state == waiting:
		x.state = Waiting
	case open.state == running:
		x.state = Running
	default:
		x.state = Queued
	}
	x.changed = t.Now()
	_, err := t.Exec("UPDATE execution SET state = ?2, changed = ?3, size = ?4, why = ?5, held = ?6 WHERE id = ?1", x.id, string(x.state), ms(x.changed), x.size, x.why, x.held)
	return err
}

// outcome is the state of an execution all of whose steps have ended.
func (x *execution) outcome() State {
	n := 0
	for i := range x.steps {
		if x.steps[i].state == done {
			n++
		}
	}
	switch n {
	case len(x.steps):
		return Completed
	case 0:
		return Failed
	}
	return Partial
}

// insert writes a new execution and its inputs, and counts it.
func (x *execution) insert(t *store.Tx, inputs [][]byte) error {
	if len(inputs) != len(x.steps) {
		return fmt.Errorf("execution: %d inputs of %d steps", len(inputs), len(x.steps))
	}
	who, err := json.Marshal(x.who)
	if err != nil {
		return err
	}
	x.size = rowCost
	for _, raw := range inputs {
		x.size += int64(len(raw)) + rowCost
	}
	if err := trim(t); err != nil {
		return err
	}
	if err := t.Charge(x.size); err != nil {
		return err
	}
	x.created, x.changed = t.Now(), t.Now()
	if _, err := t.Exec("INSERT INTO execution (id, state, direct, who, token, stop, created, changed, size, why) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, '')",
		x.id, string(x.state), x.direct, who, x.who.Token, x.stop, ms(x.created), ms(x.changed), x.size); err != nil {
		return err
	}
	for i := range x.steps {
		s := &x.steps[i]
		if _, err := t.Exec("INSERT INTO step (execution, n, tool, input, digest, scope, state, approved, expires, began, over, touched, since) VALUES (?, ?, ?, ?, ?, ?, ?, '', ?, 0, 0, 0, ?)",
			x.id, s.n, s.tool, inputs[i], s.digest, // #nosec G602 -- as many as steps
			s.scope, s.state, ms(s.expires), ms(s.since)); err != nil {
			return err
		}
	}
	return nil
}

// errMany ends a look at rows.
var errMany = errors.New("execution: enough rows")

// ids gives ids by a statement, at most n.
func ids(t *store.Tx, n int, sql string, args ...any) (out []string, err error) {
	err = t.Query(sql, func(row []sqlite.Value) error {
		if len(out) == n {
			return errMany
		}
		out = append(out, sqlite.Text(row[0]))
		return nil
	}, args...)
	if errors.Is(err, errMany) {
		err = nil
	}
	return out, err
}

const endedStates = "('completed', 'partially_completed', 'failed', 'cancelled')"

// trim lets go of the oldest that have ended when there are too many.
func trim(t *store.Tx) error {
	n, err := t.Int("SELECT count(*) FROM execution")
	if err != nil || n < maxKept {
		return err
	}
	old, err := ids(t, 16, "SELECT id FROM execution WHERE state IN "+endedStates+" ORDER BY changed LIMIT 16")
	if err != nil {
		return err
	}
	if len(old) == 0 {
		return tool.Refuse(deny.ToolQuota, "executions", fmt.Sprintf("%d executions are open", n), "wait for some to end, or cancel them")
	}
	return drop(t, old)
}

// drop lets go of executions.
func drop(t *store.Tx, list []string) error {
	for _, id := range list {
		size, err := t.Int("SELECT size FROM execution WHERE id = ?", id)
		if err != nil {
			return err
		}
		if _, err := t.Exec("DELETE FROM execution WHERE id = ?", id); err != nil {
			return err
		}
		if _, err := t.Exec("DELETE FROM step WHERE execution = ?", id); err != nil {
			return err
		}
		if err := t.Charge(-size); err != nil {
			return err
		}
	}
	return nil
}
