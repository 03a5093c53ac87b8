package db

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/tool"
)

// shape is what must be known of a table to read and to write its rows by their rowid.
type shape struct {
	name    string
	sql     string   // that made it
	columns []string // quoted
	rowid   string   // a name of the rowid that no column has
}

// errNoTable says that there is no such table.
var errNoTable = errors.New("there is no such table")

// quoteName makes a name of any characters part of a statement. It is one that was read from
// sqlite_schema.
func quoteName(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// shapeOf looks at a table. It fails with [tool.Never] for one whose rows cannot be
// taken back: agents make none of those, but a file may be older than this program.
func (c *conn) shapeOf(table string) (s shape, err error) {
	c.own = true
	s = shape{name: table}
	kind, without := "", int64(0)
	arg := []driver.Value{table}
	err = c.rows(statement{text: "SELECT type, wr FROM pragma_table_list(?) WHERE schema = 'main'"}, arg, func(_ []column, r []driver.Value) error {
		kind = textOf(r[0])
		without, _ = r[1].(int64)
		return nil
	})
	if err != nil {
		return s, err
	}
	err = c.rows(statement{text: "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ? AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"}, arg, func(_ []column, r []driver.Value) error {
		s.sql = textOf(r[0])
		return nil
	})
	if err != nil {
		return s, err
	}
	never := func(why string) (shape, error) {
		return s, tool.Never(fmt.Sprintf("the table %q has %s", clip(table), why))
	}
	switch {
	case s.sql == "":
		return s, errNoTable
	case kind != "table":
		return s, tool.Never(fmt.Sprintf("%q is a part of a virtual table", clip(table)))
	case without != 0:
		return never("no rowid")
	}
	names, hidden := []string{}, false
	err = c.rows(statement{text: "SELECT name, hidden FROM pragma_table_xinfo(?)"}, arg, func(_ []column, r []driver.Value) error {
		name, h := textOf(r[0]), r[1] != int64(0)
		hidden = hidden || h
		names, s.columns = append(names, strings.ToLower(name)), append(s.columns, quoteName(name))
		return nil
	})
	if err != nil {
		return s, err
	}
	i := slices.IndexFunc(rowids, func(n string) bool { return !slices.Contains(names, n) })
	switch {
	case hidden:
		return never("columns that are computed")
	case i < 0:
		return never("no name left for its rowid")
	}
	s.rowid = rowids[i]
	// Each of these changes more than the rows that are put back.
	for _, more := range []struct{ what, sql string }{
		{"triggers", "SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND lower(tbl_name) = lower(?)"},
		{"AUTOINCREMENT", "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ? AND upper(sql) LIKE '%AUTOINCREMENT%' AND EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_sequence')"},
	} {
		there := false
		if err := c.rows(statement{text: more.sql}, arg, func([]column, []driver.Value) error { there = true; return nil }); err != nil {
			return s, err
		}
		if there {
			return never(more.what)
		}
	}
	virtual, err := c.number("SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND sql LIKE 'CREATE VIRTUAL%'")
	if err == nil && virtual > 0 {
		err = tool.Never("the database has virtual tables")
	}
	return s, err
}

var rowids = []string{"rowid", "_rowid_", "oid"}

// reader gives a function that reads a row by its rowid; nil: there is none.
func (s shape) reader(c *conn) (read func(id int64) (row, error), end func(), err error) {
	// As expressions: the driver gives values of some declared types as others.
	c.own = true
	p, err := c.prepare(statement{text: "SELECT +" + strings.Join(s.columns, ", +") + " FROM " + quoteName(s.name) + " WHERE " + s.rowid + " = ?"})
	if err != nil {
		return nil, nil, err
	}
	return func(id int64) (out row, err error) {
		err = step(p, []driver.Value{id}, func(_ []column, values []driver.Value) error {
			out = make(row, len(values))
			for i, v := range values {
				out[i] = cellOf(v)
			}
			return nil
		})
		return out, err
	}, func() { _ = p.Close() }, nil // it read only
}

// run prepares a statement of an agent's rights, and gives a function that runs it.
func (c *conn) run(k kind, sql string) (run func(args ...driver.Value) error, end func(), err error) {
	c.begin(k)
	p, err := c.prepare(statement{text: sql})
	if err != nil {
		return nil, nil, err
	}
	return func(args ...driver.Value) error {
		return step(p, args, func([]column, []driver.Value) error { return nil })
	}, func() { _ = p.Close() }, nil // what it did, it said itself
}
