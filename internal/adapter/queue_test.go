package adapter

import (
	"testing"

	"pgregory.net/rapid"
)

// TestAQueueKeepsItsBooks does anything to a queue and counts again.
func TestAQueueKeepsItsBooks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := newQueue(1, "qa")
		channels := []*channel{{id: 1, name: "a"}, {id: 2, name: "b"}, {id: 3, name: "c"}}
		next, receive := int64(0), int64(0)
		held := map[int64]int64{} // which Receive has an entry
		any := func(s state) *entry {
			var all []*entry
			for id := int64(1); id <= next; id++ {
				if e := q.entries[id]; e != nil && e.state == s {
					all = append(all, e)
				}
			}
			if len(all) == 0 {
				return nil
			}
			return rapid.SampledFrom(all).Draw(t, "entry")
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				ch := rapid.SampledFrom(channels).Draw(t, "channel")
				next++
				ch.last++
				q.add(&entry{record: &record{
					id: next, channel: ch, seq: ch.last, sender: rapid.Int64Range(1, 3).Draw(t, "sender"), rank: rapid.Int64Range(0, 2).Draw(t, "rank"),
					size: rapid.Int64Range(0, 100).Draw(t, "size"), critical: rapid.Bool().Draw(t, "critical"),
				}, queue: q, heap: -1})
			},
			"receive": func(t *rapid.T) {
				receive++
				w := &waiter{id: receive}
				for range rapid.IntRange(1, 4).Draw(t, "max") {
					l := q.pick(w)
					if l == nil {
						return
					}
					e := q.lease(l, w)
					held[e.id] = w.id
					// Order: whatever is before it in its channel is of the same Receive.
					for _, o := range q.entries {
						if o.channel == e.channel && o.seq < e.seq && (o.state != leased || held[o.id] != w.id) {
							t.Fatalf("%d of %s was leased before %d (state %d)", e.seq, e.channel.name, o.seq, o.state)
						}
					}
				}
			},
			"acknowledge": func(*rapid.T) {
				if e := any(leased); e != nil {
					q.remove(e)
				}
			},
			"refuse": func(*rapid.T) {
				if e := any(leased); e != nil {
					q.back(e, waiting)
				}
			},
			"retry": func(*rapid.T) {
				if e := any(waiting); e != nil {
					q.set(e, ready)
				}
			},
			"evict": func(*rapid.T) {
				if e := any(ready); e != nil {
					q.remove(e)
				}
			},
			"": func(t *rapid.T) { q.audit(t) },
		})
	})
}

// audit counts everything anew.
func (q *queue) audit(t *rapid.T) {
	lanes, inHand, retrying := 0, 0, 0
	bytes := int64(0)
	shares := map[int64]share{}
	for _, l := range q.channels {
		lanes += len(l.entries)
		for i, e := range l.entries {
			if (e.state == leased) != (i < l.next) {
				t.Fatalf("lane %s: entry %d has state %d, next is %d", l.channel.name, i, e.state, l.next)
			}
			if i > 0 && l.entries[i-1].seq >= e.seq {
				t.Fatalf("lane %s is out of order", l.channel.name)
			}
			if q.entries[e.id] != e {
				t.Fatalf("entry %d is in a lane only", e.id)
			}
			s := shares[e.sender]
			s.count, s.bytes = s.count+1, s.bytes+e.weight()
			if !e.critical {
				s.evictable++
			}
			shares[e.sender] = s
			bytes += e.weight()
			if e.state == leased {
				inHand++
			}
			if e.state == waiting {
				retrying++
			}
		}
	}
	if lanes != len(q.entries) || inHand != q.leased || retrying != q.retrying || bytes != q.bytes || len(shares) != len(q.senders) {
		t.Fatalf("%d in lanes, %d in all; %d leased, counted %d; %d retrying, counted %d; %d bytes, counted %d",
			lanes, len(q.entries), q.leased, inHand, q.retrying, retrying, q.bytes, bytes)
	}
	for sender, s := range shares {
		if *q.senders[sender] != s {
			t.Fatalf("sender %d has %+v, counted %+v", sender, *q.senders[sender], s)
		}
	}
}

// TestRoomIsMadeByTheLargest fills a queue at random and asks who has to go.
func TestRoomIsMadeByTheLargest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := newQueue(1, "qa")
		ch := &channel{id: 1}
		for i := range QueueSize {
			q.add(&entry{record: &record{
				id: int64(i + 1), channel: ch, seq: uint64(i + 1), sender: rapid.Int64Range(1, 4).Draw(t, "sender"),
				critical: rapid.IntRange(0, 9).Draw(t, "critical") > 6,
			}, queue: q, heap: -1})
		}
		m := &record{sender: rapid.Int64Range(1, 5).Draw(t, "new sender"), critical: rapid.Bool().Draw(t, "new critical")}
		size := func(sender int64) (n int) {
			if s := q.senders[sender]; s != nil {
				n = s.count
			}
			if sender == m.sender {
				n++
			}
			return n
		}
		v, ok := q.room(m)
		if !ok {
			for _, e := range q.entries {
				if !e.critical && (m.critical || size(e.sender) >= size(m.sender)) {
					t.Fatalf("refused although %d of sender %d could go", e.id, e.sender)
				}
			}
			return
		}
		if v.critical || !m.critical && size(v.sender) < size(m.sender) {
			t.Fatalf("victim %+v for %+v", v.record, m)
		}
		for _, e := range q.entries {
			if !e.critical && (size(e.sender) > size(v.sender) || e.sender == v.sender && e.id < v.id) {
				t.Fatalf("%d of sender %d went, although %d of sender %d is older or of a larger one", v.id, v.sender, e.id, e.sender)
			}
		}
	})
}
