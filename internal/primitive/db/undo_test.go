package db

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/deny"
	"bulkhead/internal/tool"
)

// step calls a tool as a step of an execution does, and gives what was kept of it.
func (w *world) step(t testing.TB, name string, input any) (undo []byte, r *deny.Reason) {
	t.Helper()
	raw, ok := input.(string)
	if !ok {
		b, err := json.Marshal(input)
		if err != nil {
			t.Fatal(err)
		}
		raw = string(b)
	}
	ctx := tool.WithKeeper(t.Context(), func(tx tool.Exec, b []byte) error {
		if tx != nil {
			t.Error("the agent's database is not the gateway's")
		}
		undo = b
		return nil
	})
	_, r = w.calls.Call(ctx, tool.Caller{Team: "t", Agent: "a"}, name, []byte(raw))
	return undo, r
}

// did is a step that must go through.
func (w *world) did(t testing.TB, name string, input any) []byte {
	t.Helper()
	undo, r := w.step(t, name, input)
	if r != nil {
		t.Fatalf("%s %v: %v %v", name, input, r, r.Fields)
	}
	if undo == nil {
		t.Fatalf("%s %v keeps nothing", name, input)
	}
	return undo
}

func query1(sql string, params ...any) map[string]any {
	return map[string]any{"sql": sql, "params": params}
}

func (w *world) undo(t testing.TB, raw []byte) error {
	t.Helper()
	return w.Undo(context.WithoutCancel(t.Context()), "test", raw)
}

// outcome is "" for done, the code of a refusal, "never: " and why, or "fault".
func outcome(err error) string {
	var r *deny.Reason
	var never tool.Never
	switch {
	case err == nil:
		return ""
	case errors.As(err, &never):
		return "never: " + string(never)
	case errors.As(err, &r):
		return string(r.Code)
	}
	return "fault"
}

// own runs a statement that no agent could.
func (w *world) own(t testing.TB, sql string) {
	t.Helper()
	if err := w.writing(t.Context(), func(c *conn) error { return c.exec(sql) }); err != nil {
		t.Fatal(err)
	}
}

// dump is all that is in the database: the schema, and every row with its rowid and
// the type of every value.
func (w *world) dump(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	err := w.writing(context.WithoutCancel(t.Context()), func(c *conn) error {
		var tables []string
		if err := c.objects(func(o object) {
			fmt.Fprintf(&b, "%q\n", o)
			if o.Type == "table" && !strings.Contains(o.SQL, "VIRTUAL") && !strings.Contains(o.SQL, "WITHOUT ROWID") {
				tables = append(tables, o.Name)
			}
		}); err != nil {
			return err
		}
		for _, name := range tables {
			names, err := c.columnsOf(name)
			if err != nil {
				return err
			}
			sql := "SELECT oid"
			for n := range names {
				sql += ", typeof(" + quoteName(n) + ") || hex(" + quoteName(n) + ") || '=" + strings.ReplaceAll(n, "'", "") + "'"
			}
			err = c.rows(statement{text: sql + " FROM " + quoteName(name) + " ORDER BY oid"}, nil, func(_ []column, r []driver.Value) error {
				cells := map[string]bool{}
				for _, v := range r[1:] {
					cells[textOf(v)] = true
				}
				fmt.Fprintf(&b, "%s %v %v\n", name, r[0], cells)
				return nil
			})
			if err != nil {
				return err
			}
		}
		var check string
		if err := c.rows(statement{text: "PRAGMA integrity_check"}, nil, func(_ []column, r []driver.Value) error { check += textOf(r[0]); return nil }); err != nil {
			return err
		}
		b.WriteString(check)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(b.String(), "\nok") && b.String() != "ok" {
		t.Fatalf("the database is damaged:\n%s", b.String())
	}
	return b.String()
}

// exact holds that the budget counts what the file has.
func (w *world) exact(t testing.TB) {
	t.Helper()
	var pages int64
	if err := w.writing(context.WithoutCancel(t.Context()), func(c *conn) (err error) { pages, err = c.number("PRAGMA page_count"); return err }); err != nil {
		t.Fatal(err)
	}
	if used, _ := w.budget.Used(); used != pages*pageSize {
		t.Errorf("%d bytes are counted, and the file has %d", used, pages*pageSize)
	}
}

// filled is a database with a table of each type, one without a key, and some rows.
func filled(t testing.TB) *world {
	t.Helper()
	w := open(t, file(t), roomy, 0)
	w.call(t, "db_create_table", everyType)
	w.call(t, "db_create_table", `{"table":"bare","schema":[{"column":"a","type":"text"},{"column":"b","type":"real"}]}`)
	w.call(t, "db_create_table", `{"table":"pair","schema":[{"column":"x","type":"text","primaryKey":true,"nullable":true},{"column":"y","type":"integer","primaryKey":true,"nullable":true},{"column":"z","type":"text"}]}`)
	w.call(t, "db_create_table", `{"table":"rowids","schema":[{"column":"rowid","type":"text"},{"column":"_rowid_","type":"text"}]}`)
	w.sql(t, "INSERT INTO rowids VALUES ('x', 'y')")
	for i := range 5 {
		w.sql(t, "INSERT INTO t (name, n, r, j) VALUES (?, ?, ?, ?)", fmt.Sprint("n", i), i*i, float64(i)/2, map[string]any{"i": i})
		w.sql(t, "INSERT INTO bare VALUES (?, ?)", fmt.Sprint("b", i%2), float64(i))
		w.sql(t, "INSERT INTO pair VALUES (?, ?, 'z')", map[bool]any{true: nil, false: "x"}[i%2 == 0], i)
	}
	w.sql(t, "DELETE FROM bare WHERE rowid = 2") // a gap that nobody fills by itself
	w.sql(t, "CREATE UNIQUE INDEX names ON t (name)")
	return w
}

func TestUndoPutsEveryKindOfChangeBack(t *testing.T) {
	w := filled(t)
	before := w.dump(t)
	for _, c := range []struct {
		tool  string
		input any
	}{
		{"db_insert", `{"table":"t","data":{"name":"new"}}`},
		{"db_insert", `{"table":"bare","data":{"a":"new"}}`},
		{"db_update", `{"table":"bare","data":{"a":"same"},"where":{"a":["b0","b1"]}}`},
		{"db_update", `{"table":"t","data":{"id":99},"where":{"id":3}}`},
		{"db_delete", `{"table":"pair","where":{"x":null}}`},
		{"db_update", `{"table":"t","data":{"name":"x"},"where":{"name":"none"}}`},
		{"db_query", query1("DELETE FROM t")},
		{"db_query", query1("DELETE FROM bare")},
		{"db_query", query1("UPDATE t SET id = id + 100, name = name || 'x'")},
		{"db_query", query1("UPDATE bare SET rowid = rowid + 10")},
		{"db_query", query1("REPLACE INTO t (id, name) VALUES (1, 'n3')")},
		{"db_query", query1("UPDATE OR REPLACE t SET id = 2 WHERE id = 4")},
		{"db_query", query1("INSERT INTO t (id, name) VALUES (1, 'z') ON CONFLICT (id) DO UPDATE SET n = 7")},
		{"db_query", query1("INSERT INTO pair SELECT * FROM pair WHERE x IS NULL")},
		{"db_query", query1("WITH q AS (SELECT 1) INSERT INTO bare SELECT 'q', 1.5 FROM q RETURNING *")},
		{"db_query", query1("UPDATE bare SET a = x'', b = 1e308*10")},
		{"db_query", query1("UPDATE bare SET a = 'nul' || char(0) || 'behind', b = NULL")},
		{"db_query", query1("UPDATE bare SET a = CAST(x'ff00fe' AS TEXT)")},
		{"db_query", query1("CREATE INDEX more ON bare (a)")},
		{"db_create_table", `{"table":"made","schema":[{"column":"a","type":"text","primaryKey":true}]}`},
		{"db_create_table", `{"table":"t","schema":[{"column":"a","type":"text"}],"ifNotExists":true}`},
		{"db_transaction", map[string]any{"queries": []any{
			query1("DELETE FROM t WHERE id = 1"), query1("INSERT INTO t (id, name) VALUES (1, 'back')"), query1("UPDATE t SET name = name || '!' WHERE id > 2"),
			query1("CREATE UNIQUE INDEX more ON t (name, id)"), query1("INSERT INTO bare SELECT name, n FROM t"), query1("INSERT INTO t (name) VALUES ('gone')"), query1("DELETE FROM t WHERE name = 'gone'"),
		}}},
		{"db_query", query1("DROP TABLE IF EXISTS none")},
		{"db_transaction", map[string]any{"queries": []any{query1("DELETE FROM bare WHERE rowid > 1"), query1("CREATE UNIQUE INDEX one ON bare (a)")}}},
		{"db_insert", `{"table":"rowids","data":{"rowid":"a"}}`},
		{"db_update", `{"table":"rowids","data":{"rowid":"b","_rowid_":"c"},"where":{"_rowid_":"y"}}`},
	} {
		t.Run(fmt.Sprint(c.tool, c.input), func(t *testing.T) {
			undo := w.did(t, c.tool, c.input)
			after := w.dump(t)
			for i := range 2 { // a rollback that was cut short is asked for again
				if err := w.undo(t, undo); err != nil {
					t.Fatal(i, err)
				}
				if got := w.dump(t); got != before {
					t.Fatalf("before:\n%s\nafter it was done:\n%s\nafter it was undone:\n%s", before, after, got)
				}
			}
			w.exact(t)
		})
	}
}

// What reads back as it was before a change may have been stored otherwise: values that
// were there before anything was noted are put back with their types.
func TestUndoPutsOddValuesBack(t *testing.T) {
	w := filled(t)
	// Some declared types are given otherwise by the driver.
	w.own(t, "CREATE TABLE odd (a, b TEXT, c REAL, d DATE, e BOOLEAN, f TIMESTAMP, g INT, h BLOB)")
	for _, v := range []string{"'2026-11-30 08:30:00'", "1700000000", "x''", "''", "'nul' || char(0) || 'behind'", "CAST(x'ff00fe' AS TEXT)", "x'00ff'", "NULL", "9223372036854775807", "-9223372036854775808", "1e308*10", "-1e308*10", "0.1", "-0.0", "5.0"} {
		w.sql(t, "DELETE FROM odd")
		w.own(t, "INSERT INTO odd VALUES ("+v+strings.Repeat(", "+v, 7)+")")
		before := w.dump(t)
		undo := w.did(t, "db_query", query1("DELETE FROM odd"))
		if err := w.undo(t, undo); err != nil || w.dump(t) != before {
			t.Errorf("%s: %v\n%s", v, err, w.dump(t))
		}
	}
}

func TestUndoRefusesWhatChangedSince(t *testing.T) {
	for _, c := range []struct{ name, tool, input, since string }{
		{"another column of the row", "db_update", `{"table":"t","data":{"n":100},"where":{"id":2}}`, "UPDATE t SET r = 9.5 WHERE id = 2"},
		{"one of two rows that is elsewhere", "db_query", `{"sql":"INSERT INTO t (id, name) VALUES (20, 'x'), (21, 'y')"}`, "UPDATE t SET id = 60 WHERE id = 20"},
		{"one of two rows", "db_query", `{"sql":"DELETE FROM t WHERE id < 3"}`, "INSERT INTO t (id, name) VALUES (2, 'again')"},
		{"a row that is there again", "db_delete", `{"table":"t","where":{"id":2}}`, "INSERT INTO t (id, name) VALUES (2, 'again')"},
		{"a row elsewhere that has what must be unique", "db_delete", `{"table":"t","where":{"id":2}}`, "INSERT INTO t (id, name) VALUES (50, 'n1')"},
		{"an index that does not allow what was there", "db_query", `{"sql":"DELETE FROM bare WHERE rowid = 1"}`, "CREATE UNIQUE INDEX u ON bare (length(a)) WHERE rowid < 3; INSERT INTO bare (rowid, a) VALUES (2, 'zz')"},
		{"a table that is gone", "db_insert", `{"table":"bare","data":{"a":"x"}}`, "DROP TABLE bare"},
		{"a table that was made anew", "db_insert", `{"table":"bare","data":{"a":"x"}}`, `DROP TABLE bare; CREATE TABLE bare ("a" TEXT, "b" REAL, "c" TEXT)`},
		{"a table with rows", "db_create_table", `{"table":"made","schema":[{"column":"a","type":"text"}]}`, "INSERT INTO made VALUES (1)"},
		{"a table with an index", "db_create_table", `{"table":"made","schema":[{"column":"a","type":"text"}]}`, "CREATE INDEX m ON made (a)"},
		{"a table of another making", "db_create_table", `{"table":"made","schema":[{"column":"a","type":"text"}]}`, "DROP TABLE made; CREATE TABLE made (b)"},
		{"an index of another making", "db_query", `{"sql":"CREATE INDEX m ON bare (a)"}`, "DROP INDEX m; CREATE INDEX m ON bare (b)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := filled(t)
			undo := w.did(t, c.tool, c.input)
			for sql := range strings.SplitSeq(c.since, "; ") {
				w.own(t, sql)
			}
			w.refuses(t, undo)
		})
	}
}

// refuses holds that it is a conflict, and that nothing was changed.
func (w *world) refuses(t testing.TB, undo []byte) {
	t.Helper()
	before := w.dump(t)
	if got := outcome(w.undo(t, undo)); got != string(deny.ToolConflict) {
		t.Errorf("%q, and a conflict is wanted", got)
	}
	if got := w.dump(t); got != before {
		t.Errorf("it changed something:\n%s\n%s", before, got)
	}
	w.exact(t)
}

// No agent can make these, but a file may be older than the program.
func TestWhatCannotBeUndoneIsNamed(t *testing.T) {
	for _, c := range []struct {
		name     string
		make     []string
		do, want string
	}{
		{"WITHOUT ROWID", []string{"CREATE TABLE o (a PRIMARY KEY, b) WITHOUT ROWID"}, "INSERT INTO o VALUES (1, 2)", `never: the table "o" has no rowid`},
		{"computed", []string{"CREATE TABLE o (a, b AS (a + 1) STORED)"}, "INSERT INTO o VALUES (1)", `never: the table "o" has columns that are computed`},
		{"names", []string{"CREATE TABLE o (rowid, _rowid_, OID)"}, "INSERT INTO o VALUES (1, 2, 3)", `never: the table "o" has no name left for its rowid`},
		{"triggers", []string{"CREATE TABLE o (a)", "CREATE TRIGGER g AFTER INSERT ON o BEGIN DELETE FROM bare; END"}, "INSERT INTO o VALUES (1)", `never: the table "o" has triggers`},
		{"AUTOINCREMENT", []string{"CREATE TABLE o (a INTEGER PRIMARY KEY AUTOINCREMENT)"}, "INSERT INTO o VALUES (1)", `never: the table "o" has AUTOINCREMENT`},
		{"virtual", []string{"CREATE VIRTUAL TABLE o USING fts5 (a)"}, "INSERT INTO o VALUES ('words')", `never: "o_`},
		{"another is virtual", []string{"CREATE VIRTUAL TABLE o USING fts5 (a)"}, "INSERT INTO bare VALUES ('words', 1)", "never: the database has virtual tables"},
		{"dropped", []string{"CREATE TABLE o (a)"}, "DROP TABLE o", "never: a table or an index was dropped"},
		{"index dropped", []string{"CREATE TABLE o (a)", "CREATE INDEX p ON o (a)"}, "DROP INDEX p", "never: a table or an index was dropped"},
		{"large", []string{"CREATE TABLE o (a)", "INSERT INTO o VALUES (zeroblob(900000))"}, "DELETE FROM o", "never: " + tooLarge},
		{"many", []string{"CREATE TABLE o (a)"}, "INSERT INTO o WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40000) SELECT i FROM n", "never: " + tooLarge},
		{"large and new", []string{"CREATE TABLE o (a)"}, "INSERT INTO o VALUES (zeroblob(3000000))", ""},
		{"ten thousand", []string{"CREATE TABLE o (a)"}, "INSERT INTO o WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) SELECT i FROM n", ""},
		{"foreign key", []string{"CREATE TABLE p (a PRIMARY KEY)", "CREATE TABLE o (a REFERENCES p (a))"}, "INSERT INTO o VALUES (1)", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := filled(t)
			for _, sql := range c.make {
				w.own(t, sql)
			}
			before := w.dump(t)
			undo := w.did(t, "db_query", query1(c.do))
			after := w.dump(t)
			got := outcome(w.undo(t, undo))
			if !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
				t.Errorf("%q, want %q", got, c.want)
			}
			if now := w.dump(t); got == "" && now != before || got != "" && now != after {
				t.Error("it is neither as it was nor as it was left")
			}
		})
	}
}

// The agent's own file is committed after what takes it back is kept: whatever the
// gateway is killed between, a rollback finds the rows as they were, or as they were left.
func TestUndoAfterACrash(t *testing.T) {
	w := filled(t)
	before := w.dump(t)
	var raw []byte
	ctx := tool.WithKeeper(t.Context(), func(_ tool.Exec, b []byte) error {
		if raw == nil {
			raw = b
		}
		return errors.New("killed between the two")
	})
	if _, r := w.calls.Call(ctx, tool.Caller{Team: "t", Agent: "a"}, "db_query", []byte(`{"sql":"DELETE FROM t"}`)); r == nil || r.Code != deny.ToolFailed {
		t.Fatal(r)
	}
	if w.dump(t) != before || raw == nil {
		t.Fatal("what could not be kept was done")
	}
	if err := w.undo(t, raw); err != nil || w.dump(t) != before {
		t.Error("what was never done:", err)
	}
	// It is done now, and another process has the file.
	undo := w.did(t, "db_query", query1("DELETE FROM t"))
	path := w.cfg.Path
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w = open(t, path, roomy, 0)
	for range 2 {
		if err := w.undo(t, undo); err != nil || w.dump(t) != before {
			t.Error(err)
		}
	}
}

// What SQLite refused was not done, and that is known.
func TestWhatFailedChangedNothing(t *testing.T) {
	w := filled(t)
	before := w.dump(t)
	undo, r := w.step(t, "db_transaction", map[string]any{"queries": []any{query1("DELETE FROM t"), query1("INSERT INTO pair VALUES ('x', 1, 'there')")}})
	if r == nil || r.Code != deny.ToolConflict || undo == nil {
		t.Fatalf("%v, and it keeps %q", r, undo)
	}
	if err := w.undo(t, undo); err != nil || w.dump(t) != before {
		t.Error(err)
	}
}

// What is put back has to fit as what an agent puts there.
func TestUndoStaysWithinTheBudget(t *testing.T) {
	w := open(t, file(t), 1<<20, 0)
	w.call(t, "db_create_table", `{"table":"a","schema":[{"column":"v","type":"text"}]}`)
	w.sql(t, "INSERT INTO a VALUES (hex(zeroblob(200000)))")
	undo := w.did(t, "db_query", query1("DELETE FROM a"))
	w.sql(t, "INSERT INTO a (rowid, v) VALUES (7, hex(zeroblob(350000)))")
	before := w.dump(t)
	if got := outcome(w.undo(t, undo)); got != string(deny.ToolQuota) {
		t.Error(got)
	}
	if w.dump(t) != before {
		t.Error("it changed something")
	}
	w.exact(t)
	w.sql(t, "DELETE FROM a")
	if err := w.undo(t, undo); err != nil {
		t.Error(err)
	}
	w.exact(t)
}

// Calls that are no steps have SQLite call nothing, and what an agent may is the same in
// a step and after one.
func TestStepsLeaveTheConnectionAsItWas(t *testing.T) {
	w := filled(t)
	undo := w.did(t, "db_query", query1("DELETE FROM bare"))
	if err := w.undo(t, undo); err != nil {
		t.Fatal(err)
	}
	_ = w.writing(t.Context(), func(c *conn) error {
		if c.watch.changes != nil {
			t.Error("changes are still noted")
		}
		return nil
	})
	for _, sql := range []string{"DELETE FROM sqlite_schema", "CREATE TRIGGER g AFTER INSERT ON bare BEGIN DELETE FROM t; END", "SELECT load_extension('x')", "INSERT INTO sqlite_stat1 VALUES (1, 2, 3)"} {
		direct := w.call(t, "db_query", query1(sql))
		undo, r := w.step(t, "db_query", query1(sql))
		if r == nil || string(r.Code) != direct || undo != nil && string(undo) != "{}" {
			t.Errorf("%s: %v, and directly %s", sql, r, direct)
		}
	}
	if undo, r := w.step(t, "db_query", query1("SELECT * FROM t")); r != nil || undo != nil {
		t.Error("what reads keeps something:", r)
	}
}

// Whatever steps did to whatever tables, undoing them from the last to the first leaves
// the very database; undoing one out of its turn, or after something else, leaves that,
// or what was there.
func TestUndoRestoresWhatWas(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := open(t, file(t), roomy, 0)
		for n := range 2 {
			made := rapid.SampledFrom([]string{
				"c0 INTEGER PRIMARY KEY, c1", "c0, c1", "c0 TEXT PRIMARY KEY, c1 REAL", "c0, c1 UNIQUE", "c0, c1, PRIMARY KEY (c0, c1) ON CONFLICT REPLACE",
				"c0 REAL UNIQUE, c1 DATE", `"c0" JSONB TEXT, "c1" BIGINT, CHECK (json_valid("c0")), CHECK (typeof("c1") IN ('integer','null'))`,
			}).Draw(rt, "columns")
			w.own(t, fmt.Sprintf("CREATE TABLE t%d (%s)", n, made))
		}
		statement := rapid.Custom(func(t *rapid.T) string {
			value := func() string {
				return rapid.SampledFrom([]string{"0", "1", "2", "3", "NULL", "'a'", "'b'", "'[1]'", "1.5", "x'00'", "rowid", "c0"}).Draw(t, "value")
			}
			table := rapid.SampledFrom([]string{"t0", "t1"}).Draw(t, "table")
			or := rapid.SampledFrom([]string{"", "OR REPLACE ", "OR IGNORE ", "OR FAIL "}).Draw(t, "or")
			where := rapid.SampledFrom([]string{"", " WHERE c0 = 1", " WHERE rowid % 2", " WHERE c0 IS NULL"}).Draw(t, "where")
			switch rapid.IntRange(0, 8).Draw(t, "kind") {
			case 0, 1, 2:
				v := strings.NewReplacer("rowid", "7", "c0", "8").Replace(value())
				v1 := strings.NewReplacer("rowid", "7", "c0", "8").Replace(value())
				if rapid.Bool().Draw(t, "by rowid") {
					return "INSERT " + or + "INTO " + table + " (rowid, c1) VALUES (" + rapid.SampledFrom([]string{"1", "2", "3", "NULL"}).Draw(t, "id") + ", " + v1 + ")"
				}
				return "INSERT " + or + "INTO " + table + " VALUES (" + v + ", " + v1 + ")"
			case 3:
				return "UPDATE " + or + table + " SET " + rapid.SampledFrom([]string{"c0", "c1"}).Draw(t, "column") + " = " + value() + where
			case 4:
				return "UPDATE " + or + table + " SET rowid = rowid + " + rapid.SampledFrom([]string{"1", "10", "-1"}).Draw(t, "by") + where
			case 5:
				return "DELETE FROM " + table + where
			case 6:
				return "INSERT " + or + "INTO t0 (c1, c0) SELECT c0, c1 FROM t1" + where
			case 7:
				return "INSERT " + or + "INTO t0 SELECT * FROM t1" + where
			}
			return "CREATE " + rapid.SampledFrom([]string{"", "UNIQUE "}).Draw(t, "unique") + "INDEX i" + fmt.Sprint(rapid.IntRange(0, 2).Draw(t, "n")) + " ON " + table + " (c0)"
		})
		for _, sql := range rapid.SliceOfN(statement, 10, 16).Draw(rt, "there") {
			_, _ = w.try(t, "db_query", query1(sql)) // as it goes
		}
		dumps, undos := []string{w.dump(t)}, [][]byte{}
		for _, several := range rapid.SliceOfN(rapid.SliceOfN(statement, 1, 3), 1, 5).Draw(rt, "steps") {
			var queries []any
			for _, sql := range several {
				queries = append(queries, query1(sql))
			}
			undo, r := w.step(t, "db_transaction", map[string]any{"queries": queries})
			if now := w.dump(t); r != nil && now != dumps[len(dumps)-1] {
				rt.Fatalf("%v was refused and done", several)
			} else if r == nil {
				dumps, undos = append(dumps, now), append(undos, undo)
			}
		}
		n := len(undos)
		if n > 1 && rapid.Bool().Draw(rt, "out of turn") {
			i := rapid.IntRange(0, n-2).Draw(rt, "which")
			err := w.undo(t, undos[i])
			if code := outcome(err); code != "" && code != string(deny.ToolConflict) || err != nil && w.dump(t) != dumps[n] {
				rt.Fatalf("%v, and the database is as it was left: %v", err, w.dump(t) == dumps[n])
			}
			w.exact(t)
			return
		}
		for i := n - 1; i >= 0; i-- {
			if err := w.undo(t, undos[i]); err != nil {
				rt.Fatalf("%v\n%s", err, undos[i])
			}
			if now := w.dump(t); now != dumps[i] {
				rt.Fatalf("step %d of %d:\n%s\nbefore:\n%s\nafter it was undone:\n%s", i+1, n, undos[i], dumps[i], now)
			}
		}
		w.exact(t)
	})
}

// FuzzUndo holds that whatever a damaged file holds, an undoing is refused and changes
// nothing, or leaves a database that is whole and within its schema.
func FuzzUndo(f *testing.F) {
	w := filled(f)
	for _, sql := range []string{"DELETE FROM t WHERE id = 2", "INSERT INTO bare VALUES ('x', 1)", "UPDATE pair SET z = 1", "CREATE INDEX fuzzed ON bare (a)"} {
		f.Add(w.did(f, "db_query", query1(sql)))
	}
	f.Add([]byte(`{"tables":[{"name":"sqlite_schema","sql":"x","rows":[{"id":1,"before":["dHg="]}]}]}`))
	f.Add([]byte(`{"made":[{"type":"table","name":"sqlite_schema","sql":""},{"type":"view; DROP","name":"t","sql":""}]}`))
	f.Add([]byte(`{"never":"x"}`))
	schema := func(t testing.TB) (out []string) {
		_ = w.writing(context.WithoutCancel(t.Context()), func(c *conn) error {
			return c.objects(func(o object) { out = append(out, o.Name) })
		})
		return out
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		before, names := w.dump(t), schema(t)
		var u undo
		_ = json.Unmarshal(raw, &u) // what does not decode is refused
		err := w.undo(t, raw)
		after := w.dump(t) // and integrity
		if err != nil && after != before {
			t.Fatalf("%v, and it changed something", err)
		}
		if now := schema(t); len(u.Made) == 0 && strings.Join(now, "\n") != strings.Join(names, "\n") {
			t.Fatalf("the schema was %q and is %q", names, now)
		}
		w.exact(t)
	})
}

func FuzzCell(f *testing.F) {
	for _, v := range []driver.Value{nil, int64(-1), 1.5, "x\x00y", []byte{}} {
		f.Add(cellOf(v))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		v, err := valueOf(raw)
		if err == nil && string(cellOf(v)) != string(raw) {
			t.Errorf("%x is %v, and that is %x", raw, v, cellOf(v))
		}
	})
}
