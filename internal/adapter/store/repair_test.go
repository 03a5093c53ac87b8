package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const pageSize = 4096

// TestRepairKeepsWhatCanBeRead overwrites pages and repairs: nothing of the
// pages that are whole may be missing.
func TestRepairKeepsWhatCanBeRead(t *testing.T) {
	s := setUp(t)
	const n = 400
	for i := range n {
		s.send("pm", post("product", fmt.Sprint(i, strings.Repeat("x", 1000))))
		if i%3 == 0 {
			s.ack("qa", s.receive("qa", ReceiveRequest{Max: 1})...)
		}
	}
	if err := s.Close(); err != nil { // everything is in the database's file
		t.Fatal(err)
	}
	whole, err := os.ReadFile(s.Path)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 8 {
		bad := map[int]bool{}
		raw := append([]byte{}, whole...)
		for range 1 + rng.IntN(3) {
			page := 1 + rng.IntN(len(raw)/pageSize-1) // the first one holds the schema
			bad[page] = true
			for i := range pageSize {
				raw[page*pageSize+i] = byte(rng.Uint32())
			}
		}
		path := filepath.Join(t.TempDir(), "messages.db")
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		c := s.Config
		c.Path = path
		if a, err := Open(t.Context(), c); err == nil {
			_ = a.Close() // an unused page
		} else if !errors.Is(err, ErrDamaged) && !strings.Contains(err.Error(), "malformed") {
			t.Fatalf("pages %v: %v", bad, err)
		}
		r, err := Repair(t.Context(), path)
		if err != nil {
			t.Fatalf("pages %v: %v", bad, err)
		}
		a, err := Open(t.Context(), c)
		if err != nil {
			t.Fatalf("pages %v: %v after %+v", bad, err, r)
		}
		p, err := a.Replay(t.Context(), "pm", ReplayRequest{Channel: "product", Limit: maxPage})
		if err != nil {
			t.Fatal(err)
		}
		// A page holds three of these messages; a page that leads to others hides up to all of them.
		if lost := n - len(p.Messages); lost > 3*len(bad) && len(r.Lost) == 0 || lost > 0 && len(r.Lost) == 0 {
			t.Errorf("pages %v: %d lost, report %+v", bad, lost, r)
		}
		if kept, err := os.ReadFile(r.Damaged); err != nil || string(kept) != string(raw) {
			t.Errorf("the damaged store was not kept: %v", err)
		}
		t.Logf("pages %v: %d of %d messages, %d requeued, lost: %v", bad, len(p.Messages), n, r.Requeued, r.Lost)
		// It goes on: the next message has the next number, and none that a lost one may have had.
		s2 := &stage{Adapter: a, t: t}
		most := uint64(n + 1)
		if len(p.Messages) < n {
			most += channelStride
		}
		if got := s2.send("pm", post("product", "next")); got.Sequence <= n || got.Sequence > most {
			t.Errorf("pages %v: the next message got %d", bad, got.Sequence)
		}
		_ = a.Close()
	}
}

// What was lost at the end of a channel had numbers, which its row may be behind: they
// are not given again, and who had acknowledged one of them is told what is lost.
func TestRepairGivesNoNumberOfALostMessageAgain(t *testing.T) {
	s := setUp(t)
	const n = channelStride + 20
	var seen Message
	for i := range n {
		s.send("pm", note("qa", fmt.Sprint(i)))
		ds := s.receive("qa", ReceiveRequest{})
		s.ack("qa", ds...)
		if i == n-10 {
			seen = ds[0].Message
		}
	}
	s.send("pm", note("design", "another channel"))
	tail, err := s.Tail(t.Context(), -1, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // a repair of what was repaired knows it too
		if err := s.do(t.Context(), &op{after: func(c *conn) {
			if err := c.exec(fmt.Sprintf("DELETE FROM message WHERE seq > %d OR id > %d", n-5, n)); err != nil {
				t.Error(err)
			}
		}}); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := Repair(t.Context(), s.Path); err != nil {
			t.Fatal(err)
		}
		s.open()
	}
	got := s.missed("qa", "@pm+qa", seen, 0)
	if len(got.Lost) != 1 || got.Lost[0].From != n-4 || got.Lost[0].To < n || got.Anew {
		t.Errorf("%+v", got)
	}
	if r := s.send("pm", note("qa", "next")); r.Sequence <= n || r.Sequence > n+channelStride+1 {
		t.Errorf("the next got %d after %d", r.Sequence, n)
	}
	if next, err := s.Tail(t.Context(), tail.Position, 10, 0); err != nil || len(next.Messages) != 1 {
		t.Errorf("who follows all messages sees %+v, %v", next, err)
	}
}

// A row that can be read and makes no sense is lost as well: what it was about is queued again.
func TestRepairQueuesAgainWhatADamagedRowWasAbout(t *testing.T) {
	s := setUp(t)
	for _, n := range numbered(3) {
		s.send("pm", note("qa", n))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	d := pureGo()
	c, err := d.writer(s.Path)
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{ // a strict table takes no such value but by damage
		"CREATE TABLE copy AS SELECT * FROM delivery", "DROP TABLE delivery", "ALTER TABLE copy RENAME TO delivery", "UPDATE delivery SET state = 'x' WHERE message = 2",
	} {
		if err := c.exec(sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	if r, err := Repair(t.Context(), s.Path); err != nil || r.Requeued != 1 || len(r.Lost) == 0 {
		t.Errorf("%+v, %v", r, err)
	}
	s.open()
	if diff := cmp.Diff(numbered(3), bodies(s.receive("qa", ReceiveRequest{}))); diff != "" {
		t.Error(diff)
	}
}

func TestARepairedSoundStoreIsTheSame(t *testing.T) {
	s := setUp(t)
	s.send("pm", post("product", "hello"))
	s.fill("design", "qa", QueueSize+3, "note")
	held := s.receive("qa", ReceiveRequest{Max: 5, Channel: "product"})
	if _, err := Repair(t.Context(), s.Path); err == nil {
		t.Fatal("repaired while it was in use")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := Repair(t.Context(), s.Path)
	if err != nil || len(r.Lost) != 0 || r.Requeued != 0 {
		t.Fatalf("%+v %v", r, err)
	}
	s.open()
	s.ack("qa", held...)
	if q := s.queue("qa"); q.Dead < 3 || q.Queued < QueueSize-2 {
		t.Errorf("%+v", q)
	}
}

func TestABackupIsWholeWhileSendingGoesOn(t *testing.T) {
	s := setUp(t)
	s.fill("pm", "qa", 100, "note")
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for !over(stop) {
			s.Send(t.Context(), "design", []Draft{note("ops", "meanwhile")})
		}
	}()
	to := filepath.Join(t.TempDir(), "backup.db")
	if err := s.Backup(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	close(stop)
	<-done
	if err := s.Backup(t.Context(), to); err == nil {
		t.Error("a backup was overwritten")
	}
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the backup has mode %v, %v", info.Mode(), err)
	}
	c := s.Config
	c.Path = to
	a, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if q := (&stage{Adapter: a, t: t}).queue("qa"); q.Queued != 100 {
		t.Errorf("%+v", q)
	}
}
