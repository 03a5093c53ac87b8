package store

import (
	"bytes"
	"context"
	"database/sql/driver"
	"fmt"
	"strings"
)

// salvage copies the rows of a damaged database.
type salvage struct {
	ctx     context.Context
	in, out *conn
	report  *RepairReport
	older   bool // its dead letters do not say whether they had a place
}

// span is a range of numbers that could not be read, both included.
type span struct{ from, to int64 }

func (s *salvage) all() error {
	for _, table := range []string{"agent", "channel"} {
		if _, err := s.table(table, "id", 0); err != nil {
			return err
		}
	}
	// Every message took one number of its channel, so there are no more.
	most, err := s.out.integer("SELECT sum(last + ?) FROM channel", channelStride)
	if err != nil {
		return err
	}
	for _, sql := range []string{"SELECT max(id) FROM message", "SELECT max(message) FROM delivery", "SELECT max(message) FROM dead", lastMessage} {
		if n, err := s.in.integer(sql); err == nil {
			most = max(most, n)
		}
	}
	lost, err := s.table("message", "id", most)
	if err != nil {
		return err
	}
	unknown, err := s.table("delivery", "message", most)
	if err != nil {
		return err
	}
	n, err := s.in.integer("SELECT count(*) FROM pragma_table_info('dead') WHERE name = 'evicted'")
	s.older = err == nil && n == 0
	for _, table := range []string{"dead", "late", "request", "membership"} {
		// A store of an earlier version has not all of them.
		if n, err := s.in.integer("SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?", table); err == nil && n == 0 {
			continue
		}
		if _, err := s.table(table, "id", 0); err != nil {
			return err
		}
	}
	if err := s.keepNumbers(lost); err != nil {
		return err
	}
	return s.mend(unknown)
}

// table copies one table by ranges of its key, halving those that fail, until
// what is lost is known to the row.
func (s *salvage) table(name, key string, most int64) (lost []span, err error) {
	if most == 0 {
		if most, err = s.in.integer(fmt.Sprintf("SELECT max(%s) FROM %s NOT INDEXED", key, name)); err != nil {
			most = 1 << 16 // the way to the last row is damaged
		}
	}
	const chunk = 64
	for from := int64(0); from <= most; from += chunk {
		if err := s.ctx.Err(); err != nil {
			return nil, err
		}
		part, err := s.part(name, key, from, min(from+chunk-1, most))
		if err != nil {
			return nil, err
		}
		for _, l := range part {
			if n := len(lost); n > 0 && lost[n-1].to+1 == l.from {
				lost[n-1].to = l.to
			} else {
				lost = append(lost, l)
			}
		}
	}
	for _, l := range lost {
		s.lose("rows of table %s with %s %d to %d cannot be read", name, key, l.from, l.to)
	}
	return lost, nil
}

func (s *salvage) lose(format string, args ...any) {
	s.report.Lost = append(s.report.Lost, fmt.Sprintf(format, args...))
}

func (s *salvage) part(name, key string, from, to int64) ([]span, error) {
	var rows []row
	columns, into := "*", ""
	if name == "dead" { // mend makes the columns that a store of an earlier version has not
		columns = "id, message, recipient, at, attempts, reason, told, ended, how"
		if !s.older {
			columns += ", evicted"
		}
		into = "(" + columns + ")"
	}
	readErr := s.in.query(fmt.Sprintf("SELECT %s FROM %s NOT INDEXED WHERE %s BETWEEN ? AND ?", columns, name, key), func(values []driver.Value) error {
		r := make(row, len(values))
		for i, v := range values {
			if b, ok := v.([]byte); ok {
				v = bytes.Clone(b)
			}
			r[i] = v
		}
		rows = append(rows, r)
		return nil
	}, from, to)
	var damaged []span
	for _, r := range rows {
		// A damaged page may show a row twice, or values of another type.
		sql := fmt.Sprintf("INSERT OR IGNORE INTO %s %s VALUES (?%s)", name, into, strings.Repeat(", ?", len(r)-1))
		if err := s.out.exec(sql, r.args()...); err != nil {
			if full(err) {
				return nil, err
			}
			s.lose("a row of table %s is damaged: %v", name, err)
			if id, ok := r[0].(int64); ok { // the key is the first column
				damaged = append(damaged, span{id, id})
			}
		}
	}
	if readErr == nil {
		return damaged, nil
	}
	if from == to {
		return []span{{from, to}}, nil
	}
	mid := from + (to-from)/2
	a, err := s.part(name, key, from, mid)
	if err != nil {
		return nil, err
	}
	b, err := s.part(name, key, mid+1, to)
	return append(a, b...), err
}

// mend makes the copy whole again: names and sequences that rows refer to,
// and deliveries of messages whose state is unknown.
func (s *salvage) mend(unknown []span) error {
	steps := []string{
		`INSERT OR IGNORE INTO agent (id, name) SELECT DISTINCT id, 'lost-agent-' || id FROM
			(SELECT sender AS id FROM message UNION SELECT recipient FROM delivery UNION SELECT recipient FROM dead UNION SELECT sender FROM late)`,
		`INSERT OR IGNORE INTO channel (id, name, last, time) SELECT DISTINCT channel, 'lost-channel-' || channel, 0, 0 FROM message`,
		`UPDATE channel SET last = max(channel.last, m.last), time = max(channel.time, m.time)
			FROM (SELECT channel, max(seq) AS last, max(time) AS time FROM message GROUP BY channel) AS m WHERE m.channel = channel.id`,
		placeAll,
		deadChannels,
	}
	if s.older {
		steps = append(steps, deadEvicted)
	}
	for _, sql := range steps {
		if err := s.out.exec(sql); err != nil {
			return err
		}
	}
	before, err := s.out.integer("SELECT count(*) FROM delivery")
	if err != nil {
		return err
	}
	// To everybody who got something of that channel, and to the other side
	// of a direct one.
	for _, u := range unknown {
		if err := s.out.exec(`INSERT OR IGNORE INTO delivery (message, recipient, state, attempts, nonce, until, span, ended, reason)
			SELECT m.id, r.recipient, 0, 0, 0, 0, 0, 0, 'its state was lost and it was queued again by repair' FROM message AS m
				JOIN (SELECT DISTINCT o.channel, d.recipient FROM delivery AS d JOIN message AS o ON o.id = d.message
					UNION SELECT c.id, a.id FROM channel AS c JOIN agent AS a ON c.name LIKE '@' || a.name || '+%' OR c.name LIKE '@%+' || a.name) AS r
				ON r.channel = m.channel AND r.recipient <> m.sender
			WHERE m.id BETWEEN ? AND ? AND NOT EXISTS (SELECT 1 FROM dead WHERE dead.message = m.id AND dead.recipient = r.recipient)`, u.from, u.to); err != nil {
			return err
		}
	}
	after, err := s.out.integer("SELECT count(*) FROM delivery")
	if err != nil {
		return err
	}
	s.report.Requeued = after - before
	orphans, err := s.out.integer("SELECT count(*) FROM delivery WHERE state = 0 AND message NOT IN (SELECT id FROM message)")
	if err != nil {
		return err
	}
	if orphans > 0 {
		s.lose("%d deliveries that were pending: their messages are lost", orphans)
	}
	for _, sql := range []string{
		"DELETE FROM delivery WHERE message NOT IN (SELECT id FROM message)",
		"DELETE FROM dead WHERE message NOT IN (SELECT id FROM message)",
	} {
		if err := s.out.exec(sql); err != nil {
			return err
		}
	}
	if err := s.gaps(); err != nil {
		return err
	}
	return s.count()
}

// gaps reports sequences that a channel lost: between two that are there, or
// at its end.
func (s *salvage) gaps() error {
	return s.out.query(`SELECT c.name, g.seq + 1, g.next - 1 FROM (
			SELECT channel, seq, coalesce(lead(seq) OVER (PARTITION BY channel ORDER BY seq), (SELECT last + 1 FROM channel WHERE id = channel)) AS next FROM message
		) AS g JOIN channel AS c ON c.id = g.channel WHERE g.next > g.seq + 1`, func(r []driver.Value) error {
		s.lose("channel %s misses its messages %d to %d: they are lost, were pruned or, at its end, never given", text(r[0]), integer(r[1]), integer(r[2]))
		return nil
	})
}

func (s *salvage) count() (err error) {
	for sql, n := range map[string]*int64{
		"SELECT count(*) FROM message": &s.report.Messages, "SELECT count(*) FROM delivery": &s.report.Deliveries, "SELECT count(*) FROM dead": &s.report.Dead,
	} {
		if *n, err = s.out.integer(sql); err != nil {
			return err
		}
	}
	s.report.Deliveries -= s.report.Requeued
	return nil
}
