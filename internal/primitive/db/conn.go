package db

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"reflect"

	"modernc.org/libc"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Limits of SQLite on one connection (https://sqlite.org/c3ref/c_limit_attached.html).
const (
	maxValue  = 8 << 20 // bytes of a string, blob or row
	maxParams = 1000
)

var limits = map[int32]int32{
	sqlite3.SQLITE_LIMIT_LENGTH:              maxValue,
	sqlite3.SQLITE_LIMIT_SQL_LENGTH:          4 * 100_000, // bytes, of 100,000 characters
	sqlite3.SQLITE_LIMIT_COLUMN:              256,
	sqlite3.SQLITE_LIMIT_EXPR_DEPTH:          100,
	sqlite3.SQLITE_LIMIT_COMPOUND_SELECT:     50,
	sqlite3.SQLITE_LIMIT_VDBE_OP:             250_000,
	sqlite3.SQLITE_LIMIT_FUNCTION_ARG:        100,
	sqlite3.SQLITE_LIMIT_ATTACHED:            0,
	sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 256,
	sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER:     maxParams,
	sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH:       1,
	sqlite3.SQLITE_LIMIT_WORKER_THREADS:      0,
}

// conn is one connection, used by one goroutine at a time.
type conn struct {
	raw   driver.Conn
	watch watch
	policy
	// broken says that it is not to be used again.
	broken bool
}

type role bool

const (
	reader role = false
	writer role = true
)

// connect opens the file. Nothing that an agent says runs before the policy,
// the limits and the watch are in force.
func connect(path string, r role) (_ *conn, err error) {
	opts := url.Values{
		"_defensive": {"1"}, "_dqs": {"0"}, "_auto_vacuum": {"FULL"}, "_journal_mode": {"WAL"}, "_synchronous": {"FULL"}, "_busy_timeout": {"2000"},
		"_pragma": {"trusted_schema(0)", "temp_store(MEMORY)", "mmap_size(0)", "cell_size_check(1)", "journal_size_limit(4194304)", "cache_size(-1024)"},
	}
	if r == reader {
		opts.Set("_query_only", "1")
	}
	raw, err := (&sqlite.Driver{}).Open((&url.URL{Scheme: "file", Path: path, RawQuery: opts.Encode()}).String())
	if err != nil {
		return nil, fmt.Errorf("open the agent's database: %w", err)
	}
	c := &conn{raw: raw}
	defer func() {
		if err != nil {
			_ = c.close()
		}
	}()
	// The driver does not give its handle away; what is missing for watching a
	// statement needs it. A test fails when the field is no longer called so.
	handle := reflect.Indirect(reflect.ValueOf(raw)).FieldByName("db")
	if !handle.IsValid() || !handle.CanUint() || handle.Uint() == 0 {
		return nil, errors.New("this version of the SQLite driver keeps its handle elsewhere: statements could not be stopped")
	}
	db := uintptr(handle.Uint())
	tls := libc.NewTLS()
	defer tls.Close()
	if err := limitHeap(tls); err != nil {
		return nil, err
	}
	for id, most := range limits {
		sqlite3.Xsqlite3_limit(tls, db, id, most)
		if got := sqlite3.Xsqlite3_limit(tls, db, id, -1); got > most {
			return nil, fmt.Errorf("SQLite's limit %d is %d, and should be %d", id, got, most)
		}
	}
	c.own = true
	if err := c.learnModules(); err != nil {
		return nil, err
	}
	authorize, ok := raw.(sqlite.AuthorizerRegisterer)
	if !ok {
		return nil, errors.New("this version of the SQLite driver has no authorizer")
	}
	if err := authorize.RegisterAuthorizer(c.judge); err != nil {
		return nil, fmt.Errorf("install the authorizer: %w", err)
	}
	c.watch.db, c.watch.wal, c.watch.walMost = db, path+"-wal", 1<<62
	c.watch.start(tls)
	return c, nil
}

func (c *conn) close() error {
	c.watch.end()
	return c.raw.Close()
}

// learnModules asks which table-valued functions and virtual tables there are.
func (c *conn) learnModules() error {
	c.modules = map[string]bool{}
	return c.rows(statement{text: "SELECT lower(name) FROM pragma_module_list"}, nil, func(_ []column, row []driver.Value) error {
		name, _ := row[0].(string)
		c.modules[name] = true
		return nil
	})
}

// column is one column of a result.
type column struct {
	name string
	typ  string // as it was declared, in upper case; empty for an expression
}

// rows runs a prepared or new statement to its end and hands every row to f,
// with values that are good until f returns.
func (c *conn) rows(st statement, args []driver.Value, f func([]column, []driver.Value) error) (err error) {
	p, err := c.prepare(st)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	return step(p, args, f)
}

// prepare has SQLite compile a statement, and the policy judge it.
func (c *conn) prepare(st statement) (driver.Stmt, error) {
	// Not PrepareContext: see watch.
	p, err := c.raw.Prepare(st.text)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func step(p driver.Stmt, args []driver.Value, f func([]column, []driver.Value) error) (err error) {
	named := make([]driver.NamedValue, len(args))
	for i, v := range args {
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	q, ok := p.(driver.StmtQueryContext)
	if !ok {
		return fmt.Errorf("the driver's statement %T has no QueryContext", p)
	}
	rows, err := q.QueryContext(context.Background(), named) // see watch
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	names := rows.Columns()
	types, _ := rows.(driver.RowsColumnTypeDatabaseTypeName)
	columns := make([]column, len(names))
	for i, n := range names {
		columns[i].name = n
		if types != nil {
			columns[i].typ = types.ColumnTypeDatabaseTypeName(i)
		}
	}
	row := make([]driver.Value, len(names))
	for {
		if err := rows.Next(row); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := f(columns, row); err != nil {
			return err
		}
	}
}

// exec runs one of this package's own statements.
func (c *conn) exec(sql string) error {
	c.own = true
	if err := c.rows(statement{text: sql}, nil, func([]column, []driver.Value) error { return nil }); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

// number asks one of this package's own questions.
func (c *conn) number(sql string) (n int64, err error) {
	c.own = true
	err = c.rows(statement{text: sql}, nil, func(_ []column, row []driver.Value) error {
		n, _ = row[0].(int64)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", sql, err)
	}
	return n, nil
}
