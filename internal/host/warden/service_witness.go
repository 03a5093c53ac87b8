package warden

import (
	"context"
	"fmt"
	"path/filepath"

	auditproto "bulkhead/internal/audit/protocol"
	"bulkhead/internal/layout"
	"bulkhead/internal/record"
)

// maxHeads is how many heads of the audit log root keeps. Beyond, every second
// of the older ones goes: any one of them covers all lines before it.
const maxHeads = 512

// auditHeads is the file of heads, root's alone. It lies beside audit's data and
// goes with them.
type auditHeads struct {
	Version int               `json:"version"`
	Heads   []auditproto.Head `json:"heads"`
}

func (s *service) headsPath() string { return filepath.Join(s.place.State, "witness.json") }

// witnesses are the heads that root took note of, by lines. Without them a log
// that was cut could not be told from a whole one, so a file that does not read
// is not passed over.
func (s *service) witnesses() ([]auditproto.Head, error) {
	on := auditHeads{}
	if _, err := readJSON(s.headsPath(), &on); err != nil {
		return nil, fmt.Errorf("%w; look at who changed it, then remove it: what it said is lost", err)
	}
	return on.Heads, nil
}

// witness takes note of how long the audit log is and of its root, which whoever
// has audit's account cannot change.
func (w *Warden) witness(ctx context.Context) {
	s := w.service(layout.AuditName)
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, serviceAsk)
	defer cancel()
	var head auditproto.Head
	if err := s.ask(ctx, auditproto.VerbHead, struct{}{}, &head); err != nil {
		return // status says that it does not run
	}
	w.noting.Lock()
	defer w.noting.Unlock()
	heads, err := s.witnesses()
	if err == nil && len(heads) > 0 {
		last := heads[len(heads)-1]
		if head == last {
			return
		}
		if head.Lines <= last.Lines {
			err = fmt.Errorf("audit says %d lines with root %s; it had %d with root %s", head.Lines, head.Root, last.Lines, last.Root)
		}
	}
	if err == nil {
		err = writeJSON(s.headsPath(), auditHeads{Version: stateVersion, Heads: thinned(append(heads, head))})
	}
	if err != nil && ctx.Err() == nil {
		w.log.Error("the audit log is not what root witnessed, or cannot be witnessed", "error", err)
		w.events.emit(record.Record{Agent: layout.AuditName, Kind: record.Life, Verdict: record.Failed, Target: "witness", Detail: err.Error()})
	}
}

// thinned keeps the newer half, and every second of the older one.
func thinned(heads []auditproto.Head) []auditproto.Head {
	if len(heads) <= maxHeads {
		return heads
	}
	half := len(heads) / 2
	out := make([]auditproto.Head, 0, len(heads))
	for i := 1; i < half; i += 2 {
		out = append(out, heads[i])
	}
	return append(out, heads[half:]...)
}
