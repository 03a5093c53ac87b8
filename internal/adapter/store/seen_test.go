package store

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"bulkhead/internal/deny"
)

func TestAFilterForgetsNoKeyAndTakesFewForKnown(t *testing.T) {
	s := newSeen()
	f := new(segment)
	known := make([]senderKey, 1<<segmentBits)
	for i := range known {
		known[i] = senderKey{int64(i % 7), newKey()}
		f.add(s.hash(known[i]))
	}
	wrong := 0
	for _, k := range known {
		if !f.has(s.hash(k)) {
			t.Fatal("a key was forgotten")
		}
		if f.has(s.hash(senderKey{k.sender, newKey()})) {
			wrong++
		}
	}
	if wrong > len(known)/50 {
		t.Errorf("%d of %d new keys are taken for known ones", wrong, len(known))
	}
}

// TestHistoryOfManyPieces sends more than one filter and several pieces of
// the indexes hold, and looks for messages in each of them.
func TestHistoryOfManyPieces(t *testing.T) {
	s := setUp(t)
	const n = 1<<segmentBits + 3<<pieceBits + 17
	var sent []Draft
	for len(sent) < n {
		var ds []Draft
		for range min(MaxBatch, n-len(sent)) {
			ds = append(ds, post("platform", fmt.Sprint(len(sent)+len(ds)+1)))
		}
		for i, r := range s.Send(t.Context(), "orchestrator", ds) {
			if want := uint64(len(sent) + i + 1); r.Err != nil || r.Sequence != want {
				t.Fatalf("%+v instead of %d", r, want)
			}
		}
		sent = append(sent, ds...)
	}
	again := func(when string) {
		t.Helper()
		for _, i := range []int{0, 1, 1023, 1024, 4095, 4096, 9000, 1<<segmentBits - 2, 1<<segmentBits - 1, 1 << segmentBits, n - 1} {
			rs := s.Send(t.Context(), "orchestrator", []Draft{sent[i]})
			if rs[0].Err != nil || !rs[0].Duplicate || rs[0].Sequence != uint64(i+1) {
				t.Errorf("%s: message %d again: %+v", when, i+1, rs[0])
			}
			d := sent[i]
			d.Body = []byte(`"another content"`)
			_ = s.reason(s.Send(t.Context(), "orchestrator", []Draft{d})[0].Err, deny.MessageDuplicateKey)
			p, err := s.Thread(t.Context(), "orchestrator", ThreadRequest{Channel: "platform", Sequence: uint64(i + 1)})
			if err != nil || len(p.Messages) != 1 || string(p.Messages[0].Body) != string(sent[i].Body) {
				t.Errorf("%s: thread of message %d: %+v %v", when, i+1, p, err)
			}
		}
		for from := uint64(1); from > 0; {
			p, err := s.Replay(t.Context(), "orchestrator", ReplayRequest{Channel: "platform", From: from, Limit: maxPage})
			if err != nil {
				t.Fatal(err)
			}
			for i, m := range p.Messages {
				if m.Sequence != from+uint64(i) || string(m.Body) != string(sent[m.Sequence-1].Body) {
					t.Fatalf("%s: message %d at %d after %d", when, m.Sequence, i, from)
				}
			}
			if from += uint64(len(p.Messages)); p.Next == 0 {
				if from != n+1 {
					t.Errorf("%s: replay ends before %d", when, from)
				}
				break
			}
		}
	}
	again("while it goes on")
	s.restart()
	again("after a restart")
	for !s.remembered() {
		time.Sleep(time.Millisecond)
	}
	again("with all keys in memory")
	if r := s.send("orchestrator", post("platform", "next")); r.Duplicate || r.Sequence != n+1 {
		t.Errorf("%+v after %d", r, n)
	}
}

// remembered tells whether the filters of all segments were read.
func (s *stage) remembered() bool {
	all := true
	if err := s.do(s.t.Context(), &op{run: func(t *txn) {
		for _, f := range t.seen.segments {
			all = all && f != nil
		}
	}}); err != nil {
		s.t.Fatal(err)
	}
	return all
}

// TestAStoreOfTheFirstSchemaIsTakenOver has what the second needs made of it.
func TestAStoreOfTheFirstSchemaIsTakenOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "messages.db")
	c, err := pureGo().writer(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.step(0); err != nil {
		t.Fatal(err)
	}
	old := note("qa", "old")
	k, _ := parseKey(old.IdempotencyKey)
	for sql, args := range map[string][]any{
		"INSERT INTO agent VALUES (1, 'pm'), (2, 'qa')":                        {},
		"INSERT INTO channel VALUES (1, '@pm+qa', 1, 5)":                       {},
		"INSERT INTO message VALUES (5000, 1, 1, 5, 1, ?, 'note', 1, 0, 0, ?)": {k[:], []byte(old.Body)},
		"INSERT INTO delivery VALUES (5000, 2, 0, 0, 0, 0, 0, 0, '')":          {},
	} {
		if err := c.exec(sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	s := setUp(t, func(c *Config) { c.Path = path })
	if r := s.Send(t.Context(), "pm", []Draft{old})[0]; r.Err != nil || !r.Duplicate || r.Sequence != 1 {
		t.Errorf("%+v", r)
	}
	if r := s.send("pm", note("qa", "new")); r.Sequence != 2 {
		t.Errorf("%+v", r)
	}
	if ds := s.receive("qa", ReceiveRequest{}); len(ds) != 2 || ds[0].IdempotencyKey != old.IdempotencyKey {
		t.Errorf("%v", bodies(ds))
	}
	if p, err := s.Replay(t.Context(), "pm", ReplayRequest{Channel: "@pm+qa"}); err != nil || len(p.Messages) != 2 {
		t.Errorf("%+v %v", p, err)
	}
}
