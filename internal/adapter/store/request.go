package store

import (
	"cmp"
	"context"
	"database/sql/driver"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/allowed"
	"bulkhead/internal/deny"
)

// retryRequest is when an orchestrator whose requests all wait may look again: a
// person has to decide first.
const retryRequest = 60 // seconds

const selectRequests = "SELECT id, by, channel, agent, change, reason, at, expires, state, decided, why FROM request "

func scanRequest(row []driver.Value) MembershipRequest {
	r := MembershipRequest{
		ID: integer(row[0]), By: text(row[1]),
		ChannelRequest: ChannelRequest{Channel: text(row[2]), Agent: text(row[3]), Change: Change(text(row[4])), Reason: text(row[5])},
		At:             time.UnixMilli(integer(row[6])).UTC(), Expires: time.UnixMilli(integer(row[7])).UTC(),
		State: adapter.RequestState(text(row[8])), Why: text(row[10]),
	}
	if ms := integer(row[9]); ms > 0 {
		r.Decided = time.UnixMilli(ms).UTC()
	}
	return r
}

// checkRequest looks at the form of a request.
func checkRequest(by string, q *ChannelRequest) *deny.Reason {
	var bad []deny.Field
	fail := func(name, why string) { bad = append(bad, deny.Field{Name: name, Why: why}) }
	if !channelForm().MatchString(q.Channel) {
		fail("channel", "not the name of a channel")
	}
	if q.Agent == "" || len(q.Agent) > 64 || strings.ContainsAny(q.Agent, "@+ \x00") {
		fail("agent", "not the name of an agent")
	}
	if q.Change != Join && q.Change != Leave {
		fail("change", "must be join or leave")
	}
	if strings.TrimSpace(q.Reason) == "" || len(q.Reason) > adapter.MaxReason || !utf8.ValidString(q.Reason) {
		fail("reason", fmt.Sprintf("say in 1 to %d bytes of UTF-8 why; an operator reads it", adapter.MaxReason))
	}
	if bad != nil {
		return invalid("a request by "+by, bad)
	}
	return nil
}

// RequestMembership implements [Service]. Who may ask is looked at first: the
// others learn nothing of channels and agents by it.
func (a *Adapter) RequestMembership(ctx context.Context, agent string, q ChannelRequest) (MembershipRequest, error) {
	var out MembershipRequest
	var refused *deny.Reason
	err := a.do(ctx, &op{agent: agent, cost: 1, run: func(t *txn) { out, refused = t.request(agent, &q) }})
	switch {
	case err != nil:
		return MembershipRequest{}, err
	case refused != nil:
		return MembershipRequest{}, refused
	}
	return out, nil
}

func (t *txn) request(by string, q *ChannelRequest) (MembershipRequest, *deny.Reason) {
	const what = "a request for another membership of a channel"
	switch head := t.policy.Orchestrator; {
	case head == "":
		return MembershipRequest{}, allowed.Not(what+" by "+by, "the manifest names no orchestrator, and only that one may ask", "name one in the manifest (orchestrator: AGENT), or change agents.AGENT.channels there")
	case head != by:
		return MembershipRequest{}, allowed.Not(what+" by "+by, fmt.Sprintf("only the orchestrator, %s, may ask for it", head), "have "+head+" ask, or change agents.AGENT.channels in the manifest")
	}
	if r := checkRequest(by, q); r != nil {
		return MembershipRequest{}, r
	}
	for _, r := range t.requests {
		if r.Channel == q.Channel && r.Agent == q.Agent && r.Change == q.Change {
			again := *r
			again.Duplicate = true
			return again, nil
		}
	}
	if bad := t.unfit(q); bad != nil {
		return MembershipRequest{}, invalid("a request by "+by, bad)
	}
	if len(t.requests) >= adapter.MaxRequests {
		return MembershipRequest{}, &deny.Reason{
			Layer: deny.LayerMessages, Code: deny.MessageQuota, What: what + " by " + by, RetryAfter: retryRequest,
			Why:  fmt.Sprintf("%d requests wait for an operator already", len(t.requests)),
			Mend: "wait until an operator has decided some: `bulkhead msg requests` on the host",
		}
	}
	t.lastID.request++
	r := &MembershipRequest{
		ID: t.lastID.request, By: by, ChannelRequest: *q, State: RequestOpen,
		At: t.wall.UTC().Truncate(time.Millisecond), Expires: t.wall.UTC().Truncate(time.Millisecond).Add(adapter.RequestLife),
	}
	t.requests[r.ID] = r
	t.exec("INSERT INTO request (id, by, channel, agent, change, reason, at, expires, state, decided, why) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, '')",
		r.ID, by, q.Channel, q.Agent, string(q.Change), q.Reason, r.At.UnixMilli(), r.Expires.UnixMilli(), string(RequestOpen))
	t.exec("DELETE FROM request WHERE id <= ? AND state <> ?", r.ID-adapter.KeptDecisions-adapter.MaxRequests, string(RequestOpen))
	return *r, nil
}

// unfit says why a request means nothing as things are.
func (t *txn) unfit(q *ChannelRequest) []deny.Field {
	if _, ok := t.policy.Channels[q.Channel]; !ok {
		return []deny.Field{{Name: "channel", Why: "the manifest has no channel " + q.Channel}}
	}
	if _, ok := t.policy.Agents[q.Agent]; !ok {
		return []deny.Field{{Name: "agent", Why: "the manifest has no agent " + q.Agent}}
	}
	switch member := allowed.Member(&t.policy, q.Agent, q.Channel); {
	case member && q.Change == Join:
		return []deny.Field{{Name: "change", Why: fmt.Sprintf("%s is a member of %s already", q.Agent, q.Channel)}}
	case !member && q.Change == Leave:
		return []deny.Field{{Name: "change", Why: fmt.Sprintf("%s is no member of %s", q.Agent, q.Channel)}}
	}
	return nil
}

// Decide implements [Operator].
func (a *Adapter) Decide(ctx context.Context, id int64, approve bool, why string) (MembershipRequest, error) {
	if len(why) > adapter.MaxReason || !utf8.ValidString(why) {
		return MembershipRequest{}, invalid("a decision", []deny.Field{{Name: "reason", Why: fmt.Sprintf("at most %d bytes of UTF-8", adapter.MaxReason)}})
	}
	state := RequestRefused
	if approve {
		state = RequestApproved
	}
	var out MembershipRequest
	var refused *deny.Reason
	err := a.do(ctx, &op{cost: 1, run: func(t *txn) {
		if r := t.requests[id]; r != nil {
			t.close(r, state, why)
			t.after = append(t.after, a.inForce)
			out = *r
			return
		}
		out, refused = t.over(id, state)
	}})
	switch {
	case err != nil:
		return MembershipRequest{}, err
	case refused != nil:
		return MembershipRequest{}, refused
	}
	return out, nil
}

// over is the answer about a request that waits no more.
func (t *txn) over(id int64, state adapter.RequestState) (out MembershipRequest, refused *deny.Reason) {
	t.fail(t.db.query(selectRequests+"WHERE id = ?", func(row []driver.Value) error { out = scanRequest(row); return nil }, id))
	switch {
	case out.ID == 0:
		return out, invalid("a decision", []deny.Field{{Name: "id", Why: fmt.Sprintf("there is no request %d; `bulkhead msg requests` shows those that wait", id)}})
	case out.State != state:
		return out, invalid("a decision", []deny.Field{{Name: "id", Why: fmt.Sprintf("request %d is %s already; the orchestrator may ask anew", id, out.State)}})
	}
	out.Duplicate = true
	return out, nil
}

// close ends a request, does what it asks for when it was approved, and tells
// of it: all in this transaction.
func (t *txn) close(r *MembershipRequest, state adapter.RequestState, why string) {
	delete(t.requests, r.ID)
	r.State, r.Why, r.Decided = state, why, t.wall.UTC().Truncate(time.Millisecond)
	t.exec("UPDATE request SET state = ?, decided = ?, why = ? WHERE id = ?", string(state), r.Decided.UnixMilli(), why, r.ID)
	first := uint64(0)
	if state == RequestApproved {
		first = t.amend(r)
	}
	t.log.Info("request for another membership is over", "request", r.ID, "by", r.By, "channel", r.Channel, "agent", r.Agent, "change", string(r.Change), "state", string(state))
	t.decided(r, first)
}

// expireRequests closes those that nobody decided in time.
func (t *txn) expireRequests() {
	var over []*MembershipRequest
	for _, r := range t.requests {
		if !t.wall.Before(r.Expires) {
			over = append(over, r)
		}
	}
	slices.SortFunc(over, func(x, y *MembershipRequest) int { return cmp.Compare(x.ID, y.ID) })
	for _, r := range over {
		t.close(r, RequestExpired, "no operator decided in time")
	}
}

// Requests implements [Operator].
func (a *Adapter) Requests(ctx context.Context, all bool) ([]MembershipRequest, error) {
	out := []MembershipRequest{}
	// What time has closed is closed by the writer first.
	if err := a.do(ctx, &op{cost: 1, run: func(*txn) {}}); err != nil {
		return nil, err
	}
	err := a.read(ctx, "", func(c *conn) error {
		return c.query(selectRequests+"WHERE state = ? OR ? ORDER BY id", func(row []driver.Value) error {
			out = append(out, scanRequest(row))
			return nil
		}, string(RequestOpen), all)
	})
	return out, err
}
