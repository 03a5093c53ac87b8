package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"

	"modernc.org/sqlite"
)

// conn is one connection to the database, with its prepared statements kept.
// It is used by one goroutine at a time.
//
// It speaks to the driver itself: database/sql's pool, locks and conversions
// cost as much as a small insert does.
type conn struct {
	raw   driver.Conn
	stmts map[string]driver.Stmt
	args  []driver.NamedValue
}

// dialect opens connections: the pure Go SQLite in programs, another build of
// SQLite over a file system that loses power in tests.
type dialect struct {
	open func(path string) (driver.Conn, error)
	// solo means that there is one connection only, so reads go through the
	// writer's, and that the database has no shared memory.
	solo bool
	// lengthen makes the log of a database long, see ready.
	lengthen func(database string) error
}

func pureGo() dialect {
	// SQLite's own choice where there is fdatasync, and half the time: the size
	// of the log is written with it, its timestamps need not be. A system
	// without it keeps fsync.
	_, _ = sqlite.Fdatasync(true)
	d := &sqlite.Driver{}
	return dialect{lengthen: lengthen, open: func(path string) (driver.Conn, error) {
		return d.Open((&url.URL{Scheme: "file", Path: path}).String())
	}}
}

func (d dialect) connect(path string) (*conn, error) {
	raw, err := d.open(path)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return &conn{raw: raw, stmts: map[string]driver.Stmt{}}, nil
}

func (c *conn) close() error {
	var errs []error
	for _, s := range c.stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, c.raw.Close())...)
}

func (c *conn) prepare(sql string) (driver.Stmt, error) {
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

// named turns arguments into the driver's; the slice is used again by the next call.
func (c *conn) named(args []any) []driver.NamedValue {
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

// exec runs one prepared statement. Arguments are int64, int, bool, string or []byte.
func (c *conn) exec(sql string, args ...any) error {
	s, err := c.prepare(sql)
	if err != nil {
		return err
	}
	x, ok := s.(driver.StmtExecContext)
	if !ok {
		return fmt.Errorf("the driver's statement %T has no ExecContext", s)
	}
	if _, err := x.ExecContext(context.Background(), c.named(args)); err != nil {
		return fmt.Errorf("%.60q: %w", sql, err)
	}
	return nil
}

// query hands every row to f; the values are good until it returns.
func (c *conn) query(sql string, f func(row []driver.Value) error, args ...any) (err error) {
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
	row := make([]driver.Value, len(rows.Columns()))
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

// integer reads one number; a query without a row gives 0.
func (c *conn) integer(sql string, args ...any) (n int64, err error) {
	err = c.query(sql, func(row []driver.Value) error { n = integer(row[0]); return nil }, args...)
	return n, err
}

func integer(v driver.Value) int64 {
	n, _ := v.(int64)
	return n
}

// sequence reads a number that is never negative.
func sequence(v driver.Value) uint64 { return bits(integer(v)) }

// SQLite's integers are signed. Sequences are below 1<<62, which callers' are
// checked for; of nonces every bit counts and none means a sign.
func bits(n int64) uint64   { return uint64(n) } // #nosec G115 -- see above
func number(n uint64) int64 { return int64(n) }  // #nosec G115 -- see above

func text(v driver.Value) string {
	switch x := v.(type) {
	case string:
		return x
	case []byte:
		return string(x)
	}
	return ""
}

// raw is a blob that is good until the query goes on.
func raw(v driver.Value) []byte {
	b, _ := v.([]byte)
	return b
}

func blob(v driver.Value) []byte {
	switch x := v.(type) {
	case []byte:
		return append([]byte{}, x...)
	case string:
		return []byte(x)
	}
	return nil
}
