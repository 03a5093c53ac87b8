package store

import (
	"log/slog"
	"time"
)

// core is everything that belongs to who has the turn to write, and nobody else
// reads: what is in the database and is needed for every operation.
type core struct {
	db       *conn
	log      *slog.Logger
	manifest Policy                       // as it was set
	policy   Policy                       // the same with what was approved beside it
	changes  map[place]*amendment         // what was approved
	requests map[int64]*MembershipRequest // that wait for an operator
	ways     map[ends]*way                // that the policy allows, by who uses them
	agents   map[string]int64
	names    map[int64]string
	channels map[string]*channel
	seen     *seen
	lastID   struct{ agent, channel, message, dead, late, waiter, request, change int64 }
	queues   map[int64]*queue
	usage    map[int64]*held // by sender
	due      deadlines
	untold   map[int64]*untold // by sender
	waiters  map[int64][]*waiter
	tails    []chan struct{} // closed with the next message
	cached   int64           // bytes of bodies in memory
	counts   Counts

	// Of the transaction at work; kept because maps are dear to grow.
	touched map[*channel]bool
	keys    map[senderKey]*record
	args    []any
	fresh   []*entry // of dirty, those that have no row and are as they were made
	changed []*entry // and the others
}

func newCore(db *conn, log *slog.Logger, p Policy) *core {
	return &core{
		db: db, log: log, manifest: p, policy: p,
		changes: map[place]*amendment{}, requests: map[int64]*MembershipRequest{},
		seen: newSeen(), agents: map[string]int64{}, names: map[int64]string{}, channels: map[string]*channel{}, queues: map[int64]*queue{},
		usage: map[int64]*held{}, untold: map[int64]*untold{}, waiters: map[int64][]*waiter{},
		ways:    map[ends]*way{},
		touched: map[*channel]bool{}, keys: map[senderKey]*record{},
	}
}

// agent gives the number of a name, a new one when it has none.
func (t *txn) agent(name string) int64 {
	if id, ok := t.agents[name]; ok {
		return id
	}
	t.lastID.agent++
	id := t.lastID.agent
	t.exec("INSERT INTO agent (id, name) VALUES (?, ?)", id, name)
	t.agents[name], t.names[id] = id, name
	return id
}

// channel gives a channel, a new one when there is none of that name.
func (t *txn) channel(name string) *channel {
	if ch, ok := t.channels[name]; ok {
		return ch
	}
	t.lastID.channel++
	ch := &channel{id: t.lastID.channel, name: name, piece: -1}
	t.channels[name] = ch
	t.touched[ch] = true
	return ch
}

// queue gives the queue of a recipient.
func (t *txn) queue(name string) *queue { return t.queueOf(t.agent(name)) }

func (c *core) queueOf(id int64) *queue {
	q := c.queues[id]
	if q == nil {
		q = newQueue(id, c.names[id])
		c.queues[id] = q
	}
	return q
}

// quota is what a sender may have in queues and dead letters; 0: no bound.
func (c *core) quota(sender string) int64 {
	if sender == System || sender == OperatorName || sender == AlertName {
		return 0
	}
	if n := c.policy.Agents[sender].MaxBytes; n > 0 {
		return n
	}
	return DefaultBytes
}

// backoff is how long a delivery waits after its attempt-th failure: 1 s, 2 s, 4 s.
func backoff(attempt int) time.Duration {
	return time.Second << max(0, min(attempt-1, 16))
}
