package store

import (
	"bytes"
	"context"
	"encoding/json"

	"bulkhead/internal/record"
	"bulkhead/internal/sqlite"
)

// spoolReserve is what is kept free for the outcomes of calls that have begun.
const spoolReserve = 1 << 20

// rowCost is what a row of the spool counts beside its body.
const rowCost = 32

// spool is what memory knows of the table of that name.
type spool struct {
	last  uint64 // number that was given last
	bytes int64  // of all bodies, with their costs
	held  bool   // there are counted records
}

// load reads it from the database.
func (p *spool) load(db *sqlite.Conn) error {
	done, err := db.Int("SELECT value FROM meta WHERE name = 'spooled'")
	if err != nil {
		return err
	}
	last, err := db.Int("SELECT max(last) FROM spool")
	if err != nil {
		return err
	}
	p.last = uint64(max(done, last)) // #nosec G115 -- never negative
	if p.bytes, err = db.Int("SELECT coalesce(sum(length(body)) + count(*) * ?, 0) FROM spool", rowCost); err != nil {
		return err
	}
	n, err := db.Int("SELECT count(*) FROM counted")
	p.held = n > 0
	return err
}

// pending is what a transaction adds to the spool.
type pending struct {
	spool
	body     bytes.Buffer
	n        uint64 // records in body
	released bool   // what was counted is among them
}

func (p *spool) begin() pending { return pending{spool: *p} }

// committed takes over what a transaction did, and says whether the spool grew.
func (p *spool) committed(t *Tx) bool {
	*p = t.spool.spool
	return t.spool.n > 0
}

// fits says whether a record of that size and rank has room.
func (t *Tx) fits(size int, r rank) bool {
	cfg := &t.store.cfg
	if !cfg.Audited {
		return true // the oldest give way
	}
	most := cfg.Spool
	if r != ending {
		most -= min(spoolReserve, cfg.Spool/4)
	}
	return t.spool.bytes+int64(t.spool.body.Len()+size+1+rowCost) <= most
}

// keepLines takes the records of a function that went well, or refuses all of
// its effect.
func (t *Tx) keepLines() error {
	size := 0
	for _, l := range t.lines {
		size += len(l.text) + 1
	}
	if size > 0 && !t.fits(size, effect) {
		return full()
	}
	for _, l := range t.lines {
		t.spool.add(l.text)
	}
	return nil
}

// take takes one record that stands by itself.
func (t *Tx) take(l *line) error {
	switch {
	case l.denial != nil && !t.store.w.folds.keeps(*l.denial, len(l.text), t.now):
		return t.count(l.text)
	case t.fits(len(l.text), l.rank):
		t.spool.add(l.text)
		return nil
	case l.rank == effect:
		return full()
	}
	return t.count(l.text)
}

func (p *pending) add(text []byte) {
	p.body.Write(text)
	p.body.WriteByte('\n')
	p.n++
}

// count counts a record that has no room, or is one of many that are alike.
func (t *Tx) count(text []byte) error {
	var r record.Record
	if err := json.Unmarshal(text, &r); err != nil {
		return err
	}
	code := ""
	if r.Reason != nil {
		code = string(r.Reason.Code)
	}
	n := max(r.Count, 1)      // a note may stand for several already
	r.Count, r.Input = 0, nil // of one call, and this stands for many
	if other, err := t.countedToken(r.Target, string(r.Verdict), code, r.Token); err != nil {
		return err
	} else if other {
		r.Token, r.Detail = "", "with several tokens, or with one and without"
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	t.spool.held = true
	_, err = t.db.Exec("INSERT INTO counted (target, verdict, code, count, record) VALUES (?, ?, ?, ?, ?)"+
		" ON CONFLICT (target, verdict, code) DO UPDATE SET count = count + excluded.count, record = excluded.record", r.Target, string(r.Verdict), code, int64(n), text) // #nosec G115 -- counts up from 1
	return err
}

// countedToken says whether calls with another token are counted there already.
func (t *Tx) countedToken(target, verdict, code, token string) (other bool, err error) {
	err = t.db.Query("SELECT record FROM counted WHERE target = ? AND verdict = ? AND code = ?", func(row []sqlite.Value) error {
		var r record.Record
		if err := json.Unmarshal(sqlite.Blob(row[0]), &r); err != nil {
			return err
		}
		other = r.Token != token
		return nil
	}, target, verdict, code)
	return other, err
}

// writeSpool writes the transaction's records as one row, and what was counted
// before when there is room for it now.
func (t *Tx) writeSpool() error {
	p := &t.spool
	if p.held && !t.store.w.folds.counting(t.now) {
		if err := t.release(); err != nil {
			return err
		}
	}
	if p.n == 0 {
		return nil
	}
	first := p.last + 1
	p.last += p.n
	body := bytes.TrimSuffix(p.body.Bytes(), []byte("\n"))
	if _, err := t.db.Exec("INSERT INTO spool (last, first, body) VALUES (?, ?, ?)", int64(p.last), int64(first), body); err != nil { // #nosec G115 -- counts up from 0
		return err
	}
	p.bytes += int64(len(body)) + rowCost
	if t.store.cfg.Audited {
		return nil
	}
	return t.giveWay()
}

// giveWay lets go of the oldest records when there is nobody to take them.
func (t *Tx) giveWay() error {
	for t.spool.bytes > t.store.cfg.Spool {
		var last, size int64
		err := t.db.Query("SELECT last, length(body) FROM spool ORDER BY last LIMIT 1", func(row []sqlite.Value) error {
			last, size = sqlite.Int(row[0]), sqlite.Int(row[1])
			return nil
		})
		if err != nil || last == 0 {
			return err
		}
		if _, err := t.db.Exec("DELETE FROM spool WHERE last = ?", last); err != nil {
			return err
		}
		t.spool.bytes -= size + rowCost
	}
	return nil
}

// release makes records of what was counted, when they fit.
func (t *Tx) release() error {
	var lines [][]byte
	size := 0
	err := t.db.Query("SELECT record, count FROM counted ORDER BY target, verdict, code", func(row []sqlite.Value) error {
		var r record.Record
		if err := json.Unmarshal(sqlite.Blob(row[0]), &r); err != nil {
			return err
		}
		r.Count = uint64(sqlite.Int(row[1])) // #nosec G115 -- never negative
		text, err := json.Marshal(r)
		lines = append(lines, text)
		size += len(text) + 1
		return err
	})
	if err != nil || !t.fits(size, counted) {
		return err
	}
	if _, err := t.db.Exec("DELETE FROM counted"); err != nil {
		return err
	}
	t.spool.released = true
	for _, text := range lines {
		t.spool.add(text)
	}
	t.spool.held = false
	return nil
}

// Entry is one record of the spool.
type Entry struct {
	Seq    uint64          `json:"seq"` // counts up by 1 from 1, over restarts
	Record json.RawMessage `json:"record"`
}

// Spool is the store as the audit's client sees it.
type Spool struct{ s *Store }

// Spool gives the records that nobody has taken yet.
func (s *Store) Spool() Spool { return Spool{s} }

// List gives the name of the list that the numbers count. Another file's is another.
func (p Spool) List(ctx context.Context) (name string, err error) {
	err = p.s.View(ctx, func(t *Tx) error {
		return t.Query("SELECT name FROM list", func(row []sqlite.Value) error {
			name = sqlite.Text(row[0])
			return nil
		})
	})
	return name, err
}

// Next gives at most max of the records after a number, oldest first, and waits
// for one when there is none. It is called again with the number of the last
// that was taken; 0 begins with the oldest there is.
func (p Spool) Next(ctx context.Context, after uint64, max int) ([]Entry, error) {
	for {
		p.s.mu.Lock()
		fresh := p.s.fresh
		p.s.mu.Unlock()
		out, err := p.read(ctx, after, max)
		if err != nil || len(out) > 0 {
			return out, err
		}
		select {
		case <-fresh:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-p.s.stop:
			return nil, unavailable("the gateway is stopping")
		}
	}
}

func (p Spool) read(ctx context.Context, after uint64, max int) (out []Entry, err error) {
	err = p.s.View(ctx, func(t *Tx) error {
		return t.Query("SELECT first, body FROM spool WHERE last > ? ORDER BY last LIMIT ?", func(row []sqlite.Value) error {
			seq := uint64(sqlite.Int(row[0])) // #nosec G115 -- never negative
			for text := range bytes.SplitSeq(sqlite.Blob(row[1]), []byte("\n")) {
				if seq > after && len(out) < max {
					out = append(out, Entry{seq, text})
				}
				seq++
			}
			return nil
		}, int64(after), max) // #nosec G115 -- counts up from 0
	})
	return out, err
}

// Done lets go of the records up to a number: the audit has them. Those that
// were written in one transaction go together, so some may be given again.
func (p Spool) Done(ctx context.Context, seq uint64) error {
	return p.s.Update(ctx, func(t *Tx) error {
		n := int64(min(seq, t.spool.last)) // #nosec G115 -- counts up from 0
		size, err := t.Int("SELECT coalesce(sum(length(body)) + count(*) * ?, 0) FROM spool WHERE last <= ?", rowCost, n)
		if err != nil || size == 0 {
			return err
		}
		if _, err := t.Exec("DELETE FROM spool WHERE last <= ?", n); err != nil {
			return err
		}
		t.spool.bytes -= size
		return t.set("spooled", n)
	})
}
