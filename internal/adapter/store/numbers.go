package store

import (
	"database/sql/driver"
	"fmt"
)

// lastMessage is a message's id below which none is given, for a store whose last
// ones were lost. SQLite keeps such marks of tables with AUTOINCREMENT, of which
// message is none, and takes rows of others.
const lastMessage = "SELECT max(seq) FROM sqlite_sequence WHERE name = 'message'"

// keepNumbers has the copy give no number again that a lost message may have had:
// its id, and its sequence, which the row of the channel may be behind. lost are the
// ids that could not be read; those that deliveries and dead letters alone name are
// lost as well.
func (s *salvage) keepNumbers(lost []span) error {
	marks := map[string]int64{}
	// What cannot be read of the marks is at least what was copied.
	_ = s.in.query("SELECT name, seq FROM sqlite_sequence", func(row []driver.Value) error {
		marks[text(row[0])] = max(marks[text(row[0])], integer(row[1]))
		return nil
	})
	if err := s.out.query(`SELECT message FROM delivery WHERE message NOT IN (SELECT id FROM message)
		UNION SELECT message FROM dead WHERE message NOT IN (SELECT id FROM message)`, func(row []driver.Value) error {
		id := integer(row[0])
		if !within(lost, id) {
			lost = append(lost, span{id, id})
		}
		return nil
	}); err != nil {
		return err
	}
	for _, l := range lost {
		marks["message"] = max(marks["message"], l.to)
	}
	last := map[int64]uint64{}
	if err := s.out.query(`SELECT c.id, c.last, coalesce(max(m.seq), 0), coalesce(max(m.id), 0) FROM channel AS c LEFT JOIN message AS m ON m.channel = c.id GROUP BY c.id`,
		func(row []driver.Value) error {
			after := uint64(0) // messages after the newest that is there, at most
			for _, l := range lost {
				if from := max(l.from, integer(row[3])+1); from <= l.to {
					after += bits(l.to - from + 1)
				}
			}
			written, newest := sequence(row[1]), sequence(row[2])
			last[integer(row[0])] = max(newest, min(written+channelStride, max(written, newest)+after))
			return nil
		}); err != nil {
		return err
	}
	for id, n := range last {
		if err := s.out.exec("UPDATE channel SET last = ? WHERE id = ?", number(n), id); err != nil {
			return err
		}
	}
	for _, name := range []string{"message", "dead", "request"} {
		copied, err := s.out.integer("SELECT max(seq) FROM sqlite_sequence WHERE name = ?", name)
		if err != nil {
			return err
		}
		mark := max(copied, marks[name])
		if mark == 0 {
			continue
		}
		if err := s.out.exec("DELETE FROM sqlite_sequence WHERE name = ?", name); err != nil {
			return err
		}
		if err := s.out.exec("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", name, mark); err != nil {
			return fmt.Errorf("keep the last number of %s: %w", name, err)
		}
	}
	return nil
}

func within(spans []span, id int64) bool {
	for _, s := range spans {
		if s.from <= id && id <= s.to {
			return true
		}
	}
	return false
}
