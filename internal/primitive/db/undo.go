package db

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/deny"
	"bulkhead/internal/tool"
)

// state is how the database stands to what a step did.
type state struct {
	before, after bool
	why           string // it is neither, of the first that is not as the step left it
}

func (s *state) add(before, after bool, why string) {
	s.before, s.after = s.before && before, s.after && after
	if !after && s.why == "" {
		s.why = why
	}
}

// Undo takes the changes of a step back in one transaction, unless any of the rows, or a
// table or index that it made, is not as the step left it. Where all of it is as it was
// before the step it does nothing.
//
// It runs with the rights, the limits and the budget of the agent's own statements.
func (s *Store) Undo(ctx context.Context, what string, raw []byte) error {
	var u undo
	if err := json.Unmarshal(raw, &u); err != nil {
		return fmt.Errorf("db: what takes a change back does not decode: %w", err)
	}
	switch {
	case u.Never != "":
		return tool.Never(u.Never)
	case len(u.Tables) == 0 && len(u.Made) == 0:
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Time)
	defer cancel()
	err := s.writing(ctx, func(c *conn) error {
		return s.refused(ctx, c, what, s.transaction(ctx, c, func() error {
			return s.refused(ctx, c, what, u.apply(c, what))
		}))
	})
	var never tool.Never
	if errors.As(err, &never) {
		return never
	}
	return s.overdue(what, err)
}

func conflict(what, why string) error {
	return tool.Refuse(deny.ToolConflict, what, why, "look at it with db_query, and put it right yourself")
}

// apply takes the changes back, within a transaction.
func (u undo) apply(c *conn, what string) error {
	now := state{before: true, after: true}
	shapes := make([]shape, len(u.Tables))
	for i, e := range u.Tables {
		var err error
		if shapes[i], err = c.shapeOf(e.Name); errors.Is(err, errNoTable) || err == nil && shapes[i].sql != e.SQL {
			return conflict(what, fmt.Sprintf("the table %q is gone, or another one", clip(e.Name)))
		} else if err != nil {
			return err
		}
		if err := e.compare(c, shapes[i], &now); err != nil {
			return err
		}
	}
	for _, o := range u.Made {
		if err := o.compare(c, &now); err != nil {
			return err
		}
	}
	switch {
	case now.before:
		return nil
	case !now.after:
		return conflict(what, now.why)
	}
	// Before the rows, which an index that was made since they were there may not allow;
	// the last first.
	for _, o := range slices.Backward(u.Made) {
		run, end, err := c.run(drop, "DROP "+strings.ToUpper(o.Type)+" "+quoteName(o.Name))
		if err != nil {
			return err
		}
		err = run()
		end()
		if err != nil {
			return err
		}
	}
	for i, e := range u.Tables {
		if err := e.back(c, shapes[i]); err != nil {
			return err
		}
	}
	// A row that a constraint, or a damaged file, did not let become what it was.
	now = state{before: true, after: true}
	for i, e := range u.Tables {
		if err := e.compare(c, shapes[i], &now); err != nil {
			return err
		}
	}
	if !now.before {
		return conflict(what, "what was there before cannot be put back as it was")
	}
	return nil
}

// compare looks how the rows are.
func (e edited) compare(c *conn, s shape, now *state) error {
	read, end, err := s.reader(c)
	if err != nil {
		return err
	}
	defer end()
	for _, r := range e.Rows {
		if r.Before != nil && len(r.Before) != len(s.columns) {
			return fmt.Errorf("db: what takes a change of %q back has %d values, and the table %d columns", e.Name, len(r.Before), len(s.columns))
		}
		current, err := read(r.ID)
		if err != nil {
			return err
		}
		now.add(current.same(r.Before), slices.Equal(current.sum(), r.After), fmt.Sprintf("the row with the rowid %d of the table %q has changed since", r.ID, clip(e.Name)))
	}
	return nil
}

// back puts the rows back. All that is not to be there goes first: another row may have
// what must be unique.
func (e edited) back(c *conn, s shape) error {
	remove, end, err := c.run(write, "DELETE FROM "+quoteName(s.name)+" WHERE "+s.rowid+" = ?")
	if err != nil {
		return err
	}
	defer end()
	for _, r := range e.Rows {
		if err := remove(r.ID); err != nil {
			return err
		}
	}
	insert, end, err := c.run(write, "INSERT OR ABORT INTO "+quoteName(s.name)+" ("+s.rowid+", "+strings.Join(s.columns, ", ")+") VALUES (?"+strings.Repeat(", ?", len(s.columns))+")")
	if err != nil {
		return err
	}
	defer end()
	for _, r := range e.Rows {
		if r.Before == nil {
			continue
		}
		args := []driver.Value{r.ID}
		for _, cell := range r.Before {
			v, err := valueOf(cell)
			if err != nil {
				return fmt.Errorf("db: what takes a change of %q back: %w", e.Name, err)
			}
			args = append(args, v)
		}
		if err := insert(args...); err != nil {
			return err
		}
	}
	return nil
}

// compare looks how a table or index is that was made: as it was is a table without rows
// and without indexes of its own.
func (o object) compare(c *conn, now *state) error {
	if o.Type != "table" && o.Type != "index" {
		return fmt.Errorf("db: what takes a change back has a %.20q", o.Type)
	}
	c.own = true
	there, as, table := false, false, ""
	err := c.rows(statement{text: "SELECT type, sql, tbl_name FROM sqlite_schema WHERE name = ?"}, []driver.Value{o.Name}, func(_ []column, r []driver.Value) error {
		there, as, table = true, textOf(r[0]) == o.Type && textOf(r[1]) == o.SQL, textOf(r[2])
		return nil
	})
	if err != nil {
		return err
	}
	why := fmt.Sprintf("the %s %q has changed since", o.Type, clip(o.Name))
	if as && o.Type == "table" {
		more := 0
		count := func([]column, []driver.Value) error { more++; return nil }
		if err := c.rows(statement{text: "SELECT 1 FROM sqlite_schema WHERE tbl_name = ? AND name <> tbl_name AND sql IS NOT NULL LIMIT 1"}, []driver.Value{table}, count); err != nil {
			return err
		}
		if err := c.rows(statement{text: "SELECT 1 FROM " + quoteName(o.Name) + " LIMIT 1"}, nil, count); err != nil {
			return err
		}
		if more > 0 {
			as, why = false, fmt.Sprintf("the table %q has rows or indexes", clip(o.Name))
		}
	}
	now.add(!there, as, why)
	return nil
}
