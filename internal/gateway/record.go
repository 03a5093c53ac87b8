package gateway

import (
	"encoding/json"
	"io"
	"sync"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
)

// Limits of the log.
const (
	fold       = time.Minute // repeats within it make one line
	maxLines   = 256         // distinct lines per fold; a runtime can ask for endless names
	othersName = "(others)"
)

// log writes one line per distinct decision: the first at once, its repeats
// folded into one more line with their count, each minute and at the end.
type log struct {
	team, agent string

	mu   sync.Mutex
	out  *json.Encoder
	seen map[key]*record.Record
	now  func() time.Time
}

type key struct {
	target  string
	verdict record.Verdict
	code    deny.Code
}

func newLog(team, agent string, out io.Writer) *log {
	return &log{team: team, agent: agent, out: json.NewEncoder(out), seen: map[key]*record.Record{}, now: time.Now}
}

// add is called for every request and connection, so the usual case is one
// look-up.
func (l *log) add(target string, v record.Verdict, r *deny.Reason) {
	if len(target) > 512 {
		target = target[:512]
	}
	k := key{target: target, verdict: v}
	if r != nil {
		k.code = r.Code
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if rec := l.seen[k]; rec != nil {
		rec.Count++
		return
	}
	if len(l.seen) >= maxLines {
		k = key{othersName, v, k.code}
		if rec := l.seen[k]; rec != nil {
			rec.Count++
			return
		}
		target = othersName
	}
	rec := &record.Record{
		SchemaVersion: record.SchemaVersion, Time: l.now().UTC(), Team: l.team, Agent: l.agent,
		Kind: record.Egress, Verdict: v, Target: target, Count: 1, Reason: r,
	}
	l.seen[k] = rec
	_ = l.out.Encode(rec) // a full disk must not stop the agent's denials
	rec.Count = 0
}

// flush writes the repeats since the last flush and starts anew.
func (l *log) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, rec := range l.seen {
		if rec.Count == 0 { // quiet for a while: its next occurrence is a new line
			delete(l.seen, k)
			continue
		}
		rec.Time = l.now().UTC()
		_ = l.out.Encode(rec)
		rec.Count = 0
	}
}
