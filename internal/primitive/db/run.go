package db

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"bulkhead/internal/deny"
	"bulkhead/internal/tool"
)

// Result is what one statement gave.
type Result struct {
	Rows []json.RawMessage `json:"rows"` // objects, their members in the order of the columns
	// RowCount is how many rows were given, or changed by a statement that gives none.
	RowCount int64 `json:"rowCount"`
	// Truncated says that there are more rows than MaxRows.
	Truncated bool `json:"truncated,omitempty"`
}

// answer is r as JSON, as encoding/json writes it: that would read every row again.
func (r Result) answer() tool.Answer {
	b := make([]byte, 0, size([]Result{r})+len(r.Rows)+64)
	b = append(b, `{"rows":[`...)
	for i, row := range r.Rows {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, row...)
	}
	b = strconv.AppendInt(append(b, `],"rowCount":`...), r.RowCount, 10)
	if r.Truncated {
		b = append(b, `,"truncated":true`...)
	}
	return append(b, '}')
}

// Statement is one statement with its parameters.
type Statement struct {
	SQL    string
	Params []json.RawMessage
}

var errEnough = errors.New("as many rows as are given")

// ready is a statement that has been looked at and has its parameters.
type ready struct {
	statement
	args []driver.Value
}

func (st Statement) ready(what string) (ready, error) {
	parsed, r := scan(st.SQL)
	if r != nil {
		return ready{}, r.reason(what)
	}
	if parsed.params != len(st.Params) {
		return ready{}, invalid(what, "params", "the statement wants %d, and %d are given", parsed.params, len(st.Params))
	}
	out := ready{parsed, make([]driver.Value, len(st.Params))}
	for i, raw := range st.Params {
		v, err := bind(raw)
		if err != nil {
			return ready{}, invalid(what, "params["+strconv.Itoa(i)+"]", "%s", err)
		}
		out.args[i] = v
	}
	return out, nil
}

// Query runs one statement. begin is called before it changes anything, and
// not at all when it only reads.
func (s *Store) Query(ctx context.Context, what string, st Statement, begin func() error) (out Result, err error) {
	r, err := st.ready(what)
	if err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Time)
	defer cancel()
	if r.kind == query {
		writes := false
		err := s.reading(ctx, func(c *conn) (err error) {
			c.begin(query)
			p, err := c.prepare(r.statement)
			if err != nil {
				return s.refused(ctx, c, what, err)
			}
			defer func() { err = errors.Join(err, p.Close()) }()
			if writes = c.wrote && !r.explained; writes {
				return nil // WITH … INSERT: below
			}
			out, err = collect(what, p, r.args, MaxRows, nil)
			return s.refused(ctx, c, what, err)
		})
		if err != nil || !writes {
			return out, s.overdue(what, err)
		}
		r.kind = write
	}
	results, err := s.all(ctx, what, []ready{r}, begin)
	if err != nil {
		return Result{}, err
	}
	return results[0], nil
}

// Transaction runs statements in their order, all or nothing.
func (s *Store) Transaction(ctx context.Context, what string, statements []Statement, begin func() error) ([]Result, error) {
	all := make([]ready, len(statements))
	for i, st := range statements {
		r, err := st.ready(what)
		if err != nil {
			return nil, nth(i, err)
		}
		all[i] = r
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Time)
	defer cancel()
	return s.all(ctx, what, all, begin)
}

// nth says in a reason which statement of a transaction it is about.
func nth(i int, err error) error {
	var r *deny.Reason
	if !errors.As(err, &r) {
		return fmt.Errorf("statement %d: %w", i, err)
	}
	out := *r
	out.Why = fmt.Sprintf("queries[%d]: %s", i, r.Why)
	out.Fields = nil
	for _, f := range r.Fields {
		out.Fields = append(out.Fields, deny.Field{Name: fmt.Sprintf("queries[%d].%s", i, f.Name), Why: f.Why})
	}
	return &out
}

// all runs statements in one transaction.
func (s *Store) all(ctx context.Context, what string, statements []ready, begin func() error) ([]Result, error) {
	if err := begin(); err != nil {
		return nil, err
	}
	results := make([]Result, len(statements))
	err := s.writing(ctx, func(c *conn) error {
		return s.refused(ctx, c, what, s.transaction(ctx, c, func() error {
			for i, st := range statements {
				c.begin(st.kind)
				r, err := s.one(c, what, st, nil)
				if err != nil {
					err = s.refused(ctx, c, what, err)
					if len(statements) > 1 {
						err = nth(i, err)
					}
					return err
				}
				results[i] = r
			}
			if size(results) > MaxAnswer {
				return tooMuch(what)
			}
			return nil
		}))
	})
	return results, s.overdue(what, err)
}

// one runs a statement within a transaction. types are those of the columns
// where SQLite does not tell them.
func (s *Store) one(c *conn, what string, st ready, types map[string]string) (out Result, err error) {
	p, err := c.prepare(st.statement)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	before, err := changed(c)
	if err != nil {
		return Result{}, err
	}
	// A statement that writes must be run to its end, so it cannot be cut short.
	most := MaxRows
	if st.kind != query {
		most = -1
	}
	if out, err = collect(what, p, st.args, most, types); err != nil {
		return Result{}, err
	}
	after, err := changed(c)
	if err != nil {
		return Result{}, err
	}
	if len(out.Rows) == 0 && after > before {
		out.RowCount = after - before
	}
	return out, nil
}

// changed is how many rows this connection has changed so far. It leaves the
// policy as it is.
func changed(c *conn) (int64, error) {
	own := c.own
	defer func() { c.own = own }()
	return c.number("SELECT total_changes()")
}

// collect steps through a statement. most below 0: more than MaxRows are refused.
func collect(what string, p driver.Stmt, args []driver.Value, most int, types map[string]string) (Result, error) {
	out := Result{Rows: []json.RawMessage{}}
	var names [][]byte // as they stand in a row
	total := 0
	err := step(p, args, func(columns []column, row []driver.Value) error {
		if names == nil {
			for _, n := range distinct(columns) {
				names = append(names, append(appendText(nil, n), ':'))
			}
		}
		if len(out.Rows) == MaxRows {
			if most < 0 {
				return tooMuch(what)
			}
			out.Truncated = true
			return errEnough
		}
		b := make([]byte, 0, 64*len(row))
		b = append(b, '{')
		for i, v := range row {
			if i > 0 {
				b = append(b, ',')
			}
			typ := columns[i].typ
			if typ == "" {
				typ = types[columns[i].name]
			}
			b = appendValue(append(b, names[i]...), v, typ)
		}
		b = append(b, '}')
		if total += len(b); total > MaxAnswer {
			return tooMuch(what)
		}
		out.Rows = append(out.Rows, b)
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return Result{}, err
	}
	out.RowCount = int64(len(out.Rows))
	return out, nil
}

// distinct gives names for columns of which several are called the same, as
// after SELECT * over a join: a JSON object would keep the last one alone.
func distinct(columns []column) []string {
	names, seen := make([]string, len(columns)), map[string]bool{}
	for _, c := range columns {
		seen[c.name] = true
	}
	first := map[string]bool{}
	for i, c := range columns {
		names[i] = c.name
		for n := 2; first[names[i]]; n++ {
			if next := c.name + "_" + strconv.Itoa(n); !seen[next] && !first[next] {
				names[i] = next
			}
		}
		first[names[i]] = true
	}
	return names
}

func size(results []Result) (n int) {
	for _, r := range results {
		for _, row := range r.Rows {
			n += len(row)
		}
	}
	return n
}

func tooMuch(what string) error {
	return tool.Refuse(deny.ToolTooLarge, what, fmt.Sprintf("the answer has more than %d bytes, or a statement that writes gives more than %d rows", MaxAnswer, MaxRows),
		"ask for less: name columns, add a WHERE or a LIMIT")
}
