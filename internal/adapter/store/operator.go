package store

import (
	"cmp"
	"context"
	"database/sql/driver"
	"slices"
	"time"
)

// SetPolicy implements [Operator].
func (a *Adapter) SetPolicy(ctx context.Context, p Policy) error {
	if err := checkPolicy(&p); err != nil {
		return err
	}
	p = clonePolicy(&p)
	return a.do(ctx, &op{cost: 1, run: func(t *txn) {
		t.manifest = p
		a.follow(t)
		t.after = append(t.after, func() { a.manifest = p })
	}})
}

// Queues implements [Operator].
func (a *Adapter) Queues(ctx context.Context) ([]QueueState, error) {
	var out []QueueState
	err := a.do(ctx, &op{cost: 1, run: func(t *txn) { out = t.queueStates(t.wall) }})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (c *core) queueStates(wall time.Time) []QueueState {
	out := []QueueState{}
	known := map[string]bool{}
	for _, q := range c.queues {
		s := QueueState{Agent: q.name, Queued: len(q.entries), Leased: q.leased, Retry: q.retrying, Dead: q.dead, Bytes: q.bytes, Senders: map[string]int{}}
		for id, share := range q.senders {
			s.Senders[c.names[id]] = share.count
		}
		for _, l := range q.channels {
			if len(l.entries) > 0 {
				s.Oldest = max(s.Oldest, wall.Sub(time.Unix(0, l.entries[0].time)))
			}
		}
		known[q.name] = true
		out = append(out, s)
	}
	for name := range c.policy.Agents {
		if !known[name] {
			out = append(out, QueueState{Agent: name, Senders: map[string]int{}})
		}
	}
	slices.SortFunc(out, func(a, b QueueState) int { return cmp.Compare(a.Agent, b.Agent) })
	return out
}

// Tail implements [Operator].
func (a *Adapter) Tail(ctx context.Context, position int64, limit int, wait time.Duration) (Tail, error) {
	if r := checkPage("an operator", &limit, nil); r != nil {
		return Tail{}, r
	}
	out := Tail{Messages: []Message{}, Position: position}
	deadline := time.NewTimer(min(max(wait, 0), maxWait))
	defer deadline.Stop()
	for {
		news := make(chan struct{})
		if err := a.do(ctx, &op{cost: 1, run: func(t *txn) {
			if position < 0 {
				out.Position = t.lastID.message
			}
			if wait > 0 {
				t.tails = append(t.tails, news)
			}
		}}); err != nil {
			return Tail{}, err
		}
		position = out.Position
		bytes := 0
		err := a.read(ctx, "", func(c *conn) error {
			return c.query(selectMessage+"WHERE m.id > ? ORDER BY m.id LIMIT ?", func(row []driver.Value) error {
				id, m := scanMessage(row)
				if bytes += len(m.Body); bytes <= maxPageBytes || len(out.Messages) == 0 {
					out.Messages, out.Position = append(out.Messages, m), id
				}
				return nil
			}, position, limit)
		})
		if wait <= 0 {
			return out, err
		}
		if err != nil || len(out.Messages) > 0 {
			a.untail(news)
			return out, err
		}
		select {
		case <-news:
		case <-deadline.C:
			a.untail(news)
			return out, nil
		case <-ctx.Done():
			a.untail(news)
			return Tail{}, ctx.Err()
		case <-a.closed:
			return Tail{}, unavailable("the adapter is stopping")
		}
	}
}

// untail has nobody wake one that left.
func (a *Adapter) untail(news chan struct{}) {
	_ = a.do(context.Background(), &op{cost: 1, run: func(t *txn) {
		t.tails = slices.DeleteFunc(t.tails, func(c chan struct{}) bool { return c == news })
	}})
}

// news wakes those that follow the tail.
func (c *core) news() {
	for _, ch := range c.tails {
		close(ch)
	}
	c.tails = nil
}
