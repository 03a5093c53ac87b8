package store

import (
	"context"
	"database/sql/driver"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/deny"

	"github.com/ncruces/go-sqlite3"
)

// promise is what the adapter told a caller, and how far the disk was then.
type promise struct {
	at        int // changes of the disk
	kind      string
	recipient string
	to        []string
	key       string
	channel   string
	seq       uint64
}

// promising records promises while workers use an adapter on a disk.
type promising struct {
	*Adapter
	disk *disk
	w    *workers

	mu       sync.Mutex
	promises []promise
}

func (p *promising) note(x promise) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x.at = p.disk.position()
	p.promises = append(p.promises, x)
}

func (p *promising) Send(ctx context.Context, from string, ds []Draft) []SendResult {
	rs := p.Adapter.Send(ctx, from, ds)
	for i, r := range rs {
		if r.Err == nil {
			p.note(promise{kind: "sent", key: ds[i].IdempotencyKey, channel: r.Channel, seq: r.Sequence, to: p.w.recipients(from, ds[i])})
		}
	}
	return rs
}

func (p *promising) Ack(ctx context.Context, agent string, leases []string) []error {
	for _, l := range leases {
		id, _, _ := parseLease(l)
		p.note(promise{kind: "asked", recipient: agent, seq: uint64(id)})
	}
	errs := p.Adapter.Ack(ctx, agent, leases)
	for i, err := range errs {
		if err == nil {
			id, _, _ := parseLease(leases[i])
			p.note(promise{kind: "acknowledged", recipient: agent, seq: uint64(id)})
		}
	}
	return errs
}

func openOn(t *testing.T, path string, d *disk) (*Adapter, func(), error) {
	t.Helper()
	dia, free := d.dialect()
	a, err := Open(t.Context(), Config{Path: path, Policy: seven(), Log: slog.New(slog.DiscardHandler), dialect: &dia})
	return a, free, err
}

// TestNothingIsLostInAPowerFailure lets a team work on a simulated disk and
// then takes the power away at points all over what was written. Set
// BULKHEAD_CRASH_POINTS for another number of them; CI takes 1,000 new ones each time.
func TestNothingIsLostInAPowerFailure(t *testing.T) {
	points := 1000
	if testing.Short() {
		points = 60
	}
	if n, err := strconv.Atoi(os.Getenv("BULKHEAD_CRASH_POINTS")); err == nil {
		points = n
	}
	path := filepath.Join(t.TempDir(), "messages.db")
	d := newDisk(nil)
	a, free, err := openOn(t, path, d)
	if err != nil {
		t.Fatal(err)
	}
	// Small, so that checkpoints fall into it as well.
	if err := a.do(t.Context(), &op{after: func(c *conn) {
		_ = c.query("PRAGMA wal_autocheckpoint = 60", func([]driver.Value) error { return nil })
	}}); err != nil {
		t.Fatal(err)
	}
	w := newWorkers(t, seven())
	p := &promising{Adapter: a, disk: d, w: w}
	w.set(p)
	w.start(10 * time.Millisecond)
	for d.position() < 6000 {
		time.Sleep(5 * time.Millisecond)
	}
	close(w.stopSending)
	w.senders.Wait()
	close(w.stopReceiving)
	w.receivers.Wait()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	free()
	seed := uint64(time.Now().UnixNano())
	t.Logf("%d changes of the disk, %d promises, seed %d", len(d.log), len(p.promises), seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	places := make([]int, points)
	for i := range places {
		places[i] = rng.IntN(len(d.log) + 1)
	}
	slices.Sort(places)
	all := d.replay()
	for i, at := range places {
		name := fmt.Sprintf("point %d (change %d)", i, at)
		left := newDisk(all.crash(at, rng))
		if i%4 == 0 {
			// The power fails again while it starts.
			b, free, err := openOn(t, path, left)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			_ = b.Close()
			free()
			left = newDisk(left.crash(rng.IntN(len(left.log)+1), rng))
			name += " twice"
		}
		keeps(t, name, path, left, p.promises, at)
		if t.Failed() {
			return
		}
	}
}

// keeps opens what is left and holds it against every promise made before at.
func keeps(t *testing.T, name, path string, left *disk, promises []promise, at int) {
	t.Helper()
	a, free, err := openOn(t, path, left)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	defer free()
	defer a.Close()
	type place struct {
		channel string
		seq     uint64
	}
	found := map[string]place{}
	last := map[string]uint64{}
	state := map[string]int64{} // by recipient and key
	byID := map[string]int64{}
	if err := a.read(t.Context(), "", func(c *conn) error {
		if err := c.query(selectMessage+"ORDER BY m.id", func(row []driver.Value) error {
			_, m := scanMessage(row)
			if m.Sequence != last[m.Channel]+1 {
				t.Errorf("%s: %s has %d after %d", name, m.Channel, m.Sequence, last[m.Channel])
			}
			last[m.Channel] = m.Sequence
			found[m.IdempotencyKey] = place{m.Channel, m.Sequence}
			return nil
		}); err != nil {
			return err
		}
		return c.query("SELECT agent.name, key, state, message.id FROM delivery JOIN message ON message.id = message JOIN agent ON agent.id = recipient", func(row []driver.Value) error {
			var k key
			copy(k[:], blob(row[1]))
			state[text(row[0])+k.String()] = integer(row[2])
			byID[fmt.Sprint(text(row[0]), integer(row[3]))] = integer(row[2])
			return nil
		})
	}); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	asked := map[string]bool{}
	for _, p := range promises {
		if p.at > at && p.kind != "asked" {
			continue
		}
		switch id := fmt.Sprint(p.recipient, p.seq); p.kind {
		case "sent":
			if found[p.key] != (place{p.channel, p.seq}) {
				t.Errorf("%s: message %d of %s was promised, there is %+v", name, p.seq, p.channel, found[p.key])
			}
			for _, r := range p.to {
				if _, ok := state[r+p.key]; !ok {
					t.Errorf("%s: message %d of %s has no delivery to %s", name, p.seq, p.channel, r)
				}
			}
		case "asked":
			if p.at <= at {
				asked[id] = true
			}
		case "acknowledged":
			if byID[id] != 1 {
				t.Errorf("%s: %s acknowledged message %d, and would get it again (state %d)", name, p.recipient, p.seq, byID[id])
			}
		}
	}
	for id, s := range byID {
		if s == 1 && !asked[id] {
			t.Errorf("%s: delivery %s counts as acknowledged, nobody did", name, id)
		}
	}
}

func TestAFullDiskLosesNothingAndRecovers(t *testing.T) {
	d := newDisk(nil)
	path := filepath.Join(t.TempDir(), "messages.db")
	a, free, err := openOn(t, path, d)
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	s := &stage{Adapter: a, t: t}
	defer a.Close()
	first := s.send("pm", note("qa", "before"))
	full := func(on bool) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.room = 0; on {
			d.room = 1
		}
	}
	full(true)
	draft := note("qa", strings.Repeat("while it is full ", simulatedLog/17-10)) // the log that is there does not hold it
	for range 3 {
		r := s.refused("pm", draft, deny.MessageUnavailable)
		if r.RetryAfter == 0 || r.Envelope().StatusCode != 503 || r.Why != "the disk of the message store is full" {
			t.Fatalf("%+v", r)
		}
	}
	full(false)
	second := s.send("pm", draft)
	if second.Sequence != first.Sequence+1 || second.Duplicate {
		t.Errorf("%+v after %+v", second, first)
	}
	if ds := s.receive("qa", ReceiveRequest{}); len(ds) != 2 {
		t.Errorf("%v", bodies(ds))
	}
}

func TestAFailingDiskIsToldAndLosesNothing(t *testing.T) {
	d := newDisk(nil)
	path := filepath.Join(t.TempDir(), "messages.db")
	a, free, err := openOn(t, path, d)
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	s := &stage{Adapter: a, t: t}
	defer a.Close()
	s.send("pm", note("qa", "before"))
	got := make(chan error)
	go func() {
		_, err := s.Receive(t.Context(), "design", ReceiveRequest{Wait: maxWait})
		got <- err
	}()
	for s.waiting() == 0 {
		time.Sleep(time.Millisecond)
	}
	fault := func(err error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.fault = err
	}
	fault(sqlite3.IOERR_FSYNC)
	draft := note("qa", "while it fails")
	_ = s.refused("pm", draft, deny.MessageUnavailable)
	_ = s.reason(<-got, deny.MessageUnavailable)
	_ = s.refused("pm", draft, deny.MessageUnavailable)
	fault(nil)
	s.send("pm", draft)
	if ds := s.receive("qa", ReceiveRequest{}); len(ds) != 2 {
		t.Errorf("%v", bodies(ds))
	}
}

// waiting is how many receivers wait.
func (s *stage) waiting() (n int) {
	_ = s.do(context.Background(), &op{run: func(t *txn) {
		for _, ws := range t.waiters {
			n += len(ws)
		}
	}})
	return n
}
