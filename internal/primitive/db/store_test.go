package db

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"bulkhead/internal/deny"
	"bulkhead/internal/primitive/storage"
	"bulkhead/internal/record"
	"bulkhead/internal/tool"
)

type journal struct {
	mu      sync.Mutex
	records []record.Record
}

func (j *journal) Write(_ context.Context, r record.Record) error { j.Note(r); return nil }

func (j *journal) Note(r record.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.records = append(j.records, r)
}

type world struct {
	*Store
	budget *storage.Budget
	calls  *tool.Dispatcher
	j      *journal
}

const roomy = 1 << 30

func open(t testing.TB, path string, bytes int64, limit time.Duration) *world {
	t.Helper()
	w := &world{budget: storage.New(storage.DefaultLimits(bytes)), j: &journal{}}
	var err error
	if w.Store, err = Open(Config{Path: path, Budget: w.budget, Time: limit}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	table, err := tool.NewTable(w.Tools()...)
	if err != nil {
		t.Fatal(err)
	}
	w.calls = tool.New(tool.Config{Table: table, Journal: w.j, Allowed: []string{"db"}, Rate: 1 << 20})
	return w
}

func file(t testing.TB) string { t.Helper(); return filepath.Join(t.TempDir(), "agent.db") }

// call gives the answer, or the code of the refusal.
func (w *world) call(t testing.TB, name string, input any) string {
	t.Helper()
	out, r := w.try(t, name, input)
	if r != nil {
		return string(r.Code)
	}
	return out
}

func (w *world) try(t testing.TB, name string, input any) (string, *deny.Reason) {
	t.Helper()
	raw, ok := input.(string)
	if !ok {
		b, err := json.Marshal(input)
		if err != nil {
			t.Fatal(err)
		}
		raw = string(b)
	}
	out, r := w.calls.Call(t.Context(), tool.Caller{Team: "t", Agent: "a"}, name, []byte(raw))
	return string(out), r
}

// sql runs a statement that must go through.
func (w *world) sql(t testing.TB, sql string, params ...any) string {
	t.Helper()
	out, r := w.try(t, "db_query", map[string]any{"sql": sql, "params": params})
	if r != nil {
		t.Fatalf("%s: %v %v", sql, r, r.Fields)
	}
	return out
}

const everyType = `{"table":"t","schema":[{"column":"id","type":"bigint","primaryKey":true},{"column":"name","type":"text"},{"column":"n","type":"bigint"},
	{"column":"ok","type":"boolean","default":"true"},{"column":"r","type":"real"},{"column":"j","type":"jsonb"},
	{"column":"at","type":"timestamptz","default":"now()"},{"column":"u","type":"uuid","default":"gen_random_uuid()"},{"column":"i","type":"integer","default":7}]}`

func TestEveryTypeComesBackAsItWas(t *testing.T) {
	w := open(t, file(t), roomy, 0)
	if got := w.call(t, "db_create_table", everyType); got != `{"table":"t","created":true}` {
		t.Fatal(got)
	}
	if got := w.call(t, "db_create_table", everyType); got != "tools.conflict" {
		t.Error(got)
	}
	if got := w.call(t, "db_create_table", strings.TrimSuffix(everyType, "}")+`,"ifNotExists":true}`); got != `{"table":"t","created":false}` {
		t.Error(got)
	}
	got := w.call(t, "db_insert", `{"table":"t","data":{"name":"é\"\u0000'","n":"9223372036854775807","ok":false,"r":0.1,"j":{"b":[1,{"c":null}],"a":1.50},
		"at":"2026-11-30T09:30:00.5+01:00","u":"123E4567-E89B-42D3-A456-426614174000"}}`)
	want := `{"row":{"id":1,"name":"é\"\u0000'","n":"9223372036854775807","ok":false,"r":0.1,"j":{"b":[1,{"c":null}],"a":1.50},"at":"2026-11-30T08:30:00.500000Z","u":"123e4567-e89b-42d3-a456-426614174000","i":7}}`
	if got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	if got := w.sql(t, "SELECT * FROM t"); got != `{"rows":[`+strings.TrimSuffix(strings.TrimPrefix(want, `{"row":`), "}")+`],"rowCount":1}` {
		t.Error(got)
	}
	for _, c := range []struct{ sql, params, want string }{
		{"SELECT ? AS a, ? AS b, ? AS c, ? AS d", `[null,true,"x",{"$base64":"AP8"}]`, `{"a":null,"b":1,"c":"x","d":{"$base64":"AP8="}}`},
		{"SELECT $2 AS a, $1 AS b, $2 AS c", `[1,2]`, `{"a":2,"b":1,"c":2}`},
		{"SELECT ? AS a, typeof(?) AS b", `[9007199254740991,9007199254740992]`, `{"a":9007199254740991,"b":"integer"}`},
		{"SELECT ? AS a, ? AS b", `[9007199254740992,-9223372036854775808]`, `{"a":"9007199254740992","b":"-9223372036854775808"}`},
		{"SELECT ? AS a, typeof(?) AS b, 1e21 AS c, -0.0 AS d", `[1.5,2.0]`, `{"a":1.5,"b":"real","c":1e+21,"d":-0}`},
		{"SELECT 9e999 AS a, -9e999 AS b, 9e999-9e999 AS c", `[]`, `{"a":"Infinity","b":"-Infinity","c":null}`},
		{"SELECT ? AS a", `[{"k":[1,2]}]`, `{"a":"{\"k\":[1,2]}"}`},
		{"SELECT ? AS a, length(?) AS b, typeof(?) AS c", `[{"$base64":""},{"$base64":""},{"$base64":""}]`, `{"a":{"$base64":""},"b":0,"c":"blob"}`},
		{"SELECT CAST(x'61ff' AS TEXT) AS a", `[]`, `{"a":{"$base64":"Yf8="}}`},
		{"SELECT 1 AS a, 2 AS a, 3 AS a_2, 4 AS a", `[]`, `{"a":1,"a_3":2,"a_2":3,"a_4":4}`},
		{"SELECT jsonb('[1]') IS NOT NULL AS a, '<&>' AS b", `[]`, `{"a":1,"b":"\u003c\u0026\u003e"}`},
		{"SELECT ok, j ->> 'a' AS a, json_extract(j, '$.b[0]') AS b FROM t", `[]`, `{"ok":false,"a":1.5,"b":1}`},
	} {
		if got := w.call(t, "db_query", `{"sql":`+quote(c.sql)+`,"params":`+c.params+`}`); got != `{"rows":[`+c.want+`],"rowCount":1}` {
			t.Errorf("%s %s\n got %s\nwant %s", c.sql, c.params, got, c.want)
		}
	}
	for _, c := range []string{`[1e999]`, `[9223372036854775808]`, `[{"$base64":"!"}]`, `[{"$base64":"AA","x":1}]`, `["\ud800"]`, `[]`, `[1,2]`} {
		if got := w.call(t, "db_query", `{"sql":"SELECT ?","params":`+c+`}`); got != "tools.invalid" {
			t.Errorf("%s: %s", c, got)
		}
	}
	for _, c := range []string{`{"n":"x"}`, `{"n":1.5}`, `{"ok":2}`, `{"ok":"yes"}`, `{"r":"x"}`, `{"i":"x"}`} {
		if got := w.call(t, "db_insert", `{"table":"t","data":`+c+`}`); got != "tools.conflict" {
			t.Errorf("%s: %s", c, got)
		}
	}
	for _, c := range []string{`{"at":"today"}`, `{"at":"2026-13-01T00:00:00Z"}`, `{"u":"x"}`, `{"u":"123e4567-e89b-42d3-a456-42661417400g"}`, `{"nothing":1}`, `{"n\u0000":1}`, `{"":1}`, `{"sqlite_x":1}`} {
		if got := w.call(t, "db_insert", `{"table":"t","data":`+c+`}`); got != "tools.invalid" {
			t.Errorf("%s: %s", c, got)
		}
	}
	// The checks hold for SQL of the agent's own as well.
	for _, sql := range []string{"INSERT INTO t (at) VALUES ('today')", "INSERT INTO t (u) VALUES ('x')", "INSERT INTO t (j) VALUES ('{')", "UPDATE t SET n = 'x'", "INSERT INTO t (id) VALUES (1)"} {
		if got := w.call(t, "db_query", map[string]any{"sql": sql}); got != "tools.conflict" {
			t.Errorf("%s: %s", sql, got)
		}
	}
	got = w.call(t, "db_insert", `{"table":"T","row":{}}`)
	for _, part := range []string{`"id":2`, `"ok":true`, `"i":7`, `"at":"20`, `Z"`, `-4`} {
		if !strings.Contains(got, part) {
			t.Errorf("defaults: %s lacks %s", got, part)
		}
	}
}

func quote(s string) string { b, _ := json.Marshal(s); return string(b) }

func TestManyFaultsAreNotAllNamed(t *testing.T) {
	w := open(t, file(t), roomy, 0)
	w.call(t, "db_create_table", `{"table":"t","schema":[{"column":"a","type":"text"}]}`)
	values := map[string]any{}
	for i := range 5000 {
		values[fmt.Sprintf("c%d", i)] = 1
	}
	if _, r := w.try(t, "db_insert", map[string]any{"table": "t", "values": values}); r == nil || r.Code != deny.ToolInvalid || len(r.Fields) != tool.MaxFaults {
		t.Errorf("%.300v", r)
	}
}

func TestRowsAreChangedByEqualityAlone(t *testing.T) {
	w := open(t, file(t), roomy, 0)
	// Every name here is a reserved word, or has a quote, or is not Latin.
	w.call(t, "db_create_table", `{"table":"order","schema":[{"column":"select","type":"integer","primaryKey":true},{"column":"a\"b","type":"text"},{"column":"größe; DROP TABLE x","type":"text"},{"column":"位","type":"jsonb"}]}`)
	for i := range 6 {
		if _, r := w.try(t, "db_insert", map[string]any{"table": "order", "values": map[string]any{`a"b`: fmt.Sprint(i % 3), "größe; DROP TABLE x": nil, "位": i}}); r != nil {
			t.Fatal(r, r.Fields)
		}
	}
	for _, c := range []struct{ name, input, want string }{
		{"db_update", `{"table":"order","data":{"größe; DROP TABLE x":"x"},"where":{"a\"b":"1"}}`, `{"updatedCount":2}`},
		{"db_update", `{"table":"order","data":{"größe; DROP TABLE x":"y"},"where":{"größe; DROP TABLE x":null}}`, `{"updatedCount":4}`},
		{"db_update", `{"table":"ORDER","data":{"SELECT":50},"where":{"select":[1,1,99]}}`, `{"updatedCount":1}`},
		{"db_update", `{"table":"order","data":{"a\"b":"z"},"where":{"select":50,"a\"b":"1"}}`, `{"updatedCount":0}`},
		{"db_update", `{"table":"order","data":{"a\"b":"z"},"where":{}}`, "tools.invalid"},
		{"db_update", `{"table":"order","data":{},"where":{"select":1}}`, "tools.invalid"},
		{"db_update", `{"table":"order","data":{"a\"b":"z"}}`, "tools.invalid"},
		{"db_update", `{"table":"order","data":{"a\"b":"z"},"where":{"select":{"$gt":0}}}`, "tools.invalid"},
		{"db_update", `{"table":"order","data":{"a\"b":"z"},"where":{"select":[]}}`, "tools.invalid"},
		{"db_update", `{"table":"order","data":{"a\"b":"z"},"where":{"select":[null]}}`, "tools.invalid"},
		{"db_update", `{"table":"order","data":{"a\"b":"z"},"where":{"1=1 OR select":1}}`, "tools.invalid"},
		{"db_update", `{"table":"order\" SET x","data":{"a":"z"},"where":{"a":1}}`, "tools.missing"},
		{"db_update", `{"table":"sqlite_schema","data":{"sql":"z"},"where":{"name":"order"}}`, "tools.invalid"},
		{"db_insert", `{"table":"pragma_module_list","data":{"name":"z"}}`, "tools.missing"},
		{"db_delete", `{"table":"order","where":{}}`, "tools.invalid"},
		{"db_delete", `{"table":"order"}`, "tools.invalid"},
		{"db_delete", `{"table":"order","where":{"a\"b":"0' OR '1'='1"}}`, `{"deletedCount":0}`},
		{"db_delete", `{"table":"order","where":{"a\"b":["0","2"]}}`, `{"deletedCount":4}`},
		{"db_delete", `{"table":"nowhere","where":{"a":1}}`, "tools.missing"},
		{"db_query", `{"sql":"SELECT count(*) AS n FROM \"order\""}`, `{"rows":[{"n":2}],"rowCount":1}`},
		{"db_query", `{"sql":"UPDATE \"order\" SET \"位\" = '1' WHERE 1 RETURNING \"位\""}`, `{"rows":[{"位":`},
		{"db_query", `{"sql":"DELETE FROM \"order\""}`, `{"rows":[],"rowCount":2}`},
	} {
		if got := w.call(t, c.name, c.input); got != c.want && (c.want[0] != '{' || strings.HasSuffix(c.want, "}") || !strings.HasPrefix(got, c.want)) {
			t.Errorf("%s %s\n got %s\nwant %s", c.name, c.input, got, c.want)
		}
	}
}

func TestATransactionIsAllOrNothing(t *testing.T) {
	w := open(t, file(t), roomy, 0)
	w.call(t, "db_create_table", `{"table":"a","schema":[{"column":"x","type":"integer","primaryKey":true}]}`)
	got := w.call(t, "db_transaction", `{"statements":[{"sql":"INSERT INTO a VALUES (?)","params":[1]},{"query":"SELECT x FROM a"},{"sql":"DELETE FROM a WHERE x = $1 RETURNING x","params":[1]}]}`)
	if got != `{"results":[{"rows":[],"rowCount":1},{"rows":[{"x":1}],"rowCount":1},{"rows":[{"x":1}],"rowCount":1}]}` {
		t.Error(got)
	}
	for _, second := range []string{"INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1)", "SELEC", "COMMIT", "ROLLBACK", "SAVEPOINT s", "ATTACH 'x' AS y", "SELECT 1; COMMIT", "VACUUM", "SELECT load_extension('x')"} {
		_, r := w.try(t, "db_transaction", map[string]any{"queries": []map[string]string{{"sql": "INSERT INTO a VALUES (1)"}, {"sql": second}}})
		if r == nil || !strings.Contains(r.Why, "queries[1]") && len(r.Fields) == 0 {
			t.Errorf("%s: %+v", second, r)
		}
		if got := w.sql(t, "SELECT * FROM a"); got != `{"rows":[],"rowCount":0}` {
			t.Errorf("after %s: %s", second, got)
		}
	}
	if got := w.call(t, "db_transaction", `{"queries":[]}`); got != "tools.invalid" {
		t.Error(got)
	}
	many := make([]map[string]string, 51)
	for i := range many {
		many[i] = map[string]string{"sql": "SELECT 1"}
	}
	if got := w.call(t, "db_transaction", map[string]any{"queries": many}); got != "tools.invalid" {
		t.Error(got)
	}
	if got := w.call(t, "db_transaction", map[string]any{"queries": many[:50]}); !strings.HasPrefix(got, "{") {
		t.Error(got)
	}
}

// TestBombsAreStopped has statements that never end, or take all memory, in
// the first row and in a later one.
func TestBombsAreStopped(t *testing.T) {
	w := open(t, file(t), roomy, 300*time.Millisecond)
	w.call(t, "db_create_table", `{"table":"a","schema":[{"column":"x","type":"integer"}]}`)
	w.sql(t, "INSERT INTO a VALUES (-1)")
	const forever = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM c) "
	for sql, want := range map[string]deny.Code{
		forever + "SELECT count(*) FROM c":                                                 deny.ToolTimeout,
		forever + "SELECT n FROM c WHERE n = 1 OR n < 0":                                   deny.ToolTimeout, // the second row
		"SELECT 1 UNION ALL SELECT * FROM (" + forever + "SELECT sum(n) FROM c)":           deny.ToolTimeout,
		forever + "INSERT INTO a SELECT n FROM c WHERE n < 0":                              deny.ToolTimeout,
		"INSERT INTO a SELECT 1 WHERE EXISTS (" + forever + "SELECT 1 FROM c WHERE n < 0)": deny.ToolTimeout,
		"DELETE FROM a WHERE x IN (" + forever + "SELECT n FROM c)":                        deny.ToolTimeout,
	} {
		_, r := w.try(t, "db_query", map[string]any{"sql": sql})
		if r == nil || r.Code != want {
			t.Errorf("%.100s: %v, and %s is expected", sql, r, want)
		}
	}
	// With time enough for it.
	slow := open(t, file(t), roomy, time.Minute)
	for _, sql := range []string{
		// Memory.
		"WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM c LIMIT 200) SELECT zeroblob(1000000) AS b, n FROM c ORDER BY n % 7",
		// One value, and an answer.
		"SELECT randomblob(8388609)", "SELECT zeroblob(100000000)", "SELECT replace(hex(zeroblob(4000000)), '0', '0000')", "SELECT printf('%.100000000c', 'x')",
		"WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM c LIMIT 20) SELECT n, zeroblob(1000000) FROM c",
	} {
		if got := slow.call(t, "db_query", map[string]any{"sql": sql}); got != "tools.too_large" {
			t.Errorf("%.100s: %s", sql, got)
		}
	}
	if got := w.sql(t, "SELECT count(*) AS n FROM a"); got != `{"rows":[{"n":1}],"rowCount":1}` {
		t.Error(got)
	}
	w.cfg.Time = time.Minute // what follows is bounded by rows
	got := w.sql(t, "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM c LIMIT 10001) SELECT n FROM c")
	if !strings.HasSuffix(got, `{"n":10000}],"rowCount":10000,"truncated":true}`) {
		t.Error(got[len(got)-80:])
	}
	if got := w.call(t, "db_query", map[string]any{"sql": "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM c LIMIT 10001) INSERT INTO a SELECT n FROM c RETURNING x"}); got != "tools.too_large" {
		t.Error(got)
	}
	if got := w.sql(t, "SELECT count(*) AS n FROM a"); got != `{"rows":[{"n":1}],"rowCount":1}` {
		t.Error("what was refused was done: ", got)
	}
}

func TestTheCallersEndStopsAStatement(t *testing.T) {
	w := open(t, file(t), roomy, time.Hour)
	w.sql(t, "SELECT 1")
	ctx, cancel := context.WithCancel(t.Context())
	go cancel()
	_, err := w.Query(ctx, "db_query", Statement{SQL: "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM c) SELECT count(*) FROM c"}, func() error { return nil })
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestACallThatWaitsTooLongIsToldSo(t *testing.T) {
	w := open(t, file(t), roomy, DefaultTime)
	w.call(t, "db_create_table", `{"table":"a","schema":[{"column":"x","type":"text"}]}`)
	w.cfg.Time = 50 * time.Millisecond
	c := <-w.write
	if got := w.call(t, "db_query", map[string]any{"sql": "DELETE FROM a"}); got != "tools.timeout" {
		t.Error(got)
	}
	w.write <- c
	_, settle, err := w.budget.Borrow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := w.call(t, "db_insert", `{"table":"a","data":{}}`); got != "tools.timeout" {
		t.Error(got)
	}
	settle(0)
	w.cfg.Time = DefaultTime
	if got := w.call(t, "db_insert", `{"table":"a","data":{}}`); got != `{"row":{"x":null}}` {
		t.Error(got)
	}
}

func TestABrokenConnectionIsReplaced(t *testing.T) {
	w := open(t, file(t), roomy, 0)
	w.call(t, "db_create_table", `{"table":"a","schema":[{"column":"x","type":"text"}]}`)
	before, _ := w.budget.Used()
	// As after a ROLLBACK that the disk did not let through.
	if err := w.writing(t.Context(), func(c *conn) error { c.broken = true; return c.exec("BEGIN") }); err != nil {
		t.Fatal(err)
	}
	if got := w.call(t, "db_insert", `{"table":"a","data":{"x":"y"}}`); got != `{"row":{"x":"y"}}` {
		t.Error(got)
	}
	if after, _ := w.budget.Used(); after != before {
		t.Errorf("%d bytes are counted, and were %d", after, before)
	}
}

func TestTheQuotaIsThatOfTheFileAndIsGivenBack(t *testing.T) {
	path := file(t)
	w := open(t, path, 1<<20, 0)
	w.call(t, "db_create_table", `{"table":"a","schema":[{"column":"x","type":"text"}]}`)
	rows := 0
	for ; rows < 1000; rows++ {
		if _, r := w.try(t, "db_query", map[string]any{"sql": "INSERT INTO a VALUES (hex(zeroblob(5000)))"}); r != nil {
			if r.Code != deny.ToolQuota {
				t.Fatal(r)
			}
			break
		}
	}
	used, _ := w.budget.Used()
	if rows < 50 || rows >= 105 || used > 1<<20 || used < 1<<20-64<<10 {
		t.Errorf("%d rows, %d bytes", rows, used)
	}
	if got := w.sql(t, "SELECT count(*) AS n FROM a"); got != fmt.Sprintf(`{"rows":[{"n":%d}],"rowCount":1}`, rows) {
		t.Error(got)
	}
	if err := w.budget.Take(t.Context(), "test", 1<<20, 0); err == nil {
		t.Error("files got what the database has")
	}
	w.sql(t, "DELETE FROM a")
	if after, _ := w.budget.Used(); after > 64<<10 {
		t.Errorf("%d bytes are used by an empty table", after)
	}
	if err := w.budget.Take(t.Context(), "test", 900<<10, 0); err != nil {
		t.Error(err)
	}
	if got := w.call(t, "db_query", map[string]any{"sql": "INSERT INTO a SELECT hex(zeroblob(100000))"}); got != "tools.quota" {
		t.Error(got)
	}
	used, _ = w.budget.Used()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Size() != used-900<<10 {
		t.Errorf("the file has %v bytes, counted are %d (%v)", st.Size(), used-900<<10, err)
	}
	if st.Mode().Perm() != 0o600 {
		t.Error(st.Mode())
	}
	again := open(t, path, 1<<20, 0)
	if n, _ := again.budget.Used(); n != st.Size() {
		t.Errorf("%d bytes are counted at the next start, of %d", n, st.Size())
	}
}

// TestQuotaIsExactUnderConcurrency has statements, transactions and files at
// once on one budget.
func TestQuotaIsExactUnderConcurrency(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		limit := rapid.Int64Range(40<<10, 400<<10).Draw(r, "limit")
		path := filepath.Join(t.TempDir(), "agent.db")
		w := open(t, path, limit, 0)
		w.call(t, "db_create_table", `{"table":"a","schema":[{"column":"x","type":"text"}]}`)
		plan := rapid.SliceOfN(rapid.SliceOfN(rapid.IntRange(-60_000, 60_000), 1, 5), 2, 3).Draw(r, "plan")
		var wg sync.WaitGroup
		var files sync.Map
		for i, each := range plan {
			wg.Go(func() {
				held := int64(0)
				for j, n := range each {
					var got string
					switch {
					case n < 0 && j%2 == 0:
						if err := w.budget.Take(context.Background(), "test", int64(-n), 0); err == nil {
							held -= int64(n)
						}
					case n < 0:
						got = w.call(t, "db_query", map[string]any{"sql": "DELETE FROM a WHERE rowid % 2"})
					case j%2 == 0:
						got = w.call(t, "db_query", map[string]any{"sql": "INSERT INTO a SELECT hex(zeroblob(?))", "params": []int{n / 2}})
					default:
						got = w.call(t, "db_transaction", map[string]any{"queries": []map[string]any{{"sql": "INSERT INTO a SELECT hex(zeroblob(?))", "params": []int{n}}, {"sql": "INSERT INTO nowhere SELECT 1"}}})
					}
					if got != "" && got[0] != '{' && got != "tools.quota" && got != "tools.missing" {
						t.Errorf("%d: %s", n, got)
					}
					if used, _ := w.budget.Used(); used > max(limit, 8192) {
						t.Errorf("%d bytes are used of %d", used, limit)
					}
				}
				files.Store(i, held)
			})
		}
		wg.Wait()
		used, _ := w.budget.Used()
		files.Range(func(_, n any) bool { used -= n.(int64); return true })
		_ = w.Close()
		if st, err := os.Stat(path); err != nil || st.Size() != used {
			t.Errorf("the file has %v, counted are %d (%v)", st.Size(), used, err)
		}
		if t.Failed() {
			r.FailNow()
		}
	})
}

func TestAgentsDoNotMeetInSQL(t *testing.T) {
	dir := t.TempDir()
	a, b := open(t, filepath.Join(dir, "a.db"), roomy, 0), open(t, filepath.Join(dir, "b.db"), roomy, 0)
	b.call(t, "db_create_table", `{"table":"secret","schema":[{"column":"x","type":"text"}]}`)
	b.sql(t, "INSERT INTO secret VALUES ('of b')")
	other := filepath.Join(dir, "b.db")
	for _, sql := range []string{
		"SELECT * FROM secret", "SELECT * FROM main.secret", "SELECT * FROM b.secret", `SELECT * FROM "b.db".secret`, "SELECT * FROM agent_b.secret", "SELECT * FROM temp.secret",
		"ATTACH '" + other + "' AS b", "ATTACH DATABASE 'file:" + other + "?mode=ro' AS b", "EXPLAIN ATTACH '" + other + "' AS b",
		"SELECT readfile('" + other + "')", "SELECT load_extension('" + other + "')", "VACUUM INTO '" + filepath.Join(dir, "c.db") + "'",
		"SELECT writefile('" + other + "', 'x')", "CREATE VIRTUAL TABLE x USING csv(filename='" + other + "')", "PRAGMA temp_store_directory = '" + dir + "'",
		"SELECT * FROM pragma_database_list", "PRAGMA database_list", "DELETE FROM secret", "DROP TABLE secret", "SELECT * FROM sqlite_dbpage", "SELECT * FROM sqlite_dbpage('b')", "SELECT * FROM dbstat",
	} {
		if got := a.call(t, "db_query", map[string]any{"sql": sql}); strings.HasPrefix(got, "{") {
			t.Errorf("%s: %s", sql, got)
		}
	}
	for name, input := range map[string]string{
		"db_insert": `{"table":"secret","data":{"x":"of a"}}`, "db_update": `{"table":"secret","data":{"x":"of a"},"where":{"x":"of b"}}`, "db_delete": `{"table":"secret","where":{"x":"of b"}}`,
		"db_transaction": `{"queries":[{"sql":"DELETE FROM secret"}]}`,
	} {
		if got := a.call(t, name, input); got != "tools.missing" {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := a.call(t, "db_create_table", `{"table":"secret","schema":[{"column":"y","type":"text"}]}`); got != `{"table":"secret","created":true}` {
		t.Error("the name of another's table is not free: ", got)
	}
	if got := b.sql(t, "SELECT * FROM secret"); got != `{"rows":[{"x":"of b"}],"rowCount":1}` {
		t.Error(got)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 6 {
		t.Errorf("there are %v %v", files, err)
	}
}

func TestWhatOnlyReadsIsNotBegunAndRecordsHoldNoSQL(t *testing.T) {
	w := open(t, file(t), roomy, 0)
	w.call(t, "db_create_table", `{"table":"a","schema":[{"column":"x","type":"text"}]}`)
	started := func() (n int) {
		for _, r := range w.j.records {
			if r.Verdict == record.Started {
				n++
			}
			if bytes.Contains(r.Input, []byte("hunter2")) {
				t.Errorf("a record holds data: %s", r.Input)
			}
		}
		return n
	}
	for sql, want := range map[string]int{
		"SELECT 'hunter2'": 0, "PRAGMA table_info(a)": 0, "WITH c(x) AS (SELECT 'hunter2') SELECT * FROM c": 0, "EXPLAIN DELETE FROM a": 0,
		"INSERT INTO a VALUES ('hunter2')": 1, "WITH c(x) AS (SELECT 'hunter2') INSERT INTO a SELECT x FROM c": 1, "DELETE FROM a": 1, "CREATE INDEX i ON a (x)": 1, "REPLACE INTO a VALUES ('hunter2')": 1,
	} {
		before := started()
		w.call(t, "db_query", map[string]any{"sql": sql})
		if got := started() - before; got != want {
			t.Errorf("%s: begun %d times", sql, got)
		}
	}
}
