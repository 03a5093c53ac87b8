package messages

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/client"
	"bulkhead/internal/deny"
	"bulkhead/internal/gateway/outbox"
	"bulkhead/internal/record"
)

// Times of the way to the adapter.
const (
	answerTimeout = 10 * time.Second // for a send; then the adapter counts as away
	drainPatience = 2 * time.Second  // that a draft waits for the outbox before it joins it
	retryAfter    = 2                // seconds, when neither adapter nor outbox takes it
)

// Config is what a gateway tells.
type Config struct {
	Agent         string
	Socket, Token string // of the adapter
	Data          string // folder of the outbox
	Log           *record.Log
}

// Messages is an agent's way to the adapter.
type Messages struct {
	cfg   Config
	link  *link
	box   *outbox.Box
	batch batcher
	drain drainer
	watch streams
	bytes budget
	asked flights
	seen  *seen
	lost  atomic.Uint64 // messages that neither adapter nor outbox took
	gaps  atomic.Uint64 // that cannot be filled
	stop  context.CancelFunc
	work  sync.WaitGroup
}

// Open opens the outbox and begins to reach the adapter.
func Open(cfg Config) (*Messages, error) {
	box, err := outbox.Open(cfg.Data)
	if err != nil {
		return nil, err
	}
	m := &Messages{cfg: cfg, box: box, bytes: newBudget()}
	if m.seen, err = openSeen(cfg.Data); err != nil {
		cfg.Log.Add(cfg.Agent, record.Message, "seen", record.Failed, unavailable("read what was seen of channels", err.Error()+"; it is begun anew"))
	}
	if err := box.Damaged(); err != nil {
		cfg.Log.Write(record.Record{Agent: cfg.Agent, Kind: record.Message, Verdict: record.Failed, Target: record.Outbox, Count: 1, Detail: err.Error()})
	}
	m.link = newLink(cfg.Socket, cfg.Token, func(err error) {
		cfg.Log.Add(cfg.Agent, record.Message, "adapter", record.Failed, unavailable("reach the team's adapter", err.Error()))
	})
	m.drain.init()
	m.watch.init()
	m.asked.trip = m.trip
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	m.work.Go(func() { m.link.run(ctx) })
	m.work.Go(func() { m.runDrain(ctx) })
	m.work.Go(func() { m.runSeen(ctx) })
	return m, nil
}

// Close ends it. Requests that wait are answered with 503.
func (m *Messages) Close() error {
	m.stop()
	m.work.Wait()
	m.batch.close()
	return m.box.Close()
}

func unavailable(what, why string) *deny.Reason {
	return &deny.Reason{
		Layer: deny.LayerMessages, Code: deny.MessageUnavailable, What: what, Why: why, RetryAfter: retryAfter,
		Mend: "send it again with the same idempotency_key; when it stays, run `bulkhead status` on the host",
	}
}

// outcome is what came of one draft.
type outcome struct {
	adapter.SendResult
	queued bool // it is in the outbox
}

// send brings one draft to the adapter or into the outbox.
func (m *Messages) send(ctx context.Context, d adapter.Draft) outcome {
	if direct, err := m.way(ctx, &d); err != nil {
		return outcome{SendResult: adapter.SendResult{Err: err}}
	} else if direct {
		r := m.sendSingle(d)
		if !client.Away(r.Err) {
			return outcome{SendResult: r}
		}
	}
	return m.keep(d)
}

// sendAll brings many there, in order: what follows one that goes into the outbox goes
// there, too. The agent waits for all of them.
func (m *Messages) sendAll(ctx context.Context, drafts []adapter.Draft) []outcome {
	out := make([]outcome, len(drafts))
	var at []int // drafts that may go to the adapter right away
	keeping := false
	ask := func() {
		direct := make([]adapter.Draft, len(at))
		for j, i := range at {
			direct[j] = drafts[i]
		}
		for j, r := range m.ask(ctx, direct, false) {
			if i := at[j]; client.Away(r.Err) {
				keeping = true
				out[i] = m.keep(drafts[i])
			} else {
				out[i].SendResult = r
			}
		}
		at = at[:0]
	}
	for i := range drafts {
		ok := false
		if !keeping {
			var err error
			if ok, err = m.way(ctx, &drafts[i]); err != nil {
				out[i].Err = err
				continue
			}
		}
		if ok {
			at = append(at, i)
			continue
		}
		if len(at) > 0 {
			ask()
		}
		keeping = true
		out[i] = m.keep(drafts[i])
	}
	if len(at) > 0 {
		ask()
	}
	return out
}

// way says whether a draft may go to the adapter right away.
func (m *Messages) way(ctx context.Context, d *adapter.Draft) (direct bool, err error) {
	var patience <-chan time.Time
	for {
		conn, linked := m.link.get()
		if conn == nil {
			return false, nil
		}
		waiting, changed := m.box.Waiting(1)
		if len(waiting) == 0 && m.box.Len() == 0 {
			return true, nil
		}
		r, idle := m.drain.state(destination(d), changed)
		if r != nil {
			return false, r
		}
		if idle {
			return true, nil
		}
		if patience == nil {
			t := time.NewTimer(drainPatience)
			defer t.Stop()
			patience = t.C
		}
		select {
		case <-changed:
		case <-linked:
		case <-patience:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// keep puts a draft into the outbox.
func (m *Messages) keep(d adapter.Draft) outcome {
	_, err := m.box.Add(d)
	switch {
	case err == nil:
		return outcome{queued: true}
	case errors.Is(err, outbox.ErrKeyReused):
		return outcome{SendResult: adapter.SendResult{Err: &deny.Reason{
			Layer: deny.LayerMessages, Code: deny.MessageDuplicateKey, What: "send " + d.IdempotencyKey, Why: err.Error(), Mend: "use a new idempotency_key for another message",
		}}}
	}
	// The emergency: nobody can keep it. The agent is told, and the operator.
	m.lost.Add(1)
	r := unavailable("send", "the team's adapter cannot be reached, and "+err.Error())
	m.cfg.Log.Add(m.cfg.Agent, record.Message, record.Outbox, record.Failed, r)
	return outcome{SendResult: adapter.SendResult{Err: r}}
}

// Outbox gives how many messages wait, how many found no place and how many gaps
// could not be filled since this began, and a channel that is closed when the
// first changes.
func (m *Messages) Outbox() (waiting int, lost, gaps uint64, changed <-chan struct{}) {
	_, changed = m.box.Waiting(0)
	return m.box.Len(), m.lost.Load(), m.gaps.Load(), changed
}

var errAway = errors.New("the team's adapter cannot be reached")

// ask sends drafts over the connection there is. One that does not answer in
// time is given up. late: they were in the outbox.
func (m *Messages) ask(ctx context.Context, drafts []adapter.Draft, late bool) []adapter.SendResult {
	conn, _ := m.link.get()
	if conn == nil {
		return failed(len(drafts), errAway)
	}
	// A runtime that leaves must not make its send uncertain: only time does, by
	// which the connection ends.
	defer m.asked.end(m.asked.begin(conn))
	if late {
		return conn.SendLate(context.WithoutCancel(ctx), drafts)
	}
	return conn.Send(context.WithoutCancel(ctx), m.cfg.Agent, drafts)
}

func (m *Messages) trip(conn *client.Agent) {
	m.cfg.Log.Add(m.cfg.Agent, record.Message, "adapter", record.Failed, unavailable("send", fmt.Sprintf("the adapter did not answer in %v", answerTimeout)))
	_ = conn.Close()
}

func failed(n int, err error) []adapter.SendResult {
	out := make([]adapter.SendResult, n)
	for i := range out {
		out[i].Err = err
	}
	return out
}
