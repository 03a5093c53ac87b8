package record

import (
	"context"
	"encoding/json"
	"io"
	"sync"
	"time"

	"bulkhead/internal/deny"
)

// Limits of the log.
const (
	fold       = time.Minute // repeats within it make one line
	maxLines   = 256         // distinct lines of one agent per fold; a runtime can ask for endless names
	maxTarget  = 512         // bytes
	othersName = "(others)"
)

// Log writes one line per distinct decision: the first at once, its repeats
// folded into one more line with their count, each minute and at the end.
type Log struct {
	team string
	told *Audience // hears of each line; nil: nobody

	mu    sync.Mutex
	out   *json.Encoder
	seen  map[key]*Record
	lines map[member]int // of each agent in seen
	now   func() time.Time
}

// member is an agent of a team. Agents of different teams may have the same name.
type member struct{ team, agent string }

type key struct {
	member
	kind    Kind
	target  string
	verdict Verdict
	code    deny.Code
}

// NewLog writes the records of a team's agents to out.
func NewLog(team string, out io.Writer) *Log {
	return &Log{team: team, out: json.NewEncoder(out), seen: map[key]*Record{}, lines: map[member]int{}, now: time.Now}
}

// Tell has an audience hear of each line that is written. It is called before
// anything is.
func (l *Log) Tell(a *Audience) { l.told = a }

// line writes one. A full disk must not stop the agent's denials. The caller
// holds l.mu.
func (l *Log) line(r *Record) {
	_ = l.out.Encode(r)
	l.told.Tell(*r)
}

// Add says whether this decision was a new one, and so a line. It is called
// for every request and connection, so the usual case is one look-up.
func (l *Log) Add(agent string, kind Kind, target string, v Verdict, r *deny.Reason) bool {
	return l.AddOf(l.team, agent, kind, target, v, r)
}

// AddOf is Add in the log of a server that all teams have: an agent's flood is
// folded with its own lines, not with those of another team's of the same name.
func (l *Log) AddOf(team, agent string, kind Kind, target string, v Verdict, r *deny.Reason) bool {
	if len(target) > maxTarget {
		target = target[:maxTarget]
	}
	k := key{member: member{team, agent}, kind: kind, target: target, verdict: v}
	if r != nil {
		k.code = r.Code
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if rec := l.seen[k]; rec != nil {
		rec.Count++
		return false
	}
	if l.lines[k.member] >= maxLines {
		k.target = othersName
		if rec := l.seen[k]; rec != nil {
			rec.Count++
			return false
		}
	}
	rec := &Record{
		SchemaVersion: SchemaVersion, Time: l.now().UTC(), Team: team, Agent: agent,
		Kind: kind, Verdict: v, Target: k.target, Count: 1, Reason: inLog(r),
	}
	l.seen[k] = rec
	l.lines[k.member]++
	l.line(rec)
	rec.Count = 0
	return true
}

// Write writes a line that is never folded.
func (l *Log) Write(r Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.SchemaVersion, r.Time, r.Team = SchemaVersion, l.now().UTC(), l.team
	l.line(&r)
}

// Flush writes the repeats since the last Flush and starts anew.
func (l *Log) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, rec := range l.seen {
		if rec.Count == 0 { // quiet for a while: its next occurrence is a new line
			delete(l.seen, k)
			if l.lines[k.member]--; l.lines[k.member] == 0 {
				delete(l.lines, k.member)
			}
			continue
		}
		rec.Time = l.now().UTC()
		l.line(rec)
		rec.Count = 0
	}
}

// Run flushes each minute until ctx ends, and then once more.
func (l *Log) Run(ctx context.Context) {
	t := time.NewTicker(fold)
	defer t.Stop()
	defer l.Flush()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			l.Flush()
		}
	}
}
