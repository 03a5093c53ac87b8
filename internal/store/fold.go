package store

import (
	"time"

	"bulkhead/internal/record"
)

// Denials cost an agent nothing, not even its rate, and each is a line of a log that
// all agents share. So those that are alike are kept one by one only so often.
const (
	foldTime  = time.Minute
	foldAfter = 30        // of one kind in that time
	foldBytes = 256 << 10 // of all denials in that time
	foldKinds = 4096
)

// kind is what denials have in common that are counted as one.
type kind struct{ target, code, token string }

func kindOf(r *record.Record) kind {
	k := kind{target: r.Target, token: r.Token}
	if r.Reason != nil {
		k.code = string(r.Reason.Code)
	}
	return k
}

// folds knows how many denials there were since it began. Who has the lead uses it.
type folds struct {
	since   time.Time
	seen    map[kind]int
	bytes   int
	counted bool // some were counted since then, and are no records yet
	due     bool // so were some before: they become records, whatever comes meanwhile
}

// turn begins anew when the time is over, also that of a clock that went back.
func (f *folds) turn(now time.Time) {
	if d := now.Sub(f.since); d >= foldTime || d < 0 || f.seen == nil {
		*f = folds{since: now, seen: map[kind]int{}, due: f.due || f.counted}
	}
}

// keeps says whether a denial becomes a record of its own.
func (f *folds) keeps(k kind, size int, now time.Time) bool {
	f.turn(now)
	n := f.seen[k]
	if n >= foldAfter || f.bytes+size > foldBytes || n == 0 && len(f.seen) >= foldKinds {
		f.counted = true
		return false
	}
	f.seen[k] = n + 1
	f.bytes += size
	return true
}

// counting says whether what was counted may still grow.
func (f *folds) counting(now time.Time) bool {
	f.turn(now)
	return f.counted && !f.due
}
