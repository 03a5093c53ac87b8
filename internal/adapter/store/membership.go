package store

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/deny"
)

// place is an agent's in a channel.
type place struct{ channel, agent string }

// amendment is an approved change of a membership. It lies over the manifest until
// the manifest itself gives the channel other members, which then wins.
type amendment struct {
	place
	id      int64
	joins   bool
	from    uint64 // with joins: the first sequence that the agent may read
	request int64
	at      int64  // ms
	base    string // see baseOf
}

// baseOf is the members of a channel as one text: names hold no space.
func baseOf(members []string) string {
	return strings.Join(slices.Sorted(slices.Values(members)), " ")
}

// holds says whether the change is still in force beside a manifest.
func (c *amendment) holds(manifest *Policy) bool {
	members, there := manifest.Channels[c.channel]
	_, known := manifest.Agents[c.agent]
	return there && known && c.base == baseOf(members)
}

// first is the first sequence that the agent may read; 0: any. nil has none.
func (c *amendment) first() uint64 {
	if c == nil || !c.joins {
		return 0
	}
	return c.from
}

// explain names the approved request when that, and not the manifest, is why an
// agent was refused.
func (c *amendment) explain(r *deny.Reason) *deny.Reason {
	if c != nil && !c.joins && r.Code == deny.MessageNotAllowed {
		r.Why = fmt.Sprintf("%s left the channel %s: an operator approved request %d", c.agent, c.channel, c.request)
		r.Mend = "have the orchestrator ask that it joins again (msg_channel_request), or change the members of the channel in the manifest"
	}
	return r
}

// firstOf is 0 when an agent may read all that it may read.
func (c *core) firstOf(agent, channel string) uint64 {
	if n := c.changes[place{channel, agent}].first(); n > 1 {
		return n
	}
	return 0
}

func (c *core) loadMembership() error {
	if err := c.db.query("SELECT id, channel, agent, change, first, request, at, base FROM membership", func(row []driver.Value) error {
		m := &amendment{
			place: place{text(row[1]), text(row[2])}, id: integer(row[0]), joins: Change(text(row[3])) == Join, from: sequence(row[4]),
			request: integer(row[5]), at: integer(row[6]), base: text(row[7]),
		}
		c.changes[m.place] = m
		c.lastID.change = max(c.lastID.change, m.id)
		return nil
	}); err != nil {
		return err
	}
	if err := c.db.query(selectRequests+"WHERE state = ?", func(row []driver.Value) error {
		r := scanRequest(row)
		c.requests[r.ID] = &r
		return nil
	}, string(RequestOpen)); err != nil {
		return err
	}
	var err error
	c.lastID.request, err = c.db.integer("SELECT seq FROM sqlite_sequence WHERE name = 'request'")
	c.overlay()
	return err
}

// overlay makes the policy of the manifest and of what was approved.
func (c *core) overlay() {
	p := clonePolicy(&c.manifest)
	for _, m := range c.changes {
		if !m.holds(&c.manifest) {
			continue
		}
		members := p.Channels[m.channel]
		switch i := slices.Index(members, m.agent); {
		case m.joins && i < 0:
			p.Channels[m.channel] = append(members, m.agent)
		case !m.joins && i >= 0:
			p.Channels[m.channel] = slices.Delete(members, i, i+1)
		}
	}
	c.policy = p
	clear(c.ways)
}

// inForce gives readers what the writer goes by. The caller has the turn, and
// what it gives is on disk.
func (a *Adapter) inForce() {
	r := &rules{Policy: a.core.policy, changes: map[place]*amendment{}}
	for at, m := range a.core.changes {
		if m.holds(&a.core.manifest) {
			r.changes[at] = m
		}
	}
	a.policy.Store(r)
}

// follow brings what was approved and what is asked for in line with the
// manifest, and puts both in force.
func (a *Adapter) follow(t *txn) {
	for at, m := range t.changes {
		if m.holds(&t.manifest) {
			continue
		}
		t.exec("DELETE FROM membership WHERE id = ?", m.id)
		delete(t.changes, at)
		t.log.Warn("the manifest changed who is in a channel: an approved change beside it is dropped",
			"channel", at.channel, "agent", at.agent, "change", string(m.change()), "request", m.request)
	}
	t.overlay()
	t.abandon()
	for _, id := range slices.Sorted(maps.Keys(t.requests)) {
		r := t.requests[id]
		why := ""
		switch {
		case r.By != t.policy.Orchestrator:
			why = r.By + " is the orchestrator no more"
		default:
			for _, f := range t.unfit(&r.ChannelRequest) {
				why = f.Why
			}
		}
		if why != "" {
			t.close(r, RequestOvertaken, "the manifest changed: "+why)
		}
	}
	t.after = append(t.after, a.inForce)
}

// abandon gives up what waits for agents that the manifest has no more: nobody else
// would end it, and it would count for its senders' quotas for ever.
func (t *txn) abandon() {
	for _, id := range slices.Sorted(maps.Keys(t.queues)) {
		q := t.queues[id]
		if _, ok := t.policy.Agents[q.name]; ok {
			continue
		}
		for _, message := range slices.Sorted(maps.Keys(q.entries)) {
			t.give(q.entries[message], true, fmt.Sprintf("%s is in the manifest no more", q.name))
		}
	}
}

func (c *amendment) change() Change {
	if c.joins {
		return Join
	}
	return Leave
}

// amend puts an approved request in force, in this transaction.
func (t *txn) amend(r *MembershipRequest) (first uint64) {
	at := place{r.Channel, r.Agent}
	t.exec("DELETE FROM membership WHERE channel = ? AND agent = ?", r.Channel, r.Agent)
	delete(t.changes, at)
	base := t.manifest.Channels[r.Channel]
	// Who leaves what the manifest never gave it is what the manifest says again.
	// Who joins again is kept from what was sent while it was away.
	if joins := r.Change == Join; joins || slices.Contains(base, r.Agent) {
		t.lastID.change++
		m := &amendment{place: at, id: t.lastID.change, joins: joins, request: r.ID, at: t.ms(), base: baseOf(base)}
		if joins {
			m.from = 1
			if ch := t.channels[r.Channel]; ch != nil {
				m.from = ch.last + 1
			}
		}
		first = m.from
		t.changes[at] = m
		t.exec("INSERT INTO membership (id, channel, agent, change, first, request, at, base) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
			m.id, at.channel, at.agent, string(m.change()), number(m.from), m.request, m.at, m.base)
	}
	t.overlay()
	return first
}

// Members implements [Operator].
func (a *Adapter) Members(ctx context.Context) ([]ChannelMembers, error) {
	out := []ChannelMembers{}
	err := a.do(ctx, &op{cost: 1, run: func(t *txn) {
		for _, name := range slices.Sorted(maps.Keys(t.policy.Channels)) {
			c := ChannelMembers{Channel: name, Members: slices.Sorted(slices.Values(t.policy.Channels[name])), Changes: []MembershipChange{}}
			if c.Members == nil {
				c.Members = []string{}
			}
			if ch := t.channels[name]; ch != nil {
				c.Last = ch.last
			}
			for at, m := range t.changes {
				if at.channel == name {
					c.Changes = append(c.Changes, MembershipChange{Agent: at.agent, Change: m.change(), Request: m.request, At: time.UnixMilli(m.at).UTC(), From: m.from})
				}
			}
			slices.SortFunc(c.Changes, func(x, y MembershipChange) int { return strings.Compare(x.Agent, y.Agent) })
			out = append(out, c)
		}
	}})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// decided tells who asked what became of a request and, when its membership
// changed, the agent concerned: without the words of either, which might be
// from one who may not write to it.
func (t *txn) decided(r *MembershipRequest, first uint64) {
	d := ChannelDecision{Request: r.ID, Channel: r.Channel, Agent: r.Agent, Change: r.Change, Decision: r.State, From: first}
	if r.State == RequestApproved && r.Agent != r.By {
		t.tellDecision(r.Agent, d)
	}
	d.Why = r.Why
	t.tellDecision(r.By, d)
}

func (t *txn) tellDecision(to string, d ChannelDecision) {
	body, err := json.Marshal(d)
	if err != nil { // plain text and numbers
		t.fail(err)
		return
	}
	t.notice(to, ChannelDecided, body)
}
