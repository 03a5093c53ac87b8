package server

import (
	"context"
	"errors"
	"fmt"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

// requestTarget is what records of requests for another membership name.
const requestTarget = "channel request"

// request takes an agent's request for another membership. Each new one is on
// record, and so is who was refused one; what repeats is folded.
func (s *session) request(ctx context.Context, m wire.Message) error {
	var q adapter.ChannelRequest
	err := decode(m, &q)
	var r adapter.MembershipRequest
	if err == nil {
		r, err = s.store.RequestMembership(ctx, s.agent, q)
	}
	var refused *deny.Reason
	switch {
	case errors.As(err, &refused) && refused.Code != deny.MessageUnavailable:
		s.log.Add(s.agent, record.Message, requestTarget, record.Denied, refused)
	case err == nil && !r.Duplicate:
		s.log.Write(record.Record{Agent: s.agent, Kind: record.Message, Verdict: record.Allowed, Target: requestTarget, Count: 1, Detail: inWords(&r) + "; an operator decides"})
	}
	if err == nil {
		s.reply(m.ID, protocol.VerbRequested, r)
	}
	return err
}

// inWords is a request without its reason: names that were checked and numbers.
func inWords(r *adapter.MembershipRequest) string {
	return fmt.Sprintf("request %d: %s %ss %s", r.ID, r.Agent, r.Change, r.Channel)
}

// decide does an operator's decision.
func (s *session) decide(ctx context.Context, m wire.Message) error {
	var q protocol.Decision
	if err := decode(m, &q); err != nil {
		return err
	}
	r, err := s.store.Decide(ctx, q.ID, q.Approve, q.Reason)
	if err != nil {
		return err
	}
	if !r.Duplicate {
		s.log.Write(record.Record{
			Agent: r.By, Kind: record.Message, Verdict: record.Allowed, Target: requestTarget, Count: 1, Detail: inWords(&r) + ", " + string(r.State) + " by an operator",
		})
	}
	s.reply(m.ID, protocol.VerbRequested, r)
	return nil
}
