package store

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// membersModel is what should be of one channel: who is in it, which requests
// wait, and how many are over. Steps are taken one after the other, so after a
// crash the store is as the model was before the step at work, or after it.
type membersModel struct {
	members map[string]bool
	open    map[string]MembershipRequest // by agent
	over    int
}

const modelled = "product"

func newMembersModel() *membersModel {
	m := &membersModel{members: map[string]bool{}, open: map[string]MembershipRequest{}}
	for _, name := range seven().Channels[modelled] {
		m.members[name] = true
	}
	return m
}

func (m *membersModel) clone() *membersModel {
	return &membersModel{members: maps.Clone(m.members), open: maps.Clone(m.open), over: m.over}
}

// String leaves numbers of requests out: one whose answer was lost has a number that nobody was told.
func (m *membersModel) String() string {
	s := fmt.Sprint(slices.Sorted(maps.Keys(m.members)), m.over)
	for _, agent := range slices.Sorted(maps.Keys(m.open)) {
		s += " " + agent + " " + string(m.open[agent].Change)
	}
	return s
}

// step is one call. after is what it makes of the model.
type step struct {
	call
	after *membersModel
}

func (m *membersModel) next(rng *rand.Rand) step {
	agents := slices.Sorted(maps.Keys(seven().Agents))
	agent := agents[rng.IntN(len(agents))]
	after := m.clone()
	r, waits := m.open[agent]
	if !waits {
		q := joins(modelled, agent)
		if m.members[agent] {
			q = leaves(modelled, agent)
		}
		after.open[agent] = MembershipRequest{ChannelRequest: q}
		return step{call{Agent: "orchestrator", Ask: &q}, after}
	}
	delete(after.open, agent)
	after.over++
	approve := rng.IntN(3) > 0
	switch {
	case approve && r.Change == Join:
		after.members[agent] = true
	case approve:
		delete(after.members, agent)
	}
	return step{call{Decide: r.ID, Approve: approve}, after}
}

// found reads the model back from a store. That each request that is over has
// been told to who asked, once, is part of it.
func found(t *testing.T, a *Adapter) *membersModel {
	t.Helper()
	m := &membersModel{members: map[string]bool{}, open: map[string]MembershipRequest{}}
	all, err := a.Members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		for _, name := range c.Members {
			if c.Channel == modelled {
				m.members[name] = true
			}
		}
	}
	if err := a.read(t.Context(), "", func(c *conn) (err error) {
		n, err := c.integer("SELECT coalesce(max(id), 0) FROM request")
		m.over = int(n)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	rs, err := a.Requests(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rs {
		m.open[r.Agent] = r
	}
	m.over -= len(m.open)
	told := 0
	for from := uint64(1); from > 0; {
		p, err := a.Replay(t.Context(), "orchestrator", ReplayRequest{Channel: Direct(System, "orchestrator"), From: from, Limit: maxPage})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range p.Messages {
			if x.Type == ChannelDecided {
				told++
			}
		}
		from = p.Next
	}
	if told != m.over {
		t.Errorf("%d requests are over, %d were told", m.over, told)
	}
	return m
}

// What was answered of requests and decisions is there after kill -9, what was
// not is there as a whole or not at all.
func TestApprovedChangesSurviveKill9(t *testing.T) {
	kills := 60
	if testing.Short() {
		kills = 8
	}
	path := filepath.Join(t.TempDir(), "messages.db")
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	m := newMembersModel()
	for kill := range kills {
		r := spawn(t, path)
		select {
		case <-r.asked[-1]:
		case <-r.gone:
			t.Fatalf("the adapter did not start before kill %d: %v", kill, r.cmd.Wait())
		}
		timer := time.AfterFunc(time.Duration(rng.Int64N(int64(20*time.Millisecond))), func() { _ = r.cmd.Process.Kill() })
		var s step
		for {
			s = m.next(rng)
			x, err := r.ask(s.call)
			if err != nil {
				break
			}
			if x.Reasons[0] != nil {
				t.Fatalf("%+v: %v", s.call, x.Reasons[0])
			}
			m = s.after
			if s.Ask != nil {
				m.open[s.Ask.Agent] = x.Request
			}
		}
		timer.Stop()
		r.kill()
		a, err := Open(t.Context(), Config{Path: path, Policy: seven(), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		got := found(t, a)
		if got.String() != m.String() && got.String() != s.after.String() {
			t.Fatalf("kill %d: %s, want %s or %s", kill, got, m, s.after)
		}
		// What is in force is what is on disk.
		for agent := range seven().Agents {
			if err := a.Send(context.Background(), agent, []Draft{post(modelled, "x")})[0].Err; (err == nil) != got.members[agent] {
				t.Errorf("kill %d: %s sends: %v, a member: %v", kill, agent, err, got.members[agent])
			}
			for {
				ds, err := a.Receive(t.Context(), agent, ReceiveRequest{Max: maxReceive})
				if err != nil || len(ds) == 0 {
					break
				}
				a.Ack(t.Context(), agent, leases(ds))
			}
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		m = got
	}
	t.Logf("%d kills, %d requests over", kills, m.over)
}

func TestApprovedChangesSurviveAPowerFailure(t *testing.T) {
	points := 300
	if testing.Short() {
		points = 40
	}
	path := filepath.Join(t.TempDir(), "messages.db")
	d := newDisk(nil)
	a, free, err := openOn(t, path, d)
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 0))
	type answered struct {
		at    int // changes of the disk when it was answered
		model *membersModel
	}
	m := newMembersModel()
	history := []answered{{d.position(), m}}
	for range 60 {
		s := m.next(rng)
		var r MembershipRequest
		if s.Ask != nil {
			r, err = a.RequestMembership(t.Context(), s.Agent, *s.Ask)
		} else {
			_, err = a.Decide(t.Context(), s.Decide, s.Approve, "")
		}
		if err != nil {
			t.Fatal(err)
		}
		if m = s.after; s.Ask != nil {
			m.open[s.Ask.Agent] = r
		}
		history = append(history, answered{d.position(), m})
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	free()
	places := make([]int, points)
	for i := range places {
		places[i] = rng.IntN(len(d.log) + 1)
	}
	slices.Sort(places)
	all := d.replay()
	for _, at := range places {
		left := newDisk(all.crash(at, rng))
		b, free, err := openOn(t, path, left)
		if err != nil {
			t.Fatalf("seed %d, change %d: %v", seed, at, err)
		}
		got := found(t, b).String()
		// The last that was answered before the power failed, or the one that was at work.
		i, _ := slices.BinarySearchFunc(history, at+1, func(x answered, at int) int { return x.at - at })
		i = max(i-1, 0)
		if got != history[i].model.String() && (i+1 == len(history) || got != history[i+1].model.String()) {
			t.Errorf("seed %d, change %d: %s, want %s or what follows it", seed, at, got, history[i].model)
		}
		_ = b.Close()
		free()
		if t.Failed() {
			return
		}
	}
}
