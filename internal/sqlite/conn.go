// Package sqlite speaks to SQLite for stores that have one writer: a
// connection without database/sql, whose pool, locks and conversions cost as
// much as a small insert does, with its prepared statements kept.
package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"
)

// Value is what a row holds: int64, float64, string, []byte or nil.
type Value = driver.Value

// Conn is one connection. It is used by one goroutine at a time.
type Conn struct {
	raw   driver.Conn
	stmts map[string]driver.Stmt
	args  []driver.NamedValue
}

// Open opens a database, which is made when it is not there, and says the
// pragmas to it in turn.
func Open(path string, pragmas ...string) (*Conn, error) {
	// SQLite's own choice where there is fdatasync, and half the time: the size
	// of the log is written with it, its timestamps need not be.
	_, _ = sqlite.Fdatasync(true)
	raw, err := (&sqlite.Driver{}).Open((&url.URL{Scheme: "file", Path: path}).String())
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	c := &Conn{raw: raw, stmts: map[string]driver.Stmt{}}
	for _, p := range pragmas {
		// Some of them answer with a row.
		if err := c.Query(p, func([]Value) error { return nil }); err != nil {
			return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), c.Close())
		}
	}
	return c, nil
}

// Close ends the connection.
func (c *Conn) Close() error {
	var errs []error
	for _, s := range c.stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, c.raw.Close())...)
}

func (c *Conn) prepare(sql string) (driver.Stmt, error) {
	if s, ok := c.stmts[sql]; ok {
		return s, nil
	}
	s, err := c.raw.Prepare(sql)
	if err != nil {
		return nil, fmt.Errorf("prepare %.60q: %w", sql, err)
	}
	c.stmts[sql] = s
	return s, nil
}

// named turns arguments into the driver's; the slice is used again by the next
// call.
func (c *Conn) named(args []any) []driver.NamedValue {
	c.args = c.args[:0]
	for i, v := range args {
		switch x := v.(type) {
		case int:
			v = int64(x)
		case bool:
			v = int64(0)
			if x {
				v = int64(1)
			}
		}
		c.args = append(c.args, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
	return c.args
}

// Exec runs one statement, which is kept prepared: its text is a constant of
// the program. Arguments are int64, int, float64, bool, string, []byte or nil.
// changed is how many rows it changed.
func (c *Conn) Exec(sql string, args ...any) (changed int64, err error) {
	s, err := c.prepare(sql)
	if err != nil {
		return 0, err
	}
	x, ok := s.(driver.StmtExecContext)
	if !ok {
		return 0, fmt.Errorf("the driver's statement %T has no ExecContext", s)
	}
	r, err := x.ExecContext(context.Background(), c.named(args))
	if err != nil {
		return 0, fmt.Errorf("%.60q: %w", sql, err)
	}
	return r.RowsAffected()
}

// Query hands every row to f; the values are good until it returns.
func (c *Conn) Query(sql string, f func(row []Value) error, args ...any) (err error) {
	s, err := c.prepare(sql)
	if err != nil {
		return err
	}
	x, ok := s.(driver.StmtQueryContext)
	if !ok {
		return fmt.Errorf("the driver's statement %T has no QueryContext", s)
	}
	rows, err := x.QueryContext(context.Background(), c.named(args))
	if err != nil {
		return fmt.Errorf("%.60q: %w", sql, err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	row := make([]Value, len(rows.Columns()))
	for {
		if err := rows.Next(row); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%.60q: %w", sql, err)
		}
		if err := f(row); err != nil {
			return err
		}
	}
}

// Int reads one number; a query without a row gives 0.
func (c *Conn) Int(sql string, args ...any) (n int64, err error) {
	err = c.Query(sql, func(row []Value) error { n = Int(row[0]); return nil }, args...)
	return n, err
}

// Int gives an integer; 0 for anything else.
func Int(v Value) int64 {
	n, _ := v.(int64)
	return n
}

// Float gives a number; 0 for anything else.
func Float(v Value) float64 {
	switch x := v.(type) {
	case float64:
		return x
	case int64:
		return float64(x)
	}
	return 0
}

// Text gives a text or blob as a string; empty for anything else.
func Text(v Value) string {
	switch x := v.(type) {
	case string:
		return x
	case []byte:
		return string(x)
	}
	return ""
}

// Blob gives a copy of a text or blob; nil for anything else.
func Blob(v Value) []byte {
	switch x := v.(type) {
	case []byte:
		return append([]byte{}, x...)
	case string:
		return []byte(x)
	}
	return nil
}

// Full says whether an error is that of a disk, or of a database, that has no
// room. Nothing else has to be doubted then.
func Full(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code()&0xff == lib.SQLITE_FULL
}
