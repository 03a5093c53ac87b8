package store

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"bulkhead/internal/sqlite"
)

const crashEnv = "BULKHEAD_STORE_CRASH"

// TestMain lets the test program be the gateway that is killed.
func TestMain(m *testing.M) {
	if path := os.Getenv(crashEnv); path != "" {
		if err := crashWriter(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// crashWriter writes pairs without end, and says each number once that was
// answered.
func crashWriter(path string) error {
	s, err := Open(context.Background(), Config{Path: path})
	if err != nil {
		return err
	}
	if err := s.Migrate(context.Background(), "thing", things); err != nil {
		return err
	}
	first, err := s.w.db.Int("SELECT coalesce(max(id), 0) FROM thing") // nobody else uses it yet
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := (int(first)+2)&^1 + 2*w; ; i += 16 {
				err := s.Update(context.Background(), func(x *Tx) error {
					if err := put(i, strings.Repeat("a", 100+i%5000))(x); err != nil {
						return err
					}
					return put(i+1, "second half")(x)
				})
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				fmt.Println(i)
			}
		})
	}
	wg.Wait()
	return nil
}

// TestKilled kills it in the middle of writes: what was answered is there, with
// its record and its bytes counted; what is there is whole.
func TestKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "system.db")
	acked := map[int64]bool{}
	for round := range 4 {
		cmd := exec.CommandContext(t.Context(), os.Args[0]) // #nosec G204 -- this very program
		cmd.Env = append(os.Environ(), crashEnv+"="+path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			id, err := strconv.ParseInt(lines.Text(), 10, 64)
			if err != nil {
				break // the line that it was killed in
			}
			acked[id] = true
			if n == 100+300*round {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait() // it was killed
		s, err := Open(t.Context(), Config{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		have, total := map[int64]bool{}, int64(0)
		err = s.View(t.Context(), func(x *Tx) error {
			return x.Query("SELECT id, length(body) FROM thing", func(row []sqlite.Value) error {
				have[sqlite.Int(row[0])] = true
				total += sqlite.Int(row[1])
				return nil
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		recorded := map[string]bool{}
		for _, r := range spooled(t, s) {
			recorded[r.Target] = true
		}
		for id := range acked {
			if !have[id] {
				t.Fatalf("round %d: %d was answered and is not there", round, id)
			}
		}
		for id := range have {
			if !have[id^1] || !recorded[fmt.Sprint(id)] {
				t.Fatalf("round %d: of %d a half is there, or its record is not", round, id)
			}
		}
		if total != s.w.used || len(recorded) != len(have) {
			t.Fatalf("round %d: %d bytes are there and %d counted; %d things, %d records", round, total, s.w.used, len(have), len(recorded))
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
