package messages

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/client"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/deny"
	"bulkhead/internal/gateway/outbox"
)

// Leases is a request about deliveries. Duration is that of :extend, in ns.
type Leases struct {
	Leases   []string      `json:"leases"`
	Duration time.Duration `json:"duration,omitempty"`
}

// Refusals gives deliveries back.
type Refusals struct {
	Refusals []adapter.Refusal `json:"refusals"`
}

// Channels lists channels.
type Channels struct {
	Channels []adapter.ChannelState `json:"channels"`
}

// maxLeases is how many one request may settle.
const maxLeases = 1000

// service is the adapter, or the refusal when it is away.
func (m *Messages) service(r *http.Request) (adapter.Service, error) {
	return m.adapterFor(r.Method + " " + r.URL.Path)
}

func (m *Messages) serveReceive(w http.ResponseWriter, r *http.Request) {
	var q adapter.ReceiveRequest
	err := m.decode(w, r, &q)
	var all []adapter.Delivery
	var missing replays
	if err == nil {
		all, missing, err = m.await(r.Context(), r.Method+" "+r.URL.Path, q)
	}
	if err != nil {
		m.fail(w, r, err)
		return
	}
	write(w, http.StatusOK, append(appendReceived(nil, all, missing), '\n'))
}

// maxAwait is how long an adapter takes a wait for (docs/contracts/messages.md).
const maxAwait = time.Minute

// await receives, and spends as much of the wait as it takes on an adapter that is just
// starting.
func (m *Messages) await(ctx context.Context, what string, q adapter.ReceiveRequest) ([]adapter.Delivery, replays, error) {
	end := time.Now().Add(min(q.Wait, maxAwait))
	for {
		conn, linked := m.link.get()
		err := error(unavailable(what, errAway.Error()+"; what was queued is kept"))
		if conn != nil {
			var all []adapter.Delivery
			var missing replays
			if all, missing, err = m.receive(ctx, conn, q); err == nil || !ended(conn) {
				return all, missing, err
			}
		}
		left := time.Until(end)
		if left <= 0 || ctx.Err() != nil {
			return nil, nil, err
		}
		wait(ctx.Done(), linked, left)
		if q.Wait <= maxAwait { // a longer one is the adapter's to refuse
			q.Wait = max(time.Until(end), 0)
		}
	}
}

func ended(c *client.Agent) bool {
	select {
	case <-c.Done():
		return true
	default:
		return false
	}
}

func (m *Messages) serveAck(w http.ResponseWriter, r *http.Request) {
	var q Leases
	m.settle(w, r, &q, func(ctx context.Context, s adapter.Service) ([]string, []error) {
		return q.Leases, m.ack(ctx, s, q.Leases)
	}, func() int { return len(q.Leases) })
}

// ack ends deliveries, and remembers how far the agent has come.
func (m *Messages) ack(ctx context.Context, s adapter.Service, leases []string) []error {
	errs := s.Ack(ctx, m.cfg.Agent, leases)
	for i, err := range errs {
		if err == nil {
			m.seen.acknowledged(leases[i])
		}
	}
	return errs
}

func (m *Messages) serveExtend(w http.ResponseWriter, r *http.Request) {
	var q Leases
	m.settle(w, r, &q, func(ctx context.Context, s adapter.Service) ([]string, []error) {
		return nil, s.Extend(ctx, m.cfg.Agent, q.Leases, q.Duration)
	}, func() int { return len(q.Leases) })
}

func (m *Messages) serveRefuse(w http.ResponseWriter, r *http.Request) {
	var q Refusals
	m.settle(w, r, &q, func(ctx context.Context, s adapter.Service) ([]string, []error) {
		over := make([]string, len(q.Refusals))
		for i := range q.Refusals {
			over[i] = q.Refusals[i].Lease
		}
		return over, s.Refuse(ctx, m.cfg.Agent, q.Refusals)
	}, func() int { return len(q.Refusals) })
}

// settle answers for each lease. over are the leases that do gives up.
func (m *Messages) settle(w http.ResponseWriter, r *http.Request, q any, do func(context.Context, adapter.Service) (over []string, errs []error), count func() int) {
	err := m.decode(w, r, q)
	if n := count(); err == nil && (n == 0 || n > maxLeases) {
		err = invalid(r, fmt.Sprintf("%d leases are not between 1 and %d", n, maxLeases))
	}
	var s adapter.Service
	if err == nil {
		s, err = m.service(r)
	}
	if err != nil {
		m.fail(w, r, err)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), answerTimeout)
	defer cancel()
	over, errs := do(ctx, s)
	out := Items{make([]Item, len(errs))}
	for i, err := range errs {
		if err != nil {
			out.Results[i] = refusedItem(m.reason(r, err))
			continue
		}
		out.Results[i].Status = http.StatusOK
		if over != nil {
			m.watch.settled(over[i])
			m.seen.over(over[i])
		}
	}
	answer(w, http.StatusMultiStatus, out)
}

func (m *Messages) serveChannels(w http.ResponseWriter, r *http.Request) {
	s, err := m.service(r)
	var l []adapter.ChannelState
	if err == nil {
		l, err = s.Channels(r.Context(), m.cfg.Agent)
	}
	if err != nil {
		m.fail(w, r, err)
		return
	}
	if l == nil {
		l = []adapter.ChannelState{}
	}
	answer(w, http.StatusOK, Channels{l})
}

// numbers reads numeric parameters and names all that are none. texts are other
// parameters that there may be.
func numbers(r *http.Request, into map[string]*uint64, texts ...string) error {
	var bad []deny.Field
	q := r.URL.Query()
	for name := range q {
		if into[name] == nil && !slices.Contains(texts, name) {
			bad = append(bad, deny.Field{Name: clip(name), Why: "there is no such parameter"})
		}
	}
	for name, p := range into {
		text := q.Get(name)
		if text == "" {
			continue
		}
		n, err := strconv.ParseUint(text, 10, 63)
		if err != nil {
			bad = append(bad, deny.Field{Name: name, Why: "it is not a whole number that is not negative"})
		}
		*p = n
	}
	if len(bad) > 0 {
		return invalid(r, "parameters do not fit", bad...)
	}
	return nil
}

func (m *Messages) serveReplay(w http.ResponseWriter, r *http.Request) {
	from, limit := uint64(1), uint64(0)
	err := numbers(r, map[string]*uint64{"from": &from, "limit": &limit})
	m.page(w, r, err, func(s adapter.Service) (adapter.Page, error) {
		q := adapter.ReplayRequest{Channel: r.PathValue("channel"), From: from, Limit: int(min(limit, 1<<20))} // #nosec G115 -- bounded
		return s.Replay(r.Context(), m.cfg.Agent, q)
	})
}

func (m *Messages) serveThread(w http.ResponseWriter, r *http.Request) {
	var after, limit uint64
	err := numbers(r, map[string]*uint64{"after": &after, "limit": &limit})
	n, perr := strconv.ParseUint(r.PathValue("sequence"), 10, 63)
	if err == nil && perr != nil {
		err = invalid(r, "the path does not fit", deny.Field{Name: "sequence", Why: "it is not a number"})
	}
	m.page(w, r, err, func(s adapter.Service) (adapter.Page, error) {
		q := adapter.ThreadRequest{Channel: r.PathValue("channel"), Sequence: n, After: after, Limit: int(min(limit, 1<<20))} // #nosec G115 -- bounded
		return s.Thread(r.Context(), m.cfg.Agent, q)
	})
}

func (m *Messages) page(w http.ResponseWriter, r *http.Request, err error, read func(adapter.Service) (adapter.Page, error)) {
	var p adapter.Page
	if err == nil {
		var s adapter.Service
		if s, err = m.service(r); err == nil {
			p, err = read(s)
		}
	}
	if err != nil {
		m.fail(w, r, err)
		return
	}
	write(w, http.StatusOK, append(protocol.AppendPage(nil, &p), '\n'))
}

func (m *Messages) serveOutbox(w http.ResponseWriter, _ *http.Request) {
	list, changed := m.box.Waiting(outbox.MaxMessages)
	out := Outbox{Waiting: make([]Waiting, len(list)), Refused: []Refused{}}
	for i := range list {
		d := &list[i].Draft
		out.Waiting[i] = Waiting{
			IdempotencyKey: d.IdempotencyKey, To: d.To, Channel: d.Channel, Type: d.Type, Since: list[i].Time.Format(time.RFC3339Nano),
		}
		out.Waiting[i].Reason, _ = m.drain.state(destination(d), changed)
	}
	for _, f := range m.box.Refused() {
		out.Refused = append(out.Refused, Refused{
			Draft: f.Draft, Queued: f.Queued.Format(time.RFC3339Nano), At: f.At.Format(time.RFC3339Nano), Error: f.Reason.Envelope(),
		})
	}
	answer(w, http.StatusOK, out)
}
