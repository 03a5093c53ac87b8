package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

// session is one connection that was admitted.
type session struct {
	*port
	c *protocol.Conn

	submitted int // drafts since the last commit

	mu    sync.Mutex
	waits map[uint64]context.CancelFunc // open receives and reads of what was missed
}

func newSession(p *port, c *protocol.Conn) *session {
	return &session{port: p, c: c, waits: map[uint64]context.CancelFunc{}}
}

// run answers requests until the connection ends, and waits for those that are
// open. The end of the connection ends their contexts: nothing is leased to
// somebody who left.
func (s *session) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer func() {
		s.commit()
		cancel()
		work.Wait()
		_ = s.c.Close()
	}()
	for {
		if !s.c.Ready() {
			s.commit()
		}
		m, err := s.c.Read()
		if err != nil {
			return
		}
		if m.Verb == protocol.VerbCancel {
			s.cancel(m)
			continue
		}
		if s.long(m) {
			s.wait(ctx, m, &work)
			continue
		}
		give, err := s.share.take(ctx, len(m.Body), s.commit)
		if err != nil {
			return
		}
		if m.Verb == protocol.VerbSend && s.agent != "" {
			s.send(m, &work, give)
			continue
		}
		work.Go(func() {
			defer give()
			s.answer(ctx, m)
		})
	}
}

// aside is how many drafts are committed by another goroutine: to wake it costs
// less than what this one reads and decodes meanwhile.
const aside = 64

// commit has what was submitted written to the disk, and its answers to the
// connection: little of it by this goroutine, which would only wait otherwise.
func (s *session) commit() {
	n := s.submitted
	if s.submitted = 0; n == 0 {
		return
	}
	if n >= aside {
		s.store.CommitAside()
		return
	}
	s.c.Hold()
	s.store.Commit()
	s.c.Release()
}

// long says whether a request may wait for something to happen. Those have
// places of their own, so that no number of them stops a send.
func (s *session) long(m wire.Message) bool {
	return m.Verb == protocol.VerbReceive || m.Verb == protocol.VerbTail && s.agent == ""
}

// wait answers a long request, or refuses it when too many wait already: to
// leave it unread would stop the sends behind it.
func (s *session) wait(ctx context.Context, m wire.Message, work *sync.WaitGroup) {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	_, twice := s.waits[m.ID]
	taken := !twice && s.share.waits.TryAcquire(1)
	if taken {
		s.waits[m.ID] = cancel
	}
	s.mu.Unlock()
	if !taken {
		cancel()
		s.deny(m.ID, &deny.Reason{
			Layer: deny.LayerMessages, Code: deny.MessageQueueFull, What: m.Verb, RetryAfter: 1,
			Why: fmt.Sprintf("%d requests of this agent wait already, or one with this id does", maxWaits), Mend: "let one of them end first",
		})
		return
	}
	work.Go(func() {
		defer s.share.waits.Release(1)
		defer func() {
			s.mu.Lock()
			delete(s.waits, m.ID)
			s.mu.Unlock()
			cancel()
		}()
		s.answer(ctx, m)
	})
}

// cancelable makes a context that `cancel` ends, unless a wait has the same id.
func (s *session) cancelable(ctx context.Context, id uint64) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, twice := s.waits[id]; twice {
		return ctx, cancel
	}
	s.waits[id] = cancel
	return ctx, func() {
		s.mu.Lock()
		delete(s.waits, id)
		s.mu.Unlock()
		cancel()
	}
}

func (s *session) cancel(m wire.Message) {
	var q protocol.Cancel
	if json.Unmarshal(m.Body, &q) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.waits[q.ID]; cancel != nil {
		cancel()
	}
}

// answer does one request. Whatever comes of it, it is answered.
func (s *session) answer(ctx context.Context, m wire.Message) {
	at := time.Now()
	var err error
	if s.agent == "" {
		err = s.operator(ctx, m)
	} else {
		err = s.service(ctx, m)
	}
	s.metrics.request(m.Verb, s.name(), err, time.Since(at))
	if err != nil {
		s.fail(m.ID, err)
	}
}

// fail answers with a reason or a failure.
func (s *session) fail(id uint64, err error) {
	r := protocol.RefusedBy(err)
	if r.Reason != nil {
		s.deny(id, r.Reason)
		return
	}
	s.reply(id, protocol.VerbError, wire.Failure{Message: r.Failed})
}

func (s *session) deny(id uint64, r *deny.Reason) { s.reply(id, protocol.VerbDenied, r) }

// reply sends what holds no bodies of messages and so fits into a frame. A
// connection that broke shows in the next read.
func (s *session) reply(id uint64, verb string, body any) {
	_ = s.c.Write(id, verb, protocol.Body(body))
}

// decode reads a request's body.
func decode(m wire.Message, into any) error {
	if err := json.Unmarshal(m.Body, into); err != nil {
		return undecodable(m, err)
	}
	return nil
}

func undecodable(m wire.Message, err error) *deny.Reason {
	return invalid(m.Verb, "it does not decode: "+err.Error())
}

func invalid(verb, why string) *deny.Reason {
	return &deny.Reason{
		Layer: deny.LayerMessages, Code: deny.MessageInvalid, What: verb, Why: why, Mend: "send what docs/contracts/messages.md says",
	}
}

// service does an agent's request.
func (s *session) service(ctx context.Context, m wire.Message) error {
	switch m.Verb {
	case protocol.VerbReceive:
		return s.receive(ctx, m)
	case protocol.VerbAck, protocol.VerbExtend:
		var q protocol.Leases
		if err := decode(m, &q); err != nil {
			return err
		}
		if m.Verb == protocol.VerbAck {
			s.settled(m.ID, s.store.Ack(ctx, s.agent, q.Leases))
		} else {
			s.settled(m.ID, s.store.Extend(ctx, s.agent, q.Leases, q.Duration))
		}
		return nil
	case protocol.VerbRefuse:
		var q protocol.Refuse
		if err := decode(m, &q); err != nil {
			return err
		}
		for i := range q.Refusals {
			q.Refusals[i].Untaken = q.Untaken
		}
		s.settled(m.ID, s.store.Refuse(ctx, s.agent, q.Refusals))
		return nil
	case protocol.VerbThread:
		var q adapter.ThreadRequest
		if err := decode(m, &q); err != nil {
			return err
		}
		return s.page(m.ID, func() (adapter.Page, error) {
			return gatherThread(q, func(q adapter.ThreadRequest) (adapter.Page, error) { return s.store.Thread(ctx, s.agent, q) })
		})
	case protocol.VerbReplay:
		var q adapter.ReplayRequest
		if err := decode(m, &q); err != nil {
			return err
		}
		return s.page(m.ID, func() (adapter.Page, error) {
			return gatherReplay(q, func(q adapter.ReplayRequest) (adapter.Page, error) { return s.store.Replay(ctx, s.agent, q) })
		})
	case protocol.VerbChannels:
		l, err := s.store.Channels(ctx, s.agent)
		if err == nil {
			s.reply(m.ID, protocol.VerbChannelList, protocol.Channels{Channels: l})
		}
		return err
	case protocol.VerbMissed:
		var q adapter.MissedRequest
		if err := decode(m, &q); err != nil {
			return err
		}
		ctx, over := s.cancelable(ctx, m.ID)
		defer over()
		got, err := s.store.Missed(ctx, s.agent, q)
		if err != nil {
			return err
		}
		fit(&got)
		return s.c.Write(m.ID, protocol.VerbMissing, func(b []byte) []byte { return protocol.AppendMissed(b, &got) })
	case protocol.VerbRequest:
		return s.request(ctx, m)
	}
	return invalid(fmt.Sprintf("%.40q", m.Verb), "there is no such request for agents")
}

// send has the store take messages, with the next commit. Whoever does that leaves
// the answer on the connection: to wake a goroutine for each request costs more than the rest.
func (s *session) send(m wire.Message, work *sync.WaitGroup, give func()) {
	at := time.Now()
	end := func(err error) {
		s.metrics.request(m.Verb, s.agent, err, time.Since(at))
		give()
		work.Done()
	}
	work.Add(1)
	q, err := protocol.ReadSend(m.Body)
	if err != nil {
		err = undecodable(m, err)
	} else if len(q.Drafts) == 0 || len(q.Drafts) > adapter.MaxBatch {
		err = invalid(m.Verb, fmt.Sprintf("%d drafts are not between 1 and %d", len(q.Drafts), adapter.MaxBatch))
	}
	if err != nil {
		s.fail(m.ID, err)
		end(err)
		return
	}
	s.submitted += len(q.Drafts)
	s.store.Submit(s.agent, q.Drafts, q.Late, func(results []adapter.SendResult) {
		s.metrics.sent(s.agent, results)
		s.record(q.Drafts, results, work)
		body := func(b []byte) []byte { return protocol.AppendResults(b, results) }
		taken, err := s.c.Queue(m.ID, protocol.VerbSent, body)
		if taken && !errors.Is(err, wire.ErrFrame) { // another error is the connection's, which has ended
			end(err)
			return
		}
		go func() { // the peer does not read, or the answer is too large; work waits for it
			if !taken {
				err = s.c.Write(m.ID, protocol.VerbSent, body)
			}
			if errors.Is(err, wire.ErrFrame) {
				s.fail(m.ID, err)
			}
			end(err)
		}()
	})
}

// record writes down which drafts were refused by a rule, so that operators find
// it; what repeats is folded. Not by the caller, the store's writer, which waits for no file.
func (s *session) record(drafts []adapter.Draft, results []adapter.SendResult, work *sync.WaitGroup) {
	for i := range results {
		var r *deny.Reason
		if results[i].Err == nil || !errors.As(results[i].Err, &r) || r.Code == deny.MessageUnavailable {
			continue
		}
		target := fmt.Sprintf("channel %.64s", drafts[i].Channel) // cut: a wrong form may hold anything
		if drafts[i].To != "" {
			target = fmt.Sprintf("to %.64s", drafts[i].To)
		}
		work.Go(func() { s.log.Add(s.agent, record.Message, target, record.Denied, r) })
	}
}

// receive answers in as many frames as the messages need.
func (s *session) receive(ctx context.Context, m wire.Message) error {
	var q adapter.ReceiveRequest
	if err := decode(m, &q); err != nil {
		return err
	}
	all, err := s.store.Receive(ctx, s.agent, q)
	if err != nil && ctx.Err() != nil {
		all, err = nil, nil // the wait was called off
	}
	if err != nil {
		return err
	}
	for first := true; first || len(all) > 0; first = false {
		n, size := 0, 0
		for n < len(all) && (n == 0 || size+len(all[n].Body) <= budget) {
			size += len(all[n].Body) + envelope
			n++
		}
		part := all[:n]
		all = all[n:]
		err := s.c.Write(m.ID, protocol.VerbDeliveries, func(b []byte) []byte { return protocol.AppendDeliveries(b, part, len(all) > 0) })
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *session) settled(id uint64, errs []error) {
	out := protocol.Settled{Results: make([]protocol.Refused, len(errs))}
	for i, err := range errs {
		out.Results[i] = protocol.RefusedBy(err)
	}
	s.reply(id, protocol.VerbSettled, out)
}

func (s *session) page(id uint64, read func() (adapter.Page, error)) error {
	p, err := read()
	if err != nil {
		return err
	}
	return s.c.Write(id, protocol.VerbPage, func(b []byte) []byte { return protocol.AppendPage(b, &p) })
}
