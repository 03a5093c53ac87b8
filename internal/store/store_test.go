package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/sqlite"
)

var things = [][]string{{"CREATE TABLE thing (id INTEGER PRIMARY KEY, body BLOB NOT NULL, expires INTEGER NOT NULL) STRICT"}}

func openAt(t testing.TB, cfg Config) *Store {
	t.Helper()
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Migrate(t.Context(), "thing", things); err != nil {
		t.Fatal(err)
	}
	return s
}

func open(t testing.TB) *Store {
	return openAt(t, Config{Path: filepath.Join(t.TempDir(), "system.db")})
}

func put(id int, body string) func(*Tx) error {
	return func(x *Tx) error {
		if _, err := x.Exec("INSERT INTO thing (id, body, expires) VALUES (?, ?, 0)", id, []byte(body)); err != nil {
			return err
		}
		x.Record(call(record.Allowed, fmt.Sprint(id)))
		return x.Charge(int64(len(body)))
	}
}

func call(v record.Verdict, target string) record.Record {
	r := record.Record{SchemaVersion: 1, Time: time.Now().UTC(), Team: "t", Agent: "a", Kind: record.Tool, Verdict: v, Target: target}
	if v == record.Denied {
		r.Reason = &deny.Reason{Layer: deny.LayerTools, Code: deny.ToolRate, What: "w", Why: "y", Mend: "m"}
	}
	return r
}

func count(t testing.TB, s *Store) (n int64) {
	t.Helper()
	if err := s.View(t.Context(), func(x *Tx) (err error) { n, err = x.Int("SELECT count(*) FROM thing"); return err }); err != nil {
		t.Fatal(err)
	}
	return n
}

func spooled(t testing.TB, s *Store) (out []record.Record) {
	t.Helper()
	all, err := s.Spool().read(t.Context(), 0, 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range all {
		if i > 0 && e.Seq != all[i-1].Seq+1 {
			t.Errorf("%d follows %d", e.Seq, all[i-1].Seq)
		}
		var r record.Record
		if err := json.Unmarshal(e.Record, &r); err != nil {
			t.Fatalf("%s: %v", e.Record, err)
		}
		out = append(out, r)
	}
	return out
}

func TestOneThatFailsFailsNobodyElse(t *testing.T) {
	s := open(t)
	boom := errors.New("boom")
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			err := s.Update(context.Background(), func(x *Tx) error {
				if err := put(i, "x")(x); err != nil {
					return err
				}
				switch i % 4 {
				case 1:
					return boom
				case 2:
					panic("boom")
				case 3:
					_, err := x.Exec("INSERT INTO thing (id, body, expires) VALUES (?, '', 0)", i) // there already, and of another type
					return err
				}
				return nil
			})
			if (err == nil) != (i%4 == 0) || i%4 == 1 && !errors.Is(err, boom) {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if n := count(t, s); n != 50 {
		t.Errorf("%d things, want 50", n)
	}
	if n := len(spooled(t, s)); n != 50 {
		t.Errorf("%d records, want those of the 50 that went well", n)
	}
	if s.w.used != 50 {
		t.Errorf("%d bytes are counted", s.w.used)
	}
}

func TestWhatWasAnsweredIsThereAfterOpeningAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "system.db")
	s := openAt(t, Config{Path: path})
	if err := s.Update(t.Context(), put(1, "body")); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(t.Context(), call(record.Denied, "mem_get")); err != nil {
		t.Fatal(err)
	}
	s.Note(call(record.Allowed, "mem_list"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(t.Context(), put(2, "late")); err == nil {
		t.Error("a closed store took something")
	}
	s = openAt(t, Config{Path: path})
	if n := count(t, s); n != 1 || s.w.used != 4 {
		t.Errorf("%d things, %d bytes", n, s.w.used)
	}
	if all := spooled(t, s); len(all) != 3 || all[2].Target != "mem_list" {
		t.Errorf("%+v", all)
	}
}

func TestANoteIsOnDiskSoon(t *testing.T) {
	s := open(t)
	s.Note(call(record.Allowed, "mem_get"))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	// Nothing else is written: the note alone must wake the reader.
	if all, err := s.Spool().Next(ctx, 0, 10); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}

func TestTheSpoolIsTakenInOrderAndNumbersAreNeverGivenTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "system.db")
	s := openAt(t, Config{Path: path, Audited: true})
	for i := range 10 {
		if err := s.Write(t.Context(), call(record.Allowed, fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	first, err := s.Spool().Next(t.Context(), 0, 4)
	if err != nil || len(first) != 4 || first[3].Seq != 4 {
		t.Fatalf("%v, %v", first, err)
	}
	if err := s.Spool().Done(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	rest, err := s.Spool().Next(t.Context(), 4, 100)
	if err != nil || len(rest) != 6 || rest[0].Seq != 5 {
		t.Fatalf("%v, %v", rest, err)
	}
	if err := s.Spool().Done(t.Context(), 1000); err != nil {
		t.Fatal(err)
	}
	if s.w.spool.bytes != 0 {
		t.Errorf("%d bytes are left", s.w.spool.bytes)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, Config{Path: path, Audited: true})
	if err := s.Write(t.Context(), call(record.Allowed, "after")); err != nil {
		t.Fatal(err)
	}
	if next, err := s.Spool().Next(t.Context(), 0, 1); err != nil || next[0].Seq != 11 {
		t.Errorf("%v, %v", next, err)
	}
}

func TestAFullSpoolRefusesEffectsAndCountsDenials(t *testing.T) {
	s := openAt(t, Config{Path: filepath.Join(t.TempDir(), "system.db"), Audited: true, Spool: 8 << 10})
	done := 0
	var err error
	for err == nil && done < 1000 {
		if err = s.Update(t.Context(), put(done, "x")); err == nil {
			done++
		}
	}
	var r *deny.Reason
	if !errors.As(err, &r) || r.Code != deny.ToolUnavailable || done < 10 || int(count(t, s)) != done {
		t.Fatalf("after %d: %v; %d things", done, err, count(t, s))
	}
	if err := s.Write(t.Context(), call(record.Started, "fs_write")); !errors.As(err, &r) {
		t.Errorf("a call began without its record: %v", err)
	}
	if err := s.Write(t.Context(), call(record.Allowed, "fs_write")); err != nil {
		t.Errorf("the outcome of a call that began found no room: %v", err)
	}
	for range 7 {
		if err := s.Write(t.Context(), call(record.Denied, "mem_set")); err != nil {
			t.Errorf("a denial was not counted: %v", err)
		}
	}
	s.Note(call(record.Allowed, "mem_get"))
	before := spooled(t, s)
	if err := s.Spool().Done(t.Context(), uint64(len(before))); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(t.Context(), put(5000, "x")); err != nil {
		t.Fatalf("there is room again: %v", err)
	}
	denied := uint64(0)
	for _, r := range spooled(t, s) {
		if r.Verdict == record.Denied && r.Target == "mem_set" {
			denied += r.Count
		}
	}
	if denied != 7 {
		t.Errorf("%d denials came to the audit, want 7", denied)
	}
}

func TestDenialsThatRepeatBecomeOneRecord(t *testing.T) {
	now := time.Now()
	path := filepath.Join(t.TempDir(), "system.db")
	s := openAt(t, Config{Path: path, Now: func() time.Time { return now }})
	deny := func(target, token string, n int) {
		t.Helper()
		for range n {
			r := call(record.Denied, target)
			r.Token = token
			if err := s.Write(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Update(t.Context(), put(1, "x")); err != nil {
		t.Fatal(err)
	}
	deny("mem_set", "", 3*foldAfter)
	deny("fs_write", "one", foldAfter) // its own kind: none is counted
	deny("fs_write", "two", foldAfter+2)
	deny("fs_write", "one", 2)
	long := call(record.Denied, "db_query")
	long.Detail = strings.Repeat("x", 60<<10)
	for range 10 {
		if err := s.Write(t.Context(), long); err != nil {
			t.Fatal(err)
		}
	}
	before := spooled(t, s)
	if n := len(before); before[0].Target != "1" || n > 1+3*foldAfter+4 {
		t.Errorf("%d records, the first %+v", n, before[0])
	}
	if err := s.Close(); err != nil { // what was counted is on disk
		t.Fatal(err)
	}
	s = openAt(t, Config{Path: path, Now: func() time.Time { return now }})
	deny("mem_set", "", foldAfter+1) // it does not know of those before, and counts on
	now = now.Add(foldTime)
	if err := s.Update(t.Context(), put(2, "x")); err != nil {
		t.Fatal(err)
	}
	got, tokens := map[string]uint64{}, map[string]string{}
	for _, r := range spooled(t, s) {
		if r.Verdict == record.Denied {
			got[r.Target] += max(r.Count, 1)
			if r.Count > 0 {
				tokens[r.Target] = r.Token + r.Detail
			}
		}
	}
	if got["mem_set"] != 4*foldAfter+1 || got["fs_write"] != 2*foldAfter+4 || got["db_query"] != 10 {
		t.Errorf("%v", got)
	}
	if tokens["fs_write"] != "with several tokens, or with one and without" || tokens["mem_set"] != "" {
		t.Errorf("%q", tokens)
	}
}

// What fails for a reason costs the agent as little as a denial, and leaves the reserve
// to the outcomes of calls that have begun.
func TestFailuresThatRepeatBecomeOneRecord(t *testing.T) {
	s := openAt(t, Config{Path: filepath.Join(t.TempDir(), "system.db"), Audited: true})
	away := call(record.Failed, "mem_set")
	away.Reason = &deny.Reason{Layer: deny.LayerTools, Code: deny.ToolUnavailable}
	for range 3 * foldAfter {
		if err := s.Write(t.Context(), away); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(spooled(t, s)); n != foldAfter {
		t.Errorf("%d records", n)
	}
}

func TestNotesThatWaitForTheDiskAreCounted(t *testing.T) {
	s := openAt(t, Config{Path: filepath.Join(t.TempDir(), "system.db")})
	s.mu.Lock()
	s.led = true // nobody writes
	s.mu.Unlock()
	const n = 5 * maxNotes
	for i := range n {
		r := call(record.Allowed, "mem_get")
		if i%2 == 1 {
			r.Target, r.Token = "mem_list", fmt.Sprint(i)
		}
		s.keep([][]byte{encode(r).text})
	}
	s.mu.Lock()
	kept := len(s.notes)
	s.led = false
	s.mu.Unlock()
	if kept > 2*maxNotes {
		t.Errorf("%d are kept", kept)
	}
	if err := s.Update(t.Context(), put(1, "x")); err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, r := range spooled(t, s) {
		got[r.Target] += max(r.Count, 1)
	}
	if got["mem_get"] != n/2 || got["mem_list"] != n/2 {
		t.Errorf("%v of %d", got, n)
	}
}

func TestANoteOfManyCountsAsMany(t *testing.T) {
	s := openAt(t, Config{Path: filepath.Join(t.TempDir(), "system.db"), Spool: 4096, Audited: true})
	for !s.w.spool.held { // until it is full
		s.Note(call(record.Allowed, "mem_list"))
		s.flush()
	}
	r := call(record.Allowed, "mem_get")
	r.Count = 500
	s.keep([][]byte{encode(r).text})
	s.Note(call(record.Allowed, "mem_get"))
	s.flush()
	n := int64(0)
	if err := s.View(t.Context(), func(t *Tx) (err error) {
		n, err = t.Int("SELECT sum(count) FROM counted WHERE target = 'mem_get'")
		return err
	}); err != nil || n != 501 {
		t.Errorf("%d, %v", n, err)
	}
}

// A flood does not put off what was counted, and silence does not keep it.
func TestWhatWasCountedBecomesRecordsWhateverComes(t *testing.T) {
	var clock atomic.Int64
	clock.Store(time.Now().UnixNano())
	s := openAt(t, Config{Path: filepath.Join(t.TempDir(), "system.db"), Now: func() time.Time { return time.Unix(0, clock.Load()) }})
	const minutes, each = 4, 8 * foldAfter
	for range minutes {
		var all sync.WaitGroup
		for range each {
			all.Go(func() {
				if err := s.Write(t.Context(), call(record.Denied, "mem_set")); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		clock.Add(int64(foldTime) + 1)
	}
	told := func() (n uint64) {
		for _, r := range spooled(t, s) {
			n += max(r.Count, 1)
		}
		return n
	}
	if n := told(); n < (minutes-2)*each {
		t.Errorf("%d of %d are records", n, minutes*each)
	}
	if err := s.Sweep(t.Context()); err != nil { // nobody calls any more
		t.Fatal(err)
	}
	if n := told(); n != minutes*each {
		t.Errorf("%d of %d are records", n, minutes*each)
	}
}

func TestOneLongRecordLeavesTheOthers(t *testing.T) {
	s := openAt(t, Config{Path: filepath.Join(t.TempDir(), "system.db"), Spool: 256 << 10})
	for i := range 20 {
		if err := s.Update(t.Context(), put(i, "x")); err != nil {
			t.Fatal(err)
		}
	}
	long := call(record.Denied, "db_insert")
	long.Reason = &deny.Reason{Layer: deny.LayerTools, Code: deny.ToolInvalid, Fields: make([]deny.Field, 100_000)}
	if err := s.Write(t.Context(), long); err != nil {
		t.Fatal(err)
	}
	all := spooled(t, s)
	if len(all) != 21 || all[0].Target != "0" || all[20].Reason == nil || all[20].Reason.Code != deny.ToolInvalid || !strings.HasPrefix(all[20].Detail, "cut, since the record had ") {
		t.Errorf("%d records are left, the last %+v", len(all), all[len(all)-1])
	}
	if s.w.spool.bytes > 128<<10 {
		t.Errorf("they take %d bytes", s.w.spool.bytes)
	}
}

func TestWithoutAReaderTheOldestRecordsGiveWay(t *testing.T) {
	s := openAt(t, Config{Path: filepath.Join(t.TempDir(), "system.db"), Spool: 8 << 10})
	for i := range 300 {
		if err := s.Update(t.Context(), put(i, "x")); err != nil {
			t.Fatal(err)
		}
	}
	all := spooled(t, s)
	if s.w.spool.bytes > 8<<10 || len(all) == 0 || all[len(all)-1].Target != "299" {
		t.Errorf("%d bytes, %d records", s.w.spool.bytes, len(all))
	}
	real := s.w.spool
	if err := s.w.spool.load(s.w.db); err != nil || s.w.spool != real {
		t.Errorf("memory says %+v, the database %+v; %v", real, s.w.spool, err)
	}
}

func TestTheQuotaIsExactAndWhatHasExpiredGivesBack(t *testing.T) {
	s := openAt(t, Config{Path: filepath.Join(t.TempDir(), "system.db"), Quota: 100})
	s.Expire(func(x *Tx) (bool, error) {
		n, err := x.Exec("DELETE FROM thing WHERE id = (SELECT id FROM thing WHERE expires > 0 LIMIT 1)")
		if err != nil || n == 0 {
			return false, err
		}
		return true, x.Charge(-10)
	})
	add := func(expires int) error {
		return s.Update(t.Context(), func(x *Tx) error {
			if err := x.Charge(10); err != nil {
				return err
			}
			_, err := x.Exec("INSERT INTO thing (body, expires) VALUES (x'', ?)", expires)
			return err
		})
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	taken := 0
	for range 40 {
		wg.Go(func() {
			if add(0) == nil {
				mu.Lock()
				taken++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if taken != 10 || count(t, s) != 10 {
		t.Errorf("%d were taken, want exactly 10", taken)
	}
	var r *deny.Reason
	if err := add(0); !errors.As(err, &r) || r.Code != deny.ToolQuota {
		t.Errorf("%v", err)
	}
	if err := s.Update(t.Context(), func(x *Tx) error { _, err := x.Exec("UPDATE thing SET expires = 1 WHERE id <= 3"); return err }); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if err := add(0); (err == nil) != (i < 3) {
			t.Errorf("%d more: %v", i+1, err)
		}
	}
}

func TestWhatIsNoStoreIsRefused(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("no database", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{Path: text}); err == nil {
		t.Error("a text was opened")
	}
	other := filepath.Join(dir, "other.db")
	c, err := sqlite.Open(other)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Exec("CREATE TABLE x (y)"); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{Path: other}); err == nil || !strings.Contains(err.Error(), "not a system.db") {
		t.Errorf("%v", err)
	}
	mine := filepath.Join(dir, "system.db")
	s := openAt(t, Config{Path: mine})
	if _, err := Open(t.Context(), Config{Path: mine}); err == nil {
		t.Error("two opened one store")
	}
	for i := range 500 {
		if err := s.Update(t.Context(), put(i, strings.Repeat("x", 300))); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(mine)
	if err != nil {
		t.Fatal(err)
	}
	for at := 2 * pageSize; at+8 < len(raw); at += pageSize {
		copy(raw[at:], "damaged!")
	}
	if err := os.WriteFile(mine, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{Path: mine}); !errors.Is(err, ErrDamaged) {
		t.Errorf("damage was not seen: %v", err)
	}
}

func TestAFailedTransactionIsForgottenAndTheNextGoesWell(t *testing.T) {
	s := open(t)
	if err := s.Update(t.Context(), put(1, "x")); err != nil {
		t.Fatal(err)
	}
	// SQLite itself gives the whole transaction up under the function's feet.
	err := s.Update(t.Context(), func(x *Tx) error {
		if err := put(2, "y")(x); err != nil {
			return err
		}
		_, err := x.Exec("ROLLBACK")
		return errors.Join(err, errors.New("after that"))
	})
	var r *deny.Reason
	if !errors.As(err, &r) || r.Code != deny.ToolUnavailable {
		t.Errorf("%v", err)
	}
	if err := s.Update(t.Context(), put(3, "z")); err != nil {
		t.Fatal(err)
	}
	if n := count(t, s); n != 2 || s.w.used != 2 {
		t.Errorf("%d things, %d bytes; want 2 of each", n, s.w.used)
	}
	targets := []string{}
	for _, r := range spooled(t, s) {
		targets = append(targets, r.Target)
	}
	if !slices.Equal(targets, []string{"1", "3"}) {
		t.Errorf("records of %v", targets)
	}
}

func TestANewerSchemaIsLeftAlone(t *testing.T) {
	s := open(t)
	if err := s.Migrate(t.Context(), "thing", nil); err == nil || !strings.Contains(err.Error(), "newer program") {
		t.Errorf("%v", err)
	}
}

// TestTheLogBecomesLong holds that an agent that writes much has a log that
// need not grow, and that what lies behind its end is read as nothing.
func TestTheLogBecomesLong(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "system.db")
	s := openAt(t, Config{Path: path})
	size := func() int64 {
		info, err := os.Stat(path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	n := 0
	for ; n < logAfter-1; n++ {
		if err := s.Write(t.Context(), call(record.Allowed, "mem_set")); err != nil {
			t.Fatal(err)
		}
	}
	if size() >= logBytes/2 {
		t.Errorf("it is %d bytes long at once", size())
	}
	for ; n < logAfter+10*logEvery; n++ {
		if err := s.Write(t.Context(), call(record.Allowed, "mem_set")); err != nil {
			t.Fatal(err)
		}
	}
	if size() < logBytes {
		t.Errorf("it is %d bytes long", size())
	}
	// As after a crash: what is there now, opened by somebody else.
	copied := filepath.Join(dir, "copy.db")
	for from, to := range map[string]string{path: copied, path + "-wal": copied + "-wal"} {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := spooled(t, openAt(t, Config{Path: copied})); len(got) != n {
		t.Errorf("%d records of %d", len(got), n)
	}
	if long, err := lengthen(filepath.Join(dir, "none")); err == nil || long {
		t.Error("a log that is not there became long")
	}
}

// TestReadsDoNotWaitForTheRecordsOfReads: those go to disk when their time has
// come, and not with each read that follows.
func TestReadsDoNotWaitForTheRecordsOfReads(t *testing.T) {
	s := openAt(t, Config{Path: filepath.Join(t.TempDir(), "system.db")})
	const n = 300
	start := time.Now()
	for range n {
		s.Note(call(record.Allowed, "mem_get"))
		if err := s.View(t.Context(), func(*Tx) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if most := int(time.Since(start)/flushDelay) + 2; s.w.commits > most {
		t.Errorf("%d commits, %d at the most in that time", s.w.commits, most)
	}
	if got := spooled(t, openAt(t, Config{Path: s.cfg.Path})); len(got) != n {
		t.Errorf("%d records of %d", len(got), n)
	}
}

func TestRecentCallsAreThoseStillKeptOldestFirst(t *testing.T) {
	s := open(t)
	at := time.Now().UTC()
	for i := range 10 {
		r := call(record.Allowed, fmt.Sprint(i))
		r.Time = at.Add(time.Duration(i-10) * time.Minute)
		if i == 8 {
			r.Verdict = record.Started
		}
		if err := s.Write(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range []struct {
		since time.Duration
		max   int
		want  string
		more  bool
	}{{time.Hour, 100, "012345679", false}, {5*time.Minute + time.Second, 100, "5679", false}, {time.Hour, 3, "679", true}, {time.Second, 3, "", false}} {
		all, more, err := s.Spool().Recent(t.Context(), at.Add(-k.since), k.max)
		got := ""
		for _, r := range all {
			got += r.Target
		}
		if err != nil || got != k.want || more != k.more {
			t.Errorf("%+v: %s, %v, %v", k, got, more, err)
		}
	}
}
