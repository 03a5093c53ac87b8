package server

import (
	"context"
	"errors"
	"fmt"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/deny"
	"bulkhead/internal/wire"
)

// operator does a request at the operator's socket.
func (s *session) operator(ctx context.Context, m wire.Message) error {
	switch m.Verb {
	case protocol.VerbPolicy:
		var p adapter.Policy
		if err := decode(m, &p); err != nil {
			return err
		}
		if err := s.store.SetPolicy(ctx, p); err != nil {
			return err
		}
		s.alerts.tell(p.Orchestrator)
		s.reply(m.ID, protocol.VerbOK, struct{}{})
		return nil
	case protocol.VerbQueues:
		l, err := s.store.Queues(ctx)
		if err == nil {
			s.reply(m.ID, protocol.VerbQueueList, protocol.Queues{Queues: l})
		}
		return err
	case protocol.VerbTail:
		return s.tail(ctx, m)
	case protocol.VerbOperatorThread:
		var q protocol.OperatorThread
		if err := decode(m, &q); err != nil {
			return err
		}
		return s.page(m.ID, func() (adapter.Page, error) {
			return gatherThread(q.ThreadRequest, func(t adapter.ThreadRequest) (adapter.Page, error) { return s.store.Thread(ctx, q.Agent, t) })
		})
	case protocol.VerbDead:
		return s.dead(ctx, m)
	case protocol.VerbDeadReplay:
		return s.count(ctx, m, s.store.ReplayDead)
	case protocol.VerbDeadDrop:
		return s.count(ctx, m, s.store.DropDead)
	case protocol.VerbOperatorSend:
		var d adapter.Draft
		if err := decode(m, &d); err != nil {
			return err
		}
		r := []adapter.SendResult{s.store.OperatorSend(ctx, d)}
		return s.c.Write(m.ID, protocol.VerbSent, func(b []byte) []byte { return protocol.AppendResults(b, r) })
	case protocol.VerbBackup:
		var q protocol.Backup
		if err := decode(m, &q); err != nil {
			return err
		}
		if err := s.store.Backup(ctx, q.Path); err != nil {
			return err
		}
		s.reply(m.ID, protocol.VerbOK, struct{}{})
		return nil
	case protocol.VerbMetrics:
		s.reply(m.ID, protocol.VerbText, protocol.Text{Text: s.metrics.text(ctx)})
		return nil
	case protocol.VerbRequests:
		var q protocol.RequestsQuery
		if err := decode(m, &q); err != nil {
			return err
		}
		l, err := s.store.Requests(ctx, q.All)
		if err == nil {
			s.reply(m.ID, protocol.VerbRequestList, protocol.Requests{Requests: l})
		}
		return err
	case protocol.VerbDecide:
		return s.decide(ctx, m)
	case protocol.VerbMembers:
		l, err := s.store.Members(ctx)
		if err == nil {
			s.reply(m.ID, protocol.VerbMemberList, protocol.Members{Channels: l})
		}
		return err
	}
	return invalid(fmt.Sprintf("%.40q", m.Verb), "there is no such request for operators")
}

// tail halves the limit until what was read fits into a frame: only the store
// knows positions between messages.
func (s *session) tail(ctx context.Context, m wire.Message) error {
	var q protocol.TailRequest
	if err := decode(m, &q); err != nil {
		return err
	}
	limit := min(q.Limit, 8*step)
	if limit == 0 {
		limit = defaultLimit
	}
	if q.Position < 0 { // the end is where it is now, also when it is asked for less below
		t, err := s.store.Tail(ctx, q.Position, limit, 0)
		if err != nil {
			return err
		}
		q.Position = t.Position
	}
	for ; ; limit = max(limit/2, 1) {
		t, err := s.store.Tail(ctx, q.Position, limit, q.Wait)
		if err != nil {
			return err
		}
		size := 0
		for i := range t.Messages {
			if q.Bare {
				t.Messages[i].Body = nil
			}
			size += len(t.Messages[i].Body) + envelope
		}
		if size > budget && len(t.Messages) > 1 {
			q.Wait = 0
			continue
		}
		return s.c.Write(m.ID, protocol.VerbTailed, func(b []byte) []byte { return protocol.AppendTail(b, &t) })
	}
}

// dead answers with as many dead letters as fit, at least one.
func (s *session) dead(ctx context.Context, m wire.Message) error {
	var q protocol.DeadRequest
	if err := decode(m, &q); err != nil {
		return err
	}
	want := q.Limit
	if want == 0 {
		want = defaultLimit
	}
	var all []adapter.DeadLetter
	more := false
	for size := 0; !more; {
		l, err := s.store.DeadLetters(ctx, q.Recipient, q.After, min(want-len(all), step))
		if err != nil {
			return err
		}
		for _, d := range l {
			if size += len(d.Body) + envelope; size > budget && len(all) > 0 {
				more = true
				break
			}
			all = append(all, d)
			q.After = d.ID
		}
		if len(l) < step || len(all) >= want {
			break
		}
	}
	return s.c.Write(m.ID, protocol.VerbDeadLetters, func(b []byte) []byte { return protocol.AppendDeadLetters(b, all, more) })
}

func (s *session) count(ctx context.Context, m wire.Message, do func(context.Context, string, []int64) (int, error)) error {
	var q protocol.DeadSet
	if err := decode(m, &q); err != nil {
		return err
	}
	n, err := do(ctx, q.Recipient, q.IDs)
	if err == nil {
		s.reply(m.ID, protocol.VerbCounted, protocol.Counted{Count: n})
		return nil
	}
	var r *deny.Reason
	if n > 0 && errors.As(err, &r) { // those stay as they are
		some := *r
		some.Why = fmt.Sprintf("%s; %d dead letters before it were done", r.Why, n)
		return &some
	}
	return err
}
