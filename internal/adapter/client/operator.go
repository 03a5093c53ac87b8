package client

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/protocol"
)

// Operator is an adapter.Operator at the operator's socket, which only root
// reaches.
type Operator struct{ *conn }

var _ adapter.Operator = (*Operator)(nil)

// DialOperator connects to the operator's socket. An adapter answers as soon
// as its store is open and checked.
func DialOperator(ctx context.Context, socket string) (*Operator, error) {
	c, err := dial(ctx, socket, "")
	if err != nil {
		return nil, err
	}
	return &Operator{c}, nil
}

// SetPolicy replaces the policy.
func (o *Operator) SetPolicy(ctx context.Context, p adapter.Policy) error {
	return o.ask(ctx, protocol.VerbPolicy, protocol.Body(p), protocol.VerbOK, nil)
}

// Queues lists all queues.
func (o *Operator) Queues(ctx context.Context) ([]adapter.QueueState, error) {
	var l protocol.Queues
	err := o.ask(ctx, protocol.VerbQueues, protocol.Body(struct{}{}), protocol.VerbQueueList, &l)
	return l.Queues, err
}

// Tail reads messages of the whole team.
func (o *Operator) Tail(ctx context.Context, position int64, limit int, wait time.Duration) (adapter.Tail, error) {
	var t adapter.Tail
	q := protocol.TailRequest{Position: position, Limit: limit, Wait: wait}
	err := o.ask(ctx, protocol.VerbTail, protocol.Body(q), protocol.VerbTailed, &t)
	return t, err
}

// Thread reads a thread as an agent may, or any with agent "".
func (o *Operator) Thread(ctx context.Context, agent string, q adapter.ThreadRequest) (adapter.Page, error) {
	var p adapter.Page
	b := protocol.OperatorThread{Agent: agent, ThreadRequest: q}
	err := o.ask(ctx, protocol.VerbOperatorThread, protocol.Body(b), protocol.VerbPage, &p)
	return p, err
}

// DeadLetters lists dead letters after one. What does not fit into one answer
// is left to the next call.
func (o *Operator) DeadLetters(ctx context.Context, recipient string, after int64, limit int) ([]adapter.DeadLetter, error) {
	var l protocol.DeadLetters
	q := protocol.DeadRequest{Recipient: recipient, After: after, Limit: limit}
	err := o.ask(ctx, protocol.VerbDead, protocol.Body(q), protocol.VerbDeadLetters, &l)
	return l.DeadLetters, err
}

// ReplayDead queues dead letters anew.
func (o *Operator) ReplayDead(ctx context.Context, recipient string, ids []int64) (int, error) {
	return o.count(ctx, protocol.VerbDeadReplay, recipient, ids)
}

// DropDead forgets dead letters.
func (o *Operator) DropDead(ctx context.Context, recipient string, ids []int64) (int, error) {
	return o.count(ctx, protocol.VerbDeadDrop, recipient, ids)
}

func (o *Operator) count(ctx context.Context, verb, recipient string, ids []int64) (int, error) {
	var n protocol.Counted
	err := o.ask(ctx, verb, protocol.Body(protocol.DeadSet{Recipient: recipient, IDs: ids}), protocol.VerbCounted, &n)
	return n.Count, err
}

// OperatorSend sends as the operator.
func (o *Operator) OperatorSend(ctx context.Context, d adapter.Draft) adapter.SendResult {
	if !json.Valid(d.Body) {
		return adapter.SendResult{Err: errors.New("adapter: the body is not JSON")}
	}
	var s protocol.Sent
	err := o.ask(ctx, protocol.VerbOperatorSend, func(b []byte) []byte { return protocol.AppendDraft(b, &d) }, protocol.VerbSent, &s)
	if err == nil && len(s.Results) != 1 {
		err = errors.New("adapter: not one result for one draft")
	}
	if err != nil {
		return adapter.SendResult{Err: err}
	}
	r := s.Results[0].SendResult
	r.Err = s.Results[0].Refused.Err()
	return r
}

// Backup writes a copy of the store to path, as the adapter sees it.
func (o *Operator) Backup(ctx context.Context, path string) error {
	return o.ask(ctx, protocol.VerbBackup, protocol.Body(protocol.Backup{Path: path}), protocol.VerbOK, nil)
}

// Metrics gives the adapter's metrics in the Prometheus text format.
func (o *Operator) Metrics(ctx context.Context) (string, error) {
	var t protocol.Text
	err := o.ask(ctx, protocol.VerbMetrics, protocol.Body(struct{}{}), protocol.VerbText, &t)
	return t.Text, err
}

// Requests lists requests for another membership.
func (o *Operator) Requests(ctx context.Context, all bool) ([]adapter.MembershipRequest, error) {
	var l protocol.Requests
	err := o.ask(ctx, protocol.VerbRequests, protocol.Body(protocol.RequestsQuery{All: all}), protocol.VerbRequestList, &l)
	return l.Requests, err
}

// Decide approves or refuses one.
func (o *Operator) Decide(ctx context.Context, id int64, approve bool, why string) (adapter.MembershipRequest, error) {
	var r adapter.MembershipRequest
	err := o.ask(ctx, protocol.VerbDecide, protocol.Body(protocol.Decision{ID: id, Approve: approve, Reason: why}), protocol.VerbRequested, &r)
	return r, err
}

// Members lists the channels of the manifest with who is in them.
func (o *Operator) Members(ctx context.Context) ([]adapter.ChannelMembers, error) {
	var l protocol.Members
	err := o.ask(ctx, protocol.VerbMembers, protocol.Body(struct{}{}), protocol.VerbMemberList, &l)
	return l.Channels, err
}
