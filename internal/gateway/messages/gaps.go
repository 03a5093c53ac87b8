package messages

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// gap is where something is missing of a channel, as an answer shows it.
type gap struct {
	channel string
	before  uint64 // its last delivery in the answer
	missed  uint64
}

// gapsOf are the channels of which something may be missing. It may lie between
// two deliveries of one answer: whichever of them is acknowledged moves the mark,
// so the answer is to be whole up to the last.
func gapsOf(all []adapter.Delivery) (out []gap) {
	for i := range all {
		d := &all[i]
		at := slices.IndexFunc(out, func(g gap) bool { return g.channel == d.Channel })
		if at < 0 {
			at = len(out)
			out = append(out, gap{channel: d.Channel})
		}
		out[at].before, out[at].missed = max(out[at].before, d.Sequence), max(out[at].missed, d.Missed)
	}
	return out
}

// errSlow ends the reading of what is missing: the deliveries' leases run meanwhile.
var errSlow = errors.New("it took too long")

// receive leases messages and reads what is missing before and between them. What
// is replayed has no lease: it comes with every delivery that shows the gap until
// one of these is acknowledged, so it is handed over at least once, as they are.
func (m *Messages) receive(ctx context.Context, s adapter.Service, q adapter.ReceiveRequest) ([]adapter.Delivery, replays, error) {
	all, err := s.Receive(ctx, m.cfg.Agent, q)
	if err != nil {
		return nil, nil, err
	}
	m.seen.took(all)
	var out replays
	asking, cancel := context.WithTimeoutCause(ctx, answerTimeout, errSlow)
	defer cancel()
	for _, g := range gapsOf(all) {
		at := m.seen.of(g.channel)
		if g.missed <= at.Sequence {
			continue
		}
		if asking.Err() != nil { // another channel took the time: the next delivery shows this gap again
			m.withhold(g.channel, all)
			continue
		}
		some, err := m.fill(asking, s, g, at)
		if out = append(out, some...); err == nil {
			continue
		}
		if ctx.Err() == nil { // else nobody takes the answer
			m.cfg.Log.Add(m.cfg.Agent, record.Message, "adapter", record.Failed, reasonFor("read what is missing of a channel", err))
		}
		m.withhold(g.channel, all)
	}
	return all, out, nil
}

// fill reads what found no place in the queue between the mark and the last
// delivery. What fails is read with the next one: they are leased, and go out now.
// What takes too long would do so again, and stays a gap.
func (m *Messages) fill(ctx context.Context, s adapter.Service, g gap, at mark) (out replays, err error) {
	bytes := 0
	q := adapter.MissedRequest{Channel: g.channel, After: at.Sequence, Time: at.Time, Before: g.before}
	for range maxPages {
		got, err := s.Missed(ctx, m.cfg.Agent, q)
		if err != nil && errors.Is(context.Cause(ctx), errSlow) {
			break
		}
		if refusedForGood(err) {
			m.unfilled(g.channel, g.before-1, fmt.Sprintf("messages before %d found no place in the queue, and this agent may not read that channel any more: they stay dead letters", g.before))
			return out, nil
		}
		if err != nil {
			return out, err
		}
		if m.judge(g.channel, at, &got); got.Anew {
			return out, nil
		}
		for _, one := range got.Messages {
			if bytes += len(one.Body); len(out) == maxReplayed || bytes > maxReplayedBytes && len(out) > 0 {
				m.unfilled(g.channel, g.before-1, fmt.Sprintf("messages from %d to before %d found no place in the queue, and are more than one answer holds: they stay dead letters", one.Sequence, g.before))
				return out, nil
			}
			out = append(out, one)
		}
		if got.Next == 0 {
			return out, nil
		}
		q.From = got.Next
	}
	m.unfilled(g.channel, g.before-1, fmt.Sprintf("what found no place in the queue from message %d to before %d took too long to be read: it stays dead letters", max(q.From, at.Sequence+1), g.before))
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
			m.tell(channel, fmt.Sprintf("this agent acknowledged message %d, of which the adapter's store knows nothing (it ends at %d): it was put back to an earlier state, later messages are lost and their numbers are given again",
				at.Sequence, got.Last))
		}
		return
	}
	for _, r := range got.Lost {
		if m.seen.tell(channel, r.To, func(at *mark) *uint64 { return &at.Lost }) {
			m.tell(channel, fmt.Sprintf("messages %d to %d are not in the adapter's store any more: they are lost", r.From, r.To))
		}
	}
}

// unfilled tells once of a gap that is not replayed.
func (m *Messages) unfilled(channel string, upTo uint64, why string) {
	if m.seen.tell(channel, upTo, func(at *mark) *uint64 { return &at.Told }) {
		m.tell(channel, why)
	}
}

// tell tells the operator of a gap that stays one: on record, which `denials` and
// the warden's log show, and in status.
func (m *Messages) tell(channel, why string) {
	m.gaps.Add(1)
	m.cfg.Log.Write(record.Record{
		Agent: m.cfg.Agent, Kind: record.Message, Verdict: record.Failed, Target: record.Gap, Count: 1,
		Reason: &deny.Reason{
			Layer: deny.LayerMessages, Code: deny.MessageUnavailable, What: "channel " + channel, Why: why,
			Mend: "look at `bulkhead dlq list` and `bulkhead msg tail --all`, and have what is missing sent again",
		},
	})
}

// comparison is what is left to be looked at, whether the adapter still has what
// this agent has seen and what came after it.
type comparison []look

type look struct {
	channel string
	at      mark
	from    uint64 // of the adapter's last answer
}

// begin has everything looked at. What was not yet, when the connection ended, is
// so from the mark of then: the agent may have come further since.
func (c *comparison) begin(marks map[string]mark) {
	var left comparison
	oldest := map[string]uint64{}
	for _, one := range *c {
		if oldest[one.channel] == 0 {
			oldest[one.channel] = one.at.Sequence
			left = append(left, look{channel: one.channel, at: one.at})
		}
	}
	for channel, at := range marks {
		if at.Sequence != oldest[channel] {
			left = append(left, look{channel: channel, at: at})
		}
	}
	*c = left
}

// runSeen looks at each new connection whether the adapter still has what this
// agent has seen, and keeps the file.
func (m *Messages) runSeen(ctx context.Context) {
	var last *client.Agent
	var left comparison
	said := ""
	for ctx.Err() == nil {
		conn, changed := m.link.get()
		if conn != nil && conn != last {
			last = conn
			left.begin(m.seen.all())
		}
		var again <-chan time.Time
		if conn != nil && len(left) > 0 {
			pause := awayPause
			if m.compare(ctx, conn, &left) {
				pause = 0
			}
			if len(left) > 0 {
				again = time.After(pause)
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

// compare looks at some of what is left, so that the file is kept meanwhile; false:
// the adapter did not answer, and the same is asked again later, after the others.
func (m *Messages) compare(ctx context.Context, s adapter.Service, left *comparison) bool {
	for end := time.Now().Add(saveEvery); len(*left) > 0; {
		one := (*left)[0]
		got, err := m.compareOne(ctx, s, one)
		*left = (*left)[1:]
		if err != nil {
			*left = append(*left, one)
			return false
		}
		if m.judge(one.channel, one.at, &got); got.Next > one.from {
			one.from = got.Next
			*left = append(*left, one)
		}
		if time.Now().After(end) {
			break
		}
	}
	return true
}

func (m *Messages) compareOne(ctx context.Context, s adapter.Service, one look) (adapter.Missed, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	got, err := s.Missed(ctx, m.cfg.Agent, adapter.MissedRequest{Channel: one.channel, After: one.at.Sequence, Time: one.at.Time, From: one.from, Lost: true})
	if refusedForGood(err) {
		return adapter.Missed{}, nil // it is no member any more
	}
	return got, err
}

func refusedForGood(err error) bool {
	var r *deny.Reason
	return errors.As(err, &r) && r.Code != deny.MessageUnavailable
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
