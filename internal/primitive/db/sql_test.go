package db

import (
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"

	"bulkhead/internal/deny"
)

type sqlCase struct{ verdict, sql string }

// sqlCases reads testdata/sql.txt.
func sqlCases(t testing.TB) (out []sqlCase) {
	t.Helper()
	data, err := os.ReadFile("testdata/sql.txt")
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(string(data), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		var c sqlCase
		verdict, text, ok := strings.Cut(line, "\t")
		if !ok || json.Unmarshal([]byte(text), &c.sql) != nil {
			t.Fatalf("testdata/sql.txt:%d is malformed: %s", i+1, line)
		}
		c.verdict = verdict
		out = append(out, c)
	}
	return out
}

func TestEveryStatementOfTheListGetsItsVerdict(t *testing.T) {
	w := open(t, file(t), roomy, 0)
	w.call(t, "db_create_table", everyType)
	for _, table := range []string{"order", "victim", "victim2"} {
		w.call(t, "db_create_table", `{"table":"`+table+`","schema":[{"column":"id","type":"text","primaryKey":true}]}`)
	}
	w.sql(t, "INSERT INTO t (id, name) VALUES (1, 'one'), (2, 'two')")
	w.sql(t, `INSERT INTO "order" VALUES ('1')`)
	w.sql(t, "CREATE INDEX i ON t (name)")
	cases := sqlCases(t)
	if len(cases) < 200 {
		t.Errorf("there are %d cases", len(cases))
	}
	for _, c := range cases {
		_, r := w.try(t, "db_query", map[string]any{"sql": c.sql})
		got := "ok"
		if r != nil {
			got = strings.TrimPrefix(string(r.Code), "tools.")
		}
		if got != c.verdict {
			t.Errorf("%.80q: %s, and %s is expected (%v %+v)", c.sql, got, c.verdict, r, fieldsOf(r))
		}
		// The same within a transaction; what is refused changes nothing of it.
		if c.verdict == "unsafe" {
			_, r := w.try(t, "db_transaction", map[string]any{"queries": []map[string]string{{"sql": "INSERT INTO victim3 SELECT 1"}, {"sql": c.sql}}})
			if r == nil {
				t.Errorf("%.80q went through in a transaction", c.sql)
			}
		}
	}
}

// TestTheAuthorizerHoldsByItself gives what must not run to SQLite directly,
// as if scan had been fooled.
func TestTheAuthorizerHoldsByItself(t *testing.T) {
	w := open(t, file(t), roomy, 0)
	w.call(t, "db_create_table", everyType)
	w.call(t, "db_create_table", `{"table":"order","schema":[{"column":"id","type":"text","primaryKey":true}]}`)
	c := <-w.write
	defer func() { w.write <- c }()
	for _, each := range sqlCases(t) {
		if each.verdict != "unsafe" || strings.Contains(each.sql, "\x00") {
			continue
		}
		for _, k := range []kind{query, write} {
			c.begin(k)
			p, err := c.raw.Prepare(each.sql)
			if err == nil {
				err = step(p, nil, func([]column, []driver.Value) error { return nil })
				_ = p.Close()
			}
			words := strings.ToUpper(strings.Join(strings.Fields(each.sql), " "))
			if err == nil && !harmless(words) {
				t.Errorf("SQLite ran %q", each.sql)
			}
		}
	}
}

// harmless are texts that scan refuses and the authorizer need not.
func harmless(sql string) bool {
	switch sql {
	case "REINDEX", "REINDEX T":
		return true // there is no index to be made anew
	case "VACUUM", "VACUUM MAIN":
		return true // it writes the agent's own file anew; within a transaction SQLite refuses it
	case "EXPLAIN VACUUM INTO 'X'":
		return true // it is not run
	}
	// Several statements of which each is allowed.
	return strings.Contains(sql, ";") && !strings.Contains(sql, "ATTACH") && !strings.Contains(sql, "COMMIT")
}

// sqliteTail gives what SQLite takes for the rest behind the first statement.
func sqliteTail(t testing.TB, db uintptr, sql string) (rest string, compiled, ok bool) {
	t.Helper()
	tls := libc.NewTLS()
	defer tls.Close()
	text, err := libc.CString(sql)
	if err != nil {
		t.Fatal(err)
	}
	defer libc.Xfree(tls, text)
	out := new(struct{ stmt, tail uintptr })
	var pin runtime.Pinner
	pin.Pin(out)
	defer pin.Unpin()
	rc := sqlite3.Xsqlite3_prepare_v2(tls, db, text, -1, uintptr(unsafe.Pointer(&out.stmt)), uintptr(unsafe.Pointer(&out.tail)))
	stmt := out.stmt
	rest = libc.GoString(out.tail)
	if stmt != 0 {
		sqlite3.Xsqlite3_finalize(tls, stmt)
	}
	return rest, stmt != 0, rc == sqlite3.SQLITE_OK
}

// FuzzScan holds scan against SQLite: a text that scan takes for one statement
// is one for SQLite, which sees nothing behind its end.
func FuzzScan(f *testing.F) {
	for _, c := range sqlCases(f) {
		f.Add(c.sql)
	}
	for _, s := range []string{"SELECT $a(;)", "SELECT 1 /*/;*/", "SELECT '\\';'", "SELECT 1;\x0b", "SELECT 1 --;\r;", "select x';'", "SELECT ?1;2", "SELECT 1.;", "SELECT 0x;", "SELECT 1e-;", "SELECT [];]", "SELECT a.;", "SELECT #;"} {
		f.Add(s)
	}
	path := f.TempDir() + "/x.db"
	c, err := connect(path, writer)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = c.close() })
	if err := c.exec(`CREATE TABLE t (id, name, n, ok, r, j, at, u, i)`); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		st, r := scan(sql)
		if r != nil {
			if r.why == "" || r.mend == "" {
				t.Errorf("%q: refused without a word: %+v", sql, r)
			}
			return
		}
		if !strings.Contains(sql, st.text) {
			t.Errorf("%q became %q", sql, st.text)
		}
		c.begin(st.kind)
		rest, compiled, ok := sqliteTail(t, c.watch.db, sql)
		if !ok {
			return // it does not run at all
		}
		if !compiled {
			t.Errorf("SQLite sees nothing in %q", sql)
		}
		for len(rest) > 0 {
			kind, n := token(rest)
			if kind != space && kind != semicolon {
				t.Fatalf("%q: SQLite sees %q behind the first statement", sql, rest)
			}
			rest = rest[n:]
		}
		if st.kind == query && c.wrote && !strings.HasPrefix(strings.ToUpper(st.text), "WITH") && !st.explained {
			t.Errorf("%q is taken for a query and writes", sql)
		}
	})
}

// FuzzIdentifier has any name used for a table and a column.
func FuzzIdentifier(f *testing.F) {
	for _, s := range []string{"a", `a"b`, `"`, `""`, "select", "größe", "位置", "a;b", "a--", "a/*", "'", "[a]", "`a`", "sqlite_x", "SQLITE_", "a\x00b", " ", "\u202ea", "pragma_table_info", "dbstat", "json_each", strings.Repeat("x", 64), `x" (y); DROP TABLE z; --`} {
		f.Add(s)
	}
	w := open(f, file(f), roomy, 0)
	n := 0
	f.Fuzz(func(t *testing.T, name string) {
		if n++; n%200 == 0 {
			for _, row := range tables(t, w) {
				q, _ := identifier(row)
				w.sql(t, "DROP TABLE "+q)
			}
		}
		schema := []Column{{Name: "id", Type: "integer", PrimaryKey: true}, {Name: name, Type: "jsonb", Nullable: true}}
		made, err := w.Create(t.Context(), "test", name, schema, false, func() error { return nil })
		if !made {
			if err == nil {
				t.Errorf("%q: neither made nor refused", name)
			}
			if code := verdict(err); code != "invalid" && code != "conflict" {
				t.Errorf("%q: %v", name, err)
			}
			return
		}
		found := false
		for _, have := range tables(t, w) {
			found = found || have == name
		}
		if !found {
			t.Errorf("%q was made under another name", name)
		}
		begin := func() error { return nil }
		if _, err := w.Insert(t.Context(), "test", name, map[string]json.RawMessage{name: json.RawMessage(`"x"`)}, begin); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if n, err := w.Delete(t.Context(), "test", name, map[string]json.RawMessage{name: json.RawMessage(`"x"`)}, begin); err != nil || n != 1 {
			t.Errorf("%q: %d %v", name, n, err)
		}
	})
}

func verdict(err error) string {
	var r interface{ Error() string }
	if err == nil {
		return "ok"
	}
	r = err
	for _, code := range []string{"invalid", "conflict", "missing", "unsafe", "quota"} {
		if strings.Contains(r.Error(), "(tools."+code+")") {
			return code
		}
	}
	return "fault"
}

func tables(t testing.TB, w *world) (out []string) {
	t.Helper()
	var res Result
	if err := json.Unmarshal([]byte(w.sql(t, "SELECT name FROM sqlite_schema WHERE type = 'table'")), &res); err != nil {
		t.Fatal(err)
	}
	for _, row := range res.Rows {
		var r struct{ Name string }
		if err := json.Unmarshal(row, &r); err != nil {
			t.Fatal(err)
		}
		out = append(out, r.Name)
	}
	return out
}

// FuzzWhere has any JSON for a where. A row is only found by who names its value.
func FuzzWhere(f *testing.F) {
	for _, s := range []string{`{"a":1}`, `{"a":null}`, `{"a":[1,2]}`, `{"a":"1' OR '1'='1"}`, `{"a":{"$gt":1}}`, `{"a\" OR 1=1 --":1}`, `{"b":true}`, `{"c":{"$base64":"AA"}}`, `{}`, `{"a":1,"b":"x"}`, `{"rowid":1}`, `{"a":[]}`, `{"a":1e999}`, `{"A":1}`} {
		f.Add(s)
	}
	w := open(f, file(f), roomy, 0)
	w.call(f, "db_create_table", `{"table":"t","schema":[{"column":"a","type":"integer","primaryKey":true},{"column":"b","type":"text"},{"column":"c","type":"jsonb"}]}`)
	w.sql(f, `INSERT INTO t VALUES (4711, 'needle', '"needle"')`)
	f.Fuzz(func(t *testing.T, where string) {
		got := w.call(t, "db_update", `{"table":"t","data":{"b":"needle"},"where":`+where+`}`)
		switch got {
		case `{"updatedCount":0}`, "tools.invalid":
		case `{"updatedCount":1}`:
			if !strings.Contains(where, "4711") && !strings.Contains(strings.ToLower(where), "needle") && !strings.Contains(where, `\u`) {
				t.Errorf("%s found the row", where)
			}
		default:
			t.Errorf("%s: %s", where, got)
		}
	})
}

func TestDefaultsAreValuesAndNeverExpressions(t *testing.T) {
	w := open(t, file(t), roomy, 0)
	for i, c := range []struct{ typ, def, want string }{
		{"text", `"draft"`, `"draft"`},
		{"text", `"'draft'"`, `"draft"`},
		{"text", `"it's"`, `"it's"`},
		{"text", `"'it''s'"`, `"it's"`},
		{"text", `"'; DROP TABLE x; --"`, `"'; DROP TABLE x; --"`},
		{"text", `"now()"`, `"now()"`},
		{"text", `"null"`, `"null"`},
		{"text", `"(SELECT 1)"`, `"(SELECT 1)"`},
		{"text", `null`, `null`},
		{"text", `""`, `""`},
		{"integer", `5`, `5`},
		{"integer", `"5"`, `5`},
		{"bigint", `"9007199254740993"`, `"9007199254740993"`},
		{"bigint", `-1`, `-1`},
		{"integer", `"NULL"`, `null`},
		{"boolean", `true`, `true`},
		{"boolean", `"false"`, `false`},
		{"real", `1.5`, `1.5`},
		{"real", `"2"`, `2`},
		{"jsonb", `"{\"a\":1}"`, `{"a":1}`},
		{"jsonb", `{"a":[1]}`, `{"a":[1]}`},
		{"jsonb", `"'[]'"`, `[]`},
		{"timestamptz", `"2026-01-01T00:00:00+02:00"`, `"2025-12-31T22:00:00.000000Z"`},
		{"uuid", `"123E4567-E89B-42D3-A456-426614174000"`, `"123e4567-e89b-42d3-a456-426614174000"`},
		{"integer", `"1 + 1"`, ""},
		{"integer", `"(SELECT 1)"`, ""},
		{"integer", `1.5`, ""},
		{"real", `"NaN"`, ""},
		{"real", `"0x10"`, ""},
		{"boolean", `"maybe"`, ""},
		{"boolean", `2`, ""},
		{"jsonb", `"{"`, ""},
		{"timestamptz", `"now"`, ""},
		{"timestamptz", `"datetime('now')"`, ""},
		{"uuid", `"x"`, ""},
		{"text", `5`, ""},
		{"text", `"a\u0000b"`, ""},
		{"text", `"` + strings.Repeat("x", 101) + `"`, ""},
	} {
		table := fmt.Sprintf("t%d", i)
		got := w.call(t, "db_create_table", `{"table":"`+table+`","schema":[{"column":"id","type":"integer","primaryKey":true},{"column":"v","type":"`+c.typ+`","default":`+c.def+`}]}`)
		if c.want == "" {
			if got != "tools.invalid" {
				t.Errorf("%s %s: %s", c.typ, c.def, got)
			}
			continue
		}
		if got := w.call(t, "db_insert", `{"table":"`+table+`","data":{}}`); got != `{"row":{"id":1,"v":`+c.want+`}}` {
			t.Errorf("%s %s: %s", c.typ, c.def, got)
		}
	}
}

// TestEveryBuiltInFunctionIsKnownOrDenied lists what this build of SQLite has,
// so that a new version's functions are looked at.
func TestEveryBuiltInFunctionIsKnownOrDenied(t *testing.T) {
	c, err := connect(file(t), writer)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	judged := set(`load_extension sqlite_compileoption_get sqlite_compileoption_used sqlite_source_id sqlite_log sqlite_offset subtype bm25 highlight snippet fts5 fts5_get_locale fts5_insttoken fts5_locale fts5_source_id
		rtreecheck rtreedepth rtreenode geopoly_area geopoly_bbox geopoly_blob geopoly_ccw geopoly_contains_point geopoly_debug geopoly_group_bbox geopoly_json geopoly_overlap geopoly_regular geopoly_svg geopoly_within geopoly_xform
		sqlite_rename_column sqlite_rename_table sqlite_rename_test sqlite_drop_column sqlite_rename_quotefix sqlite_drop_constraint sqlite_add_constraint sqlite_find_constraint sqlite_fail sqlite_filestat`)
	c.own = true
	err = c.rows(statement{text: "SELECT DISTINCT lower(name) FROM pragma_function_list"}, nil, func(_ []column, row []driver.Value) error {
		if name, _ := row[0].(string); !functions[name] && !judged[name] {
			t.Errorf("%s is a function that nobody has judged: add it to functions, or here", name)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func fieldsOf(r *deny.Reason) []deny.Field {
	if r == nil {
		return nil
	}
	return r.Fields
}

// What stands in a statement, its parameters or a row may be a secret. The agent hears
// SQLite's message as it is.
func TestRecordsHoldNoLiteral(t *testing.T) {
	w := open(t, file(t), roomy, 0)
	w.call(t, "db_create_table", `{"table":"t","schema":[{"column":"a","type":"text"}]}`)
	w.sql(t, `INSERT INTO t VALUES (?)`, "SECRET")
	for sql, want := range map[string]string{
		`SELECT a FROM t WHERE a = "SECRET one two"`:    "no such column: …",
		`SELECT a FROM t WHERE a = sk_SECRET`:           "no such column: …",
		`SELECT a FROM t WHERE a 'SECRET'`:              "near … syntax error",
		`SELECT a FROM "SECRET"`:                        "no such table: …",
		`INSERT INTO t("SECRET") VALUES (1)`:            "table … has no column named …",
		`SELECT json_extract('{}', a) FROM t`:           "bad JSON path: …",
		`SELECT json_extract('{}', 'SECRET')`:           "bad JSON path: …",
		`SELECT "SECRET"('SECRET')`:                     "no such function: …",
		`SELECT a FROM t WHERE a = 'SECRET`:             "at (left out) begins what is no SQL",
		`SECRET`:                                        "the statement begins with (left out)",
		`SELECT a FROM t WHERE a = :SECRET`:             "the parameter (left out) has a name",
		`SELECT a FROM t WHERE a = SECRET::text`:        "",
		`SELECT a FROM t ORDER BY 7, 'SECRET'`:          "term out of range",
		`SELECT a FROM t JOIN t AS "SECRET" ON a = 'x'`: "ambiguous column name: …",
	} {
		w.j.records = nil
		_, reason := w.try(t, "db_query", map[string]any{"sql": sql})
		if reason == nil {
			t.Errorf("%s is run", sql)
			continue
		}
		text, err := json.Marshal(w.j.records)
		if err != nil || len(w.j.records) == 0 || strings.Contains(string(text), "SECRET") || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v\n%s", sql, reason.Fields, text)
		}
	}
}

// FuzzOwnWords holds that nothing is left that SQLite did not say.
func FuzzOwnWords(f *testing.F) {
	f.Add("no such column: sk-live-1")
	f.Add("near \"near\": syntax error")
	f.Fuzz(func(t *testing.T, msg string) {
		for _, word := range strings.Fields(ownWords(msg)) {
			if word != "…" && !vocabulary[strings.ToLower(strings.TrimRight(word, ":,;-"))] {
				t.Errorf("%q leaves %q", msg, word)
			}
		}
	})
}
