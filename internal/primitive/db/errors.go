package db

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"bulkhead/internal/deny"
	"bulkhead/internal/tool"
)

// refused turns what SQLite said about an agent's statement into a reason.
// What is none of the agent's doing stays an error, for the log.
func (s *Store) refused(ctx context.Context, c *conn, what string, err error) error {
	var reason *deny.Reason
	if err == nil || errors.As(err, &reason) {
		return err
	}
	var e *sqlite.Error
	if !errors.As(err, &e) {
		if strings.HasPrefix(err.Error(), "missing ") { // the driver's, for a parameter
			return invalid(what, "params", "there are fewer than the statement wants")
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	msg := plain(e.Error())
	code := e.Code() & 0xff
	if kept := strings.HasSuffix(msg, " may not be modified") || strings.HasSuffix(msg, " may not be indexed") || strings.HasSuffix(msg, " may not be dropped"); kept && code == sqlite3.SQLITE_ERROR {
		return tool.Refuse(deny.ToolUnsafe, what, msg+": SQLite keeps it itself", "use your own tables")
	}
	// A function that is denied is told as an ordinary error.
	if c.denied != "" && code == sqlite3.SQLITE_ERROR {
		code = sqlite3.SQLITE_AUTH
	}
	switch code {
	case sqlite3.SQLITE_AUTH:
		denied, quotes := c.denied, c.denied == ""
		if quotes {
			denied = msg
		}
		r := tool.Refuse(deny.ToolUnsafe, what, denied+" is not allowed in an agent's SQL", "use what reads and changes rows of your own tables; db_create_table makes tables")
		if quotes {
			r = keep(r, ownWords)
		}
		return r
	case sqlite3.SQLITE_INTERRUPT:
		return s.interrupted(ctx, c, what)
	case sqlite3.SQLITE_NOMEM:
		return tooHungry(what)
	case sqlite3.SQLITE_FULL:
		return s.cfg.Budget.Full(ctx, what)
	case sqlite3.SQLITE_TOOBIG:
		return tool.Refuse(deny.ToolTooLarge, what, fmt.Sprintf("a value, row or statement is larger than %d bytes, or a statement than it may be", maxValue), "store large data with fs_write, or in several rows")
	case sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH:
		return tool.Refuse(deny.ToolConflict, what, msg, "give values that fit the columns, and keys that are not there yet")
	case sqlite3.SQLITE_READONLY:
		return tool.Refuse(deny.ToolUnsafe, what, msg, "change rows of your own tables")
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		r := tool.Refuse(deny.ToolUnavailable, what, "another statement of this agent holds the database", "try again")
		r.RetryAfter = 1
		return r
	case sqlite3.SQLITE_RANGE:
		return keep(invalid(what, "params", "%s", msg), ownWords)
	case sqlite3.SQLITE_ERROR:
		if strings.HasPrefix(msg, "no such table: ") || strings.HasPrefix(msg, "no such index: ") {
			return keep(tool.Refuse(deny.ToolMissing, what, msg, "SELECT name FROM sqlite_schema lists the tables; db_create_table makes one"), ownWords)
		}
		return keep(invalid(what, "sql", "%s", msg), ownWords)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// keep has records hold the reason without what form takes out: SQLite's messages quote
// the statement, and values, whatever was taken for a name there.
func keep(r *deny.Reason, form func(string) string) *deny.Reason {
	kept := *r
	kept.Why, kept.Fields = form(r.Why), slices.Clone(r.Fields)
	for i := range kept.Fields {
		kept.Fields[i].Why = form(kept.Fields[i].Why)
	}
	r.Kept = &kept
	return r
}

// vocabulary are the words of SQLite's messages, and of the reasons around them, that
// tell a person what was wrong. What is not in it may be the statement's.
var vocabulary = set(`
	no such column table index function window module collation sequence near syntax error unrecognized token incomplete input ambiguous name has columns but values
	were supplied named for wrong number of arguments to misuse aggregate already exists malformed bad path is not allowed in an agent's sql the what this tool takes
	there with that do have same result left and right term out range on clause between should match any row value misused sub-select returns expected too many
	variables terms levels nested expression tree depth parser stack overflow integer hex literal big limit only one required before duplicate circular reference
	cannot use unable requested context parameters prohibited unsupported json must be string real blob maximum exceeded`)

// ownWords gives a message of SQLite's without what it may have from the statement or
// from a row.
func ownWords(msg string) string {
	var out []string
	for _, word := range strings.Fields(msg) {
		if !vocabulary[strings.ToLower(strings.TrimRight(word, ":,;-"))] {
			word = "…"
			if len(out) > 0 && out[len(out)-1] == word {
				continue
			}
		}
		out = append(out, word)
	}
	return strings.Join(out, " ")
}

// plain takes the driver's dressing from a message: its name of the code
// before, and the code's number behind.
func plain(msg string) string {
	for _, dress := range []string{"SQL logic error: ", "constraint failed: "} {
		msg = strings.TrimPrefix(msg, dress)
	}
	if i := strings.LastIndex(msg, " ("); i > 0 && strings.HasSuffix(msg, ")") && strings.Trim(msg[i+2:len(msg)-1], "0123456789") == "" {
		msg = msg[:i]
	}
	if len(msg) > 400 {
		msg = msg[:400] + "…"
	}
	return strings.ToValidUTF8(msg, "?")
}

// overdue tells of a call that waited for others until its time was over.
func (s *Store) overdue(what string, err error) error {
	var reason *deny.Reason
	if err == nil || errors.As(err, &reason) || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	r := tool.Refuse(deny.ToolTimeout, what, fmt.Sprintf("other statements of this agent held the database for %s", s.cfg.Time), "try again when they have ended")
	r.RetryAfter = 1
	return r
}

func (s *Store) interrupted(ctx context.Context, c *conn, what string) error {
	switch c.watch.cause() {
	case hungry:
		return tooHungry(what)
	case logFilled:
		return tool.Refuse(deny.ToolQuota, what, fmt.Sprintf("the transaction wrote more than %d bytes over and over before its end", c.watch.walMost), "do it in several smaller ones")
	case ended, running:
	}
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return tool.Refuse(deny.ToolTimeout, what, fmt.Sprintf("it took longer than %s", s.cfg.Time), "ask for less: add an index, a WHERE or a LIMIT, or end the recursion")
}

func tooHungry(what string) error {
	return tool.Refuse(deny.ToolTooLarge, what, fmt.Sprintf("it needed more memory than statements may have (%d bytes)", heapStatement), "sort, group or remember less at once; change fewer rows in one statement")
}

func invalid(what, field, format string, args ...any) *deny.Reason {
	r := tool.Refuse(deny.ToolInvalid, what, "the input is not what this tool takes", "mend the field that is named")
	r.Fields = []deny.Field{{Name: field, Why: fmt.Sprintf(format, args...)}}
	return r
}

func (r *refusal) reason(what string) *deny.Reason {
	out := tool.Refuse(deny.ToolUnsafe, what, r.why, r.mend)
	if !r.unsafe {
		out = invalid(what, "sql", "%s", r.why)
		out.Mend = r.mend
	}
	if strings.Contains(r.why, `"`) {
		out = keep(out, deny.Unquoted)
	}
	return out
}
