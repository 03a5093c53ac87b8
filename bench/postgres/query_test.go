// Package postgres measures db_query against pgx to a PostgreSQL of its own.
// It is a module of its own, so that pgx never gets into the programs.
package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"bulkhead/internal/primitive/db"
	"bulkhead/internal/primitive/storage"
	"bulkhead/internal/record"
	"bulkhead/internal/tool"
)

// programs is where Debian's package postgresql-15 has them.
const programs = "/usr/lib/postgresql/15/bin/"

// nobody is who PostgreSQL runs as: it refuses to be root.
const nobody = 65534

// journal keeps nothing: what a durable record costs is measured elsewhere.
type journal struct{}

func (journal) Write(context.Context, record.Record) error { return nil }
func (journal) Note(record.Record)                         {}

func postgres(t *testing.T) *pgx.Conn {
	t.Helper()
	if _, err := os.Stat(programs + "postgres"); err != nil {
		t.Skip("PostgreSQL is not installed: ", err)
	}
	dir, err := os.MkdirTemp("", "bulkhead-bench")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if os.Getuid() == 0 {
		attr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		if err := os.Chown(dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	initdb := exec.Command(programs+"initdb", "-D", data, "-U", "bench", "--auth=trust")
	initdb.SysProcAttr = attr
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	server := exec.Command(programs+"postgres", "-D", data, "-k", dir, "-c", "listen_addresses=")
	server.SysProcAttr = attr
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Signal(syscall.SIGINT); _ = server.Wait() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		c, err := pgx.Connect(ctx, "host="+dir+" user=bench dbname=postgres")
		if err == nil {
			t.Cleanup(func() { _ = c.Close(context.Background()) })
			return c
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// contender does one operation of each kind.
type contender struct {
	name   string
	point  func(id int) error
	page   func() error // 100 rows
	insert func(n int) error
}

const rows = 10_000

func TestQuery(t *testing.T) {
	if os.Getenv("BULKHEAD_BENCH") == "" {
		t.Skip("set BULKHEAD_BENCH=1 to measure")
	}
	all := []contender{ours(t), theirs(t)}
	const rounds = 400
	fmt.Println("| p50 ms, one caller | " + all[0].name + " | " + all[1].name + " | ratio |\n|---|---|---|---|")
	for _, op := range []struct {
		name string
		run  func(c contender, n int) error
	}{
		{"SELECT one row by its key", func(c contender, n int) error { return c.point(1 + n*7919%rows) }},
		{"SELECT 100 rows", func(c contender, _ int) error { return c.page() }},
		{"INSERT a row, durable", func(c contender, n int) error { return c.insert(n) }},
	} {
		took := make([][]time.Duration, len(all))
		for n := range rounds {
			for i, c := range all { // taking turns
				start := time.Now()
				if err := op.run(c, n); err != nil {
					t.Fatalf("%s, %s: %v", c.name, op.name, err)
				}
				took[i] = append(took[i], time.Since(start))
			}
		}
		p50 := func(d []time.Duration) float64 {
			slices.Sort(d)
			return float64(d[len(d)/2].Microseconds()) / 1000
		}
		a, b := p50(took[0]), p50(took[1])
		fmt.Printf("| %s | %.3f | %.3f | %.2f |\n", op.name, a, b, a/b)
	}
}

func ours(t *testing.T) contender {
	s, err := db.Open(db.Config{Path: filepath.Join(t.TempDir(), "agent.db"), Budget: storage.New(storage.DefaultLimits(1 << 30))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	table, err := tool.NewTable(s.Tools()...)
	if err != nil {
		t.Fatal(err)
	}
	d := tool.New(tool.Config{Table: table, Journal: journal{}, Allowed: []string{"db"}, Rate: 1 << 30})
	call := func(name, input string) error {
		out, r := d.Call(context.Background(), tool.Caller{Team: "t", Agent: "a"}, name, []byte(input))
		if r != nil {
			return r
		}
		// As a client does.
		var answer struct {
			Rows []map[string]any `json:"rows"`
		}
		return json.Unmarshal(out, &answer)
	}
	must(t, call("db_create_table", `{"table":"t","schema":[{"column":"id","type":"integer","primaryKey":true},{"column":"name","type":"text"},{"column":"n","type":"bigint"}]}`))
	must(t, call("db_query", `{"sql":"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c LIMIT 10000) INSERT INTO t SELECT x, 'name ' || x, x * 7 FROM c"}`))
	return contender{
		name: "db_query",
		point: func(id int) error {
			return call("db_query", `{"sql":"SELECT id, name, n FROM t WHERE id = $1","params":[`+strconv.Itoa(id)+`]}`)
		},
		page: func() error { return call("db_query", `{"sql":"SELECT id, name, n FROM t ORDER BY id LIMIT 100"}`) },
		insert: func(n int) error {
			return call("db_query", `{"sql":"INSERT INTO t (name, n) VALUES ($1, $2)","params":["x",`+strconv.Itoa(n)+`]}`)
		},
	}
}

func theirs(t *testing.T) contender {
	c := postgres(t)
	ctx := context.Background()
	exec := func(sql string, args ...any) error { _, err := c.Exec(ctx, sql, args...); return err }
	must(t, exec("CREATE TABLE t (id serial PRIMARY KEY, name text, n bigint)"))
	must(t, exec("INSERT INTO t (name, n) SELECT 'name ' || x, x * 7 FROM generate_series(1, 10000) x"))
	read := func(sql string, args ...any) error {
		r, err := c.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		_, err = pgx.CollectRows(r, pgx.RowToMap)
		return err
	}
	return contender{
		name:   "pgx to PostgreSQL 15",
		point:  func(id int) error { return read("SELECT id, name, n FROM t WHERE id = $1", id) },
		page:   func() error { return read("SELECT id, name, n FROM t ORDER BY id LIMIT 100") },
		insert: func(n int) error { return exec("INSERT INTO t (name, n) VALUES ($1, $2)", "x", n) },
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
