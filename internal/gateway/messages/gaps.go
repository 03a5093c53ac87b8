package messages

import (
	"context"
	"errors"
	"fmt"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/client"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/deny"
	"bulkhead/internal/record"
)

// Bounds of what one answer hands over of a gap, and of the pages that it is read in.
const (
	maxReplayed      = 1000
	maxReplayedBytes = 8 << 20
	maxPages         = 64
)

// replays is what of a gap goes with an answer, beside the deliveries.
type replays []adapter.Message

// receive leases messages and reads what is missing before them. What is
// replayed has no lease: it comes with every delivery that shows the gap until
// one of these is acknowledged, so it is handed over at least once, as they are.
func (m *Messages) receive(ctx context.Context, s adapter.Service, q adapter.ReceiveRequest) ([]adapter.Delivery, replays, error) {
	all, err := s.Receive(ctx, m.cfg.Agent, q)
	if err != nil {
		return nil, nil, err
	}
	m.seen.took(all)
	var out replays
	looked := map[string]bool{}
	for i := range all {
		d := &all[i]
		if d.Missed == 0 || looked[d.Channel] {
			continue
		}
		looked[d.Channel] = true
		at := m.seen.of(d.Channel)
		if d.Missed <= at.Sequence {
			continue
		}
		some, err := m.fill(ctx, s, d, at)
		if out = append(out, some...); err != nil {
			m.cfg.Log.Add(m.cfg.Agent, record.Message, "adapter", record.Failed, reasonFor("read what is missing of a channel", err))
			m.withhold(d.Channel, all)
		}
	}
	return all, out, nil
}

// fill reads what found no place in the queue between the mark and a delivery.
// What fails is read with the next delivery: they are leased, and go out now.
func (m *Messages) fill(ctx context.Context, s adapter.Service, d *adapter.Delivery, at mark) (out replays, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
	defer cancel()
	bytes := 0
	q := adapter.MissedRequest{Channel: d.Channel, After: at.Sequence, Time: at.Time, Before: d.Sequence}
	for range maxPages {
		got, err := s.Missed(ctx, m.cfg.Agent, q)
		if err != nil {
			return out, err
		}
		if m.judge(d.Channel, at, &got); got.Anew {
			return out, nil
		}
		for _, one := range got.Messages {
			if bytes += len(one.Body); len(out) == maxReplayed || bytes > maxReplayedBytes && len(out) > 0 {
				m.unfilled(d.Channel, d.Sequence-1, fmt.Sprintf("messages from %d to before %d found no place in the queue, and are more than one answer holds: they stay dead letters", one.Sequence, d.Sequence))
				return out, nil
			}
			out = append(out, one)
		}
		if got.Next == 0 {
			return out, nil
		}
		q.After, q.Time = got.Next-1, time.Time{}
	}
	m.unfilled(d.Channel, d.Sequence-1, fmt.Sprintf("the gap before message %d is too long to be looked through", d.Sequence))
	return out, nil
}

// withhold keeps acknowledgements of a channel's deliveries from moving its mark:
// what is missing before them was not handed over.
func (m *Messages) withhold(channel string, all []adapter.Delivery) {
	for i := range all {
		if all[i].Channel == channel {
			m.seen.over(all[i].Lease)
		}
	}
}

// judge tells of what the adapter does not have any more.
func (m *Messages) judge(channel string, at mark, got *adapter.Missed) {
	if got.Anew {
		if m.seen.restart(channel, at, got.Last) {
			m.unfilled(channel, 0, fmt.Sprintf("this agent acknowledged message %d, of which the adapter's store knows nothing (it ends at %d): it was put back to an earlier state, later messages are lost and their numbers are given again",
				at.Sequence, got.Last))
		}
		return
	}
	for _, r := range got.Lost {
		m.unfilled(channel, r.To, fmt.Sprintf("messages %d to %d are not in the adapter's store any more: they are lost", r.From, r.To))
	}
}

// unfilled tells the operator of a gap that stays one, once: on record, which
// `denials` and the warden's log show, and in status. upTo 0: whatever was told.
func (m *Messages) unfilled(channel string, upTo uint64, why string) {
	if upTo > 0 && !m.seen.tell(channel, upTo) {
		return
	}
	m.gaps.Add(1)
	m.cfg.Log.Write(record.Record{
		Agent: m.cfg.Agent, Kind: record.Message, Verdict: record.Failed, Target: record.Gap, Count: 1,
		Reason: &deny.Reason{
			Layer: deny.LayerMessages, Code: deny.MessageUnavailable, What: "channel " + channel, Why: why,
			Mend: "look at `bulkhead dlq list` and `bulkhead msg tail --all`, and have what is missing sent again",
		},
	})
}

// runSeen looks at each new connection whether the adapter still has what this
// agent has seen, and keeps the file.
func (m *Messages) runSeen(ctx context.Context) {
	var compared *client.Agent
	said := ""
	for ctx.Err() == nil {
		conn, changed := m.link.get()
		var again <-chan time.Time
		if conn != nil && conn != compared {
			if m.compare(ctx, conn) {
				compared = conn
			} else {
				again = time.After(awayPause)
			}
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-again:
		case <-m.seen.kick:
			wait(ctx.Done(), nil, saveEvery) // others are acknowledged meanwhile
		}
		if err := m.seen.save(); err != nil && err.Error() != said {
			said = err.Error()
			m.cfg.Log.Add(m.cfg.Agent, record.Message, "seen", record.Failed, unavailable("remember what was seen of channels", said))
		}
	}
}

// compare is done when every channel was looked at.
func (m *Messages) compare(ctx context.Context, s adapter.Service) bool {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	for channel, at := range m.seen.all() {
		if at.Sequence == 0 {
			continue
		}
		got, err := s.Missed(ctx, m.cfg.Agent, adapter.MissedRequest{Channel: channel, After: at.Sequence, Time: at.Time})
		var r *deny.Reason
		switch {
		case errors.As(err, &r) && r.Code != deny.MessageUnavailable:
			continue // it is no member any more
		case err != nil:
			return false
		}
		m.judge(channel, at, &got)
	}
	return true
}

// appendReceived appends the answer of a receive.
func appendReceived(b []byte, all []adapter.Delivery, missing replays) []byte {
	b = protocol.AppendDeliveries(b, all, false)
	if len(missing) == 0 {
		return b
	}
	b = append(b[:len(b)-1], `,"replayed":[`...)
	for i := range missing {
		if i > 0 {
			b = append(b, ',')
		}
		b = protocol.AppendMessage(b, &missing[i])
	}
	return append(b, `]}`...)
}
