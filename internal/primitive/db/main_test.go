package db

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"bulkhead/internal/primitive/storage"
)

// The test program is also the gateway that is killed.
func TestMain(m *testing.M) {
	if os.Getenv("BULKHEAD_TEST_ROLE") == "write" {
		insert(os.Args[1])
		return
	}
	flag.Parse()
	// A run of these makes and fills a database.
	if err := flag.Set("rapid.checks", "25"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// insert adds rows in pairs, for ever, and says which are acknowledged.
func insert(path string) {
	s, err := Open(Config{Path: path, Budget: storage.New(storage.DefaultLimits(roomy))})
	if err != nil {
		panic(err)
	}
	begin := func() error { return nil }
	if _, err := s.Create(context.Background(), "test", "a", []Column{{Name: "w", Type: "integer"}, {Name: "n", Type: "integer"}, {Name: "half", Type: "text"}}, true, begin); err != nil {
		panic(err)
	}
	for w := range 4 {
		go func() {
			for n := 1; ; n++ {
				one := fmt.Sprintf("INSERT INTO a SELECT %d, %d, hex(zeroblob(%d))", w, n, n%3000)
				if _, err := s.Transaction(context.Background(), "test", []Statement{{SQL: one}, {SQL: one}}, begin); err != nil {
					panic(err)
				}
				// One write of one line: the pipe keeps them whole.
				_, _ = fmt.Printf("%d %d %d\n", os.Getpid(), w, n)
			}
		}()
	}
	select {}
}

func TestAfterKillingTheGatewayNothingAcknowledgedIsLostAndNothingIsHalf(t *testing.T) {
	path := file(t)
	expected := map[string]int{}
	for round := range 4 {
		c := exec.Command("/proc/self/exe", path)
		c.Env = append(os.Environ(), "BULKHEAD_TEST_ROLE=write")
		c.Stderr = os.Stderr
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		killed := false
		for i := 0; ; i++ {
			var pid, w, n int
			if _, err := fmt.Fscanln(out, &pid, &w, &n); err != nil {
				if !killed {
					t.Fatal(err)
				}
				break
			}
			expected[fmt.Sprintf(`{"w":%d,"n":%d}`, w, n)]++
			if i == 40+31*round {
				killed = true
				_ = c.Process.Kill()
			}
		}
		_ = c.Wait()
		w := open(t, path, roomy, 0)
		// Both rows of a pair or neither: what is not acknowledged may be there.
		if got := w.sql(t, "SELECT w, n FROM a GROUP BY w, n HAVING count(*) % 2"); got != `{"rows":[],"rowCount":0}` {
			t.Errorf("half a transaction is there: %s", got)
		}
		res, err := w.Query(t.Context(), "test", Statement{SQL: "SELECT w, n, count(*)/2 AS pairs FROM a GROUP BY w, n"}, func() error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]int{}
		for _, row := range res.Rows {
			var a, b, pairs int
			if _, err := fmt.Sscanf(string(row), `{"w":%d,"n":%d,"pairs":%d}`, &a, &b, &pairs); err != nil {
				t.Fatal(err)
			}
			found[fmt.Sprintf(`{"w":%d,"n":%d}`, a, b)] = pairs
		}
		for row, n := range expected {
			if found[row] < n {
				t.Errorf("round %d: %s was acknowledged %d times and is there %d times", round, row, n, found[row])
			}
		}
		if n, err := os.Stat(path); err != nil || n.Size() == 0 {
			t.Error(n, err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
