package db

import (
	"context"
	"crypto/sha256"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"

	"bulkhead/internal/tool"
)

// changes are the rows that a transaction changed, as they were before it.
type changes struct {
	tables map[string]map[int64]row // by table and rowid; nil: there was no row
	size   int                      // bytes, of what is kept of them at least
	// schema is what sqlite_schema had before, and the sum of the SQL that made it.
	schema map[object][sha256.Size]byte
	value  uintptr // where SQLite writes which value it gives
}

const (
	tooLarge = "what was there before was not kept: it was too large"
	// rowSize is what a row takes that was not there before, in bytes of JSON.
	rowSize = 72
)

// full says that there is more than can be kept. Nothing is noted any more.
func (ch *changes) full() bool { return ch.size > tool.MaxUndo }

// note keeps what a row was when it is changed for the first time.
func (ch *changes) note(table string, id int64, old func() row) {
	rows := ch.tables[table]
	if _, ok := rows[id]; ok || ch.full() {
		return
	}
	if rows == nil {
		rows = map[int64]row{}
		ch.tables[table] = rows
	}
	r := old()
	ch.size += rowSize + r.bytes()
	rows[id] = r
}

func noRow() row { return nil }

// preupdate is called by SQLite before it changes a row
// (https://sqlite.org/c3ref/preupdate_blobwrite.html). The driver's own hook cuts texts
// at a NUL character and takes an empty blob for NULL.
func preupdate(tls *libc.TLS, _, db uintptr, op int32, _, table uintptr, before, after int64) {
	v, _ := watches.Load(db)
	w, ok := v.(*watch)
	if !ok || w.changes == nil || w.changes.full() {
		return
	}
	ch, name := w.changes, libc.GoString(table)
	if op != sqlite3.SQLITE_INSERT {
		ch.note(name, before, func() row { return oldRow(tls, db, ch) })
	}
	if op == sqlite3.SQLITE_INSERT || op == sqlite3.SQLITE_UPDATE && after != before {
		ch.note(name, after, noRow)
	}
}

// oldRow reads the row that SQLite is about to change. One that cannot be read, or not be
// kept, leaves ch full.
func oldRow(tls *libc.TLS, db uintptr, ch *changes) row {
	give := func() row { ch.size = tool.MaxUndo + 1; return nil }
	at := uintptr(unsafe.Pointer(&ch.value)) // #nosec G103 -- ch lies in the heap, which does not move
	out := row{}
	for i, total := int32(0), ch.size; i < sqlite3.Xsqlite3_preupdate_count(tls, db); i++ {
		if sqlite3.Xsqlite3_preupdate_old(tls, db, i, at) != sqlite3.SQLITE_OK {
			return give()
		}
		v := ch.value
		var c []byte
		switch sqlite3.Xsqlite3_value_type(tls, v) {
		case sqlite3.SQLITE_INTEGER:
			c = cellOf(sqlite3.Xsqlite3_value_int64(tls, v))
		case sqlite3.SQLITE_FLOAT:
			c = cellOf(sqlite3.Xsqlite3_value_double(tls, v))
		case sqlite3.SQLITE_TEXT:
			p := sqlite3.Xsqlite3_value_text(tls, v)
			c = append([]byte{cellText}, memory(p, sqlite3.Xsqlite3_value_bytes(tls, v))...)
		case sqlite3.SQLITE_BLOB:
			p := sqlite3.Xsqlite3_value_blob(tls, v)
			c = append([]byte{cellBlob}, memory(p, sqlite3.Xsqlite3_value_bytes(tls, v))...)
		default:
			c = cellOf(nil)
		}
		if total += len(c); total > tool.MaxUndo {
			return give()
		}
		out = append(out, c)
	}
	return out
}

// memory is n bytes of SQLite's, good until it goes on.
func memory(p uintptr, n int32) []byte {
	if p == 0 || n <= 0 {
		return nil
	}
	return libc.GoBytes(p, int(n))
}

// kept does the changes of a transaction and, when somebody may want them back, keeps
// what takes them back. That is durable before the transaction is: when the gateway is
// killed between the two, the rows are as they were, which taking back sees.
func kept(ctx context.Context, c *conn, f func() error) (err error) {
	keep := tool.KeeperOf(ctx)
	if keep == nil {
		return f()
	}
	ch := &changes{tables: map[string]map[int64]row{}}
	if ch.schema, err = c.schema(); err != nil {
		return err
	}
	c.watch.listen(ch)
	err = f()
	c.watch.listen(nil)
	if err != nil {
		return err
	}
	u, err := ch.undo(c)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(u)
	if err == nil && len(raw) > tool.MaxUndo {
		raw, err = json.Marshal(undo{Never: tooLarge})
	}
	if err != nil {
		return err
	}
	return keepRaw(keep, raw)
}

// unchanged keeps of a transaction that failed, and was rolled back, that it did nothing.
func unchanged(ctx context.Context) error {
	keep := tool.KeeperOf(ctx)
	if keep == nil {
		return nil
	}
	return keepRaw(keep, []byte("{}"))
}

func keepRaw(keep tool.Keeper, raw []byte) error {
	if err := keep(nil, raw); err != nil {
		// Not wrapped: what SQLite says of the gateway's own store is no answer to the agent.
		return fmt.Errorf("db: keep what takes the changes back: %s", err.Error())
	}
	return nil
}

// listen has ch hear of rows before they are changed, by statements that are prepared
// from now on; nil: nobody.
func (w *watch) listen(ch *changes) {
	tls := libc.NewTLS()
	defer tls.Close()
	w.changes = ch
	f := uintptr(0)
	if ch != nil {
		f = callback(preupdate)
	}
	sqlite3.Xsqlite3_preupdate_hook(tls, w.db, f, 0)
}

// schema gives the tables and indexes that were made by a statement, without their SQL,
// and the sums of that.
func (c *conn) schema() (map[object][sha256.Size]byte, error) {
	out := map[object][sha256.Size]byte{}
	err := c.objects(func(o object) {
		sum := sha256.Sum256([]byte(o.SQL))
		o.SQL = ""
		out[o] = sum
	})
	return out, err
}

func (c *conn) objects(f func(object)) error {
	c.own = true
	return c.rows(statement{text: "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid"}, nil, func(_ []column, r []driver.Value) error {
		f(object{textOf(r[0]), textOf(r[1]), textOf(r[2])})
		return nil
	})
}

func textOf(v driver.Value) string { s, _ := v.(string); return s }

// undo gives what takes the changes back, before the transaction ends.
func (ch *changes) undo(c *conn) (u undo, err error) {
	found := 0
	err = c.objects(func(o object) {
		sum, ok := ch.schema[object{Type: o.Type, Name: o.Name}]
		switch {
		case !ok:
			u.Made = append(u.Made, o)
		case sum == sha256.Sum256([]byte(o.SQL)):
			found++
		}
	})
	switch {
	case err != nil:
		return undo{}, err
	case found != len(ch.schema):
		return undo{Never: "a table or an index was dropped"}, nil
	case ch.full():
		return undo{Never: tooLarge}, nil
	}
	for _, name := range slices.Sorted(maps.Keys(ch.tables)) {
		e, err := ch.edited(c, name)
		var never tool.Never
		if errors.As(err, &never) {
			return undo{Never: string(never)}, nil
		}
		if err != nil {
			return undo{}, err
		}
		if len(e.Rows) > 0 {
			u.Tables = append(u.Tables, e)
		}
	}
	return u, nil
}

// edited gives the rows of a table that are not as they were.
func (ch *changes) edited(c *conn, name string) (edited, error) {
	s, err := c.shapeOf(name)
	if errors.Is(err, errNoTable) {
		return edited{}, tool.Never(fmt.Sprintf("the table %q is SQLite's own, or gone", clip(name)))
	}
	if err != nil {
		return edited{}, err
	}
	read, end, err := s.reader(c)
	if err != nil {
		return edited{}, err
	}
	defer end()
	out := edited{Name: name, SQL: s.sql}
	rows := ch.tables[name]
	for _, id := range slices.Sorted(maps.Keys(rows)) {
		now, err := read(id)
		if err != nil {
			return edited{}, err
		}
		if before := rows[id]; !before.same(now) {
			out.Rows = append(out.Rows, editRow{ID: id, Before: before, After: now.sum()})
		}
	}
	return out, nil
}
