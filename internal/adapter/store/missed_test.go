package store

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"bulkhead/internal/deny"
)

// missed asks as a gateway does that has acknowledged up to m.
func (s *stage) missed(agent, channel string, m Message, before uint64) Missed {
	s.t.Helper()
	q := MissedRequest{Channel: channel, After: m.Sequence, Time: m.Time, Before: before}
	got, err := s.Missed(s.t.Context(), agent, q)
	if err != nil || len(got.Lost) > 0 {
		s.t.Fatal(got, err)
	}
	q.Lost = true
	lost, err := s.Missed(s.t.Context(), agent, q)
	if err != nil || len(lost.Messages) > 0 || lost.Anew != got.Anew || lost.Last != got.Last || lost.Next > 0 {
		s.t.Fatal(lost, err)
	}
	got.Lost = lost.Lost
	return got
}

func said(ms []Message) (out []string) {
	for _, m := range ms {
		out = append(out, strings.Trim(string(m.Body), `"`))
	}
	return out
}

// flood fills a queue until n messages of pm found no place in it.
func (s *stage) flood(to func(body string) Draft, n int) {
	s.t.Helper()
	for i := range QueueSize + n {
		s.send("pm", to(fmt.Sprint(i)))
	}
}

func TestOnlyWhatFoundNoPlaceIsMissed(t *testing.T) {
	s := setUp(t)
	toQA := func(body string) Draft { return note("qa", body) }
	s.send("qa", note("pm", "its own"))
	if got := s.missed("qa", "@pm+qa", Message{}, 0); len(got.Messages) > 0 || got.Last != 1 {
		t.Errorf("its own message: %+v", got)
	}
	s.flood(toQA, 3)
	for range 2 { // the same from the disk
		ds := s.receive("qa", ReceiveRequest{Max: 1, Lease: minLease})
		if len(ds) != 1 || ds[0].Sequence != 5 || ds[0].Missed != 4 {
			t.Fatalf("%+v", ds)
		}
		got := s.missed("qa", "@pm+qa", Message{}, 5)
		if diff := cmp.Diff([]string{"0", "1", "2"}, said(got.Messages)); diff != "" || len(got.Lost) > 0 || got.Anew || got.Next > 0 {
			t.Errorf("%+v\n%s", got, diff)
		}
		for _, err := range s.Refuse(t.Context(), "qa", []Refusal{{Lease: ds[0].Lease, Delay: time.Millisecond}}) {
			if err != nil {
				t.Fatal(err)
			}
		}
		s.restart()
		time.Sleep(5 * time.Millisecond)
	}
	// Nobody else has missed it, and others are told nothing.
	if got := s.missed("pm", "@pm+qa", Message{}, 0); len(got.Messages) > 0 {
		t.Errorf("the sender: %+v", got)
	}
	_, err := s.Missed(t.Context(), "design", MissedRequest{Channel: "@pm+qa"})
	_ = s.reason(err, deny.MessageNotAllowed)
	_, err = s.Missed(t.Context(), "qa", MissedRequest{Channel: "@pm+qa", After: 1 << 63})
	_ = s.reason(err, deny.MessageInvalid)
	// Replayed or dropped by an operator: it comes by itself, or is not to come.
	dead := s.dead("qa")
	if len(dead) != 3 {
		t.Fatalf("%+v", dead)
	}
	if n, err := s.DropDead(t.Context(), "qa", []int64{dead[0].ID}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	ds := s.receive("qa", ReceiveRequest{Max: 1})
	s.ack("qa", ds...)
	if n, err := s.ReplayDead(t.Context(), "qa", []int64{dead[1].ID}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if diff := cmp.Diff([]string{"2"}, said(s.missed("qa", "@pm+qa", Message{}, 5).Messages)); diff != "" {
		t.Error(diff)
	}
	if got := s.missed("qa", "@pm+qa", ds[0].Message, 0); len(got.Messages) > 0 || len(got.Lost) > 0 || got.Anew {
		t.Errorf("after what it acknowledged: %+v", got)
	}
}

// What was handed out and given up after its tries was seen: that is no gap.
func TestWhatWasGivenUpAfterTriesIsNotMissed(t *testing.T) {
	s := setUp(t)
	s.send("pm", note("qa", "poison"))
	for range 1 + MaxTries {
		ds := s.receive("qa", ReceiveRequest{Wait: maxWait})
		s.Refuse(t.Context(), "qa", []Refusal{{Lease: ds[0].Lease, Delay: time.Millisecond}})
	}
	s.send("pm", note("qa", "next"))
	ds := s.receive("qa", ReceiveRequest{Wait: maxWait, Channel: "@pm+qa"})
	if len(s.dead("qa")) != 1 || len(ds) != 1 || ds[0].Missed != 0 {
		t.Fatalf("%+v", ds)
	}
	if got := s.missed("qa", "@pm+qa", Message{}, 0); len(got.Messages) > 0 {
		t.Errorf("%+v", got)
	}
}

// Who was no member did not miss what was said, in a channel that others fill.
func TestWhatWasSaidWithoutTheAgentIsNotMissed(t *testing.T) {
	s := setUp(t)
	s.flood(func(body string) Draft { return post("product", body) }, 5)
	s.approve(joins("product", "ops"))
	s.send("pm", post("product", "to ops"))
	ds := s.receive("ops", ReceiveRequest{Channel: "product"})
	if len(ds) != 1 || ds[0].Missed != 0 {
		t.Fatalf("%+v", ds)
	}
	if got := s.missed("ops", "product", Message{}, 0); len(got.Messages) > 0 || len(got.Lost) > 0 {
		t.Errorf("%+v", got)
	}
	if got := s.missed("qa", "product", Message{}, 0); len(got.Messages) != 6 {
		t.Errorf("of qa, whose queue was full: %d", len(got.Messages))
	}
}

func TestLostMessagesAndAnEarlierStoreAreTold(t *testing.T) {
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	s := setUp(t, func(c *Config) { c.Clock = func() time.Time { now = now.Add(time.Millisecond); return now } })
	for i := range 10 {
		s.send("pm", note("qa", fmt.Sprint(i)))
	}
	ds := s.receive("qa", ReceiveRequest{Max: 2})
	s.ack("qa", ds...)
	seen := ds[1].Message
	copied := s.Path + ".copy"
	if err := s.Backup(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	rest := s.receive("qa", ReceiveRequest{Max: 8})
	s.ack("qa", rest...)
	if got := s.missed("qa", "@pm+qa", seen, 0); len(got.Lost) > 0 || got.Anew || got.Last != 10 {
		t.Errorf("a sound store: %+v", got)
	}
	// As a page that was damaged: 4, 5 and the last are gone.
	if err := s.do(t.Context(), &op{after: func(c *conn) {
		if err := c.exec("DELETE FROM message WHERE seq IN (4, 5, 10)"); err != nil {
			t.Error(err)
		}
	}}); err != nil {
		t.Fatal(err)
	}
	lost := []Range{{From: 4, To: 5}, {From: 10, To: 10}}
	if got := s.missed("qa", "@pm+qa", seen, 0); !cmp.Equal(got.Lost, lost) || got.Anew {
		// The row of the channel may be behind what was deleted.
		if !cmp.Equal(got.Lost, lost[:1]) {
			t.Errorf("%+v", got)
		}
	}
	if got := s.missed("qa", "@pm+qa", seen, 5); !cmp.Equal(got.Lost, []Range{{From: 4, To: 4}}) {
		t.Errorf("before 5: %+v", got)
	}
	if got := s.missed("qa", "@pm+qa", Message{}, 0); len(got.Lost) > 0 {
		t.Errorf("who has seen nothing yet cannot tell: %+v", got)
	}
	// What may have been pruned is not called lost.
	before := now
	now = now.Add(s.keep)
	if got := s.missed("qa", "@pm+qa", seen, 0); len(got.Lost) > 0 {
		t.Errorf("after the retention: %+v", got)
	}
	now = before
	// The copy is put in the store's place: it knows nothing of the last messages.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.do(t.Context(), &op{}); err == nil {
		t.Fatal("it is open still")
	}
	s.Path = copied
	s.open()
	s.ack("qa", s.receive("qa", ReceiveRequest{Max: 8})...)
	if got := s.missed("qa", "@pm+qa", rest[7].Message, 0); got.Anew || got.Last != 10 {
		t.Errorf("an old store that has it: %+v", got)
	}
	last := s.send("pm", note("qa", "after the copy"))
	ahead := Message{Sequence: last.Sequence + 1, Time: last.Time}
	if got := s.missed("qa", "@pm+qa", ahead, 0); !got.Anew {
		t.Errorf("it has acknowledged more than there is: %+v", got)
	}
	again := Message{Sequence: last.Sequence, Time: last.Time.Add(time.Nanosecond)}
	if got := s.missed("qa", "@pm+qa", again, 0); !got.Anew || len(got.Messages) > 0 {
		t.Errorf("its number was given to another message: %+v", got)
	}
}

func TestMissedComesInPages(t *testing.T) {
	s := setUp(t)
	const large = 20
	body := strings.Repeat("x", 1<<20-8)
	for range large { // each finds no place, as the queue is full of critical ones
		if len(s.queue("qa").Senders) == 0 {
			for range QueueSize {
				s.send("orchestrator", as(note("qa", "c"), Escalation))
			}
		}
		s.send("pm", post("product", body))
		for _, agent := range []string{"engineering", "design"} {
			s.ack(agent, s.receive(agent, ReceiveRequest{})...)
		}
	}
	var got []uint64
	pages := 0
	for from := uint64(0); ; pages++ {
		m, err := s.Missed(t.Context(), "qa", MissedRequest{Channel: "product", From: from})
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range m.Messages {
			got = append(got, one.Sequence)
		}
		if m.Next == 0 {
			break
		}
		from = m.Next
	}
	if len(got) != large || got[0] != 1 || got[large-1] != large || pages < 2 {
		t.Errorf("%d messages in %d pages: %v", len(got), pages, got)
	}
}

// What is lost is looked for in pages, and nobody asks in vain for the rest of
// what is looked through.
func TestLostNumbersComeInPages(t *testing.T) {
	s := setUp(t)
	first := s.send("outsider", note("pm", "first"))
	seen := s.receive("pm", ReceiveRequest{})[0]
	s.ack("pm", seen)
	const n = 2*missedScan + 10
	if err := s.do(t.Context(), &op{after: func(c *conn) {
		const rows = `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
			INSERT INTO message SELECT ?1 + i, channel, seq + i, time, sender, randomblob(16), type, priority, reply, root, body FROM message, n WHERE id = ?1`
		for _, err := range []error{
			c.exec(rows, 1, n), c.exec("INSERT OR IGNORE INTO place SELECT channel, min(seq), id >> 12 FROM message GROUP BY channel, id >> 12"),
			c.exec("DELETE FROM message WHERE seq IN (5, 15000, 15001)"),
		} {
			if err != nil {
				t.Error(err)
			}
		}
	}}); err != nil {
		t.Fatal(err)
	}
	q := MissedRequest{Channel: "@outsider+pm", After: first.Sequence, Time: seen.Time, Lost: true}
	var got []Range
	pages := 0
	for ; ; pages++ {
		m, err := s.Missed(t.Context(), "pm", q)
		if err != nil || m.Next > 0 && m.Next <= q.From {
			t.Fatal(m, err)
		}
		got = append(got, m.Lost...)
		if q.From = m.Next; m.Next == 0 {
			break
		}
	}
	if diff := cmp.Diff([]Range{{From: 5, To: 5}, {From: 15000, To: 15001}}, got); diff != "" || pages != 2 {
		t.Errorf("%d more pages\n%s", pages, diff)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.read(t.Context(), "pm", func(c *conn) error { return s.Adapter.missed(ctx, c, "pm", q, 0, &Missed{}) }); err == nil {
		t.Error("nobody waits for it any more, and it goes on")
	}
}

// A store of an earlier version does not have the channels of its dead letters.
func TestAnOlderStoreKnowsWhatWasMissed(t *testing.T) {
	for name, begin := range map[string]func(s *stage){
		"opened": func(s *stage) { s.open() },
		"repaired": func(s *stage) {
			if r, err := Repair(t.Context(), s.Path); err != nil || len(r.Lost) > 0 {
				t.Fatalf("%+v, %v", r, err)
			}
			s.open()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			s.flood(func(body string) Draft { return note("qa", body) }, 3)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			d := pureGo()
			c, err := d.writer(s.Path)
			if err != nil {
				t.Fatal(err)
			}
			for _, sql := range []string{"DROP TABLE late", "DROP INDEX dead_missed", "ALTER TABLE dead DROP COLUMN evicted", "ALTER TABLE dead DROP COLUMN channel", "PRAGMA user_version = 3"} {
				if err := c.exec(sql); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.close(); err != nil {
				t.Fatal(err)
			}
			begin(s)
			if diff := cmp.Diff([]string{"0", "1", "2"}, said(s.missed("qa", "@pm+qa", Message{}, 0).Messages)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A lease that never arrived is a try, and no message that was handed out.
func TestWhatHadToGoAfterALeaseThatNeverArrivedIsMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := setUp(t)
		first := s.send("pm", note("qa", "0"))
		if ds := s.receive("qa", ReceiveRequest{Max: 1, Lease: minLease}); len(ds) != 1 { // the gateway has left
			t.Fatalf("%+v", ds)
		}
		time.Sleep(minLease)
		s.flood(func(body string) Draft { return note("qa", body) }, 0)
		for range 2 { // the same from the disk
			ds := s.receive("qa", ReceiveRequest{Max: 1, Channel: "@pm+qa", Wait: maxWait, Lease: minLease})
			if len(ds) != 1 || ds[0].Sequence != 2 || ds[0].Missed != 1 {
				t.Fatalf("%+v", ds)
			}
			if got := s.missed("qa", "@pm+qa", Message{}, 2); len(got.Messages) != 1 || got.Messages[0].Sequence != first.Sequence {
				t.Errorf("%+v", got)
			}
			time.Sleep(minLease)
			s.restart()
		}
	})
}

// Its only try was a lease that may never have arrived: an earlier version did not tell it from
// one that was given up after its tries.
func TestAnOlderStoreKnowsWhatHadToGoAfterALease(t *testing.T) {
	s := setUp(t)
	s.send("pm", note("qa", "0"))
	s.receive("qa", ReceiveRequest{Max: 1, Lease: maxLease})
	for _, n := range numbered(QueueSize)[1:] {
		s.send("pm", as(note("qa", n), Escalation)) // the leased one is the only that may go
	}
	s.send("pm", as(note("qa", "last"), Escalation))
	s.send("pm", note("design", "given up after its tries"))
	if err := s.do(t.Context(), &op{run: func(t *txn) {
		for _, e := range t.queue("design").entries {
			e.attempts = MaxTries + 1
			t.give(e, false, "refused 4 times; the last reason: evicted: not so")
		}
	}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	d := pureGo()
	c, err := d.writer(s.Path)
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{"DROP TABLE late", "DROP INDEX dead_missed", "ALTER TABLE dead DROP COLUMN evicted", migrations[3][2], "PRAGMA user_version = 4"} {
		if err := c.exec(sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	s.open()
	if diff := cmp.Diff([]string{"0"}, said(s.missed("qa", "@pm+qa", Message{}, 0).Messages)); diff != "" {
		t.Error(diff)
	}
	if got := s.missed("design", "@design+pm", Message{}, 0); len(got.Messages) > 0 {
		t.Errorf("%+v", got)
	}
}

// FuzzMissed asks with any numbers: what comes is in the range and was not handed out.
func FuzzMissed(f *testing.F) {
	f.Add("product", uint64(0), int64(0), uint64(0), uint64(0), false)
	f.Add("@pm+qa", uint64(1)<<62, int64(1), uint64(3), uint64(1)<<62, true)
	a := fuzzed(f)
	for range 5 {
		a.Send(f.Context(), "pm", []Draft{post("product", "x"), note("qa", "x")})
	}
	f.Fuzz(func(t *testing.T, channel string, after uint64, at int64, before, from uint64, lost bool) {
		m, err := a.Missed(t.Context(), "qa", MissedRequest{Channel: channel, After: after, Time: time.Unix(0, at), Before: before, From: from, Lost: lost})
		if err == nil && (len(m.Messages) > 0 || m.Next > 0) {
			t.Errorf("after %d before %d of %s: %+v", after, before, channel, m)
		}
	})
}
