package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/identity"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// grants are the manifest's destinations and the temporary ones beside them.
type grants struct {
	manifest *dial.Policy
	runtime  uint32
	now      atomic.Pointer[dial.Policy]
	trust    func(json.RawMessage) error // takes wire.VerbTrust
	news     *news
	// govern answers what is asked of approvals.
	govern    func(ctx context.Context, verb string, body json.RawMessage) (any, error)
	governing chan struct{} // a place for each that is under way

	mu   sync.Mutex // guards list, and changes of now
	list []wire.Grant
}

func newGrants(c *Config) *grants {
	g := &grants{
		manifest: dial.NewPolicy(&team.Agent{Name: c.Agent, Egress: c.Egress, Hosts: c.Hosts}), runtime: c.RuntimeID,
		governing: make(chan struct{}, maxGoverning),
	}
	g.set(c.Grants)
	return g
}

func (g *grants) policy() *dial.Policy { return g.now.Load() }

func (g *grants) set(list []wire.Grant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.list = slices.Clone(list)
	g.now.Store(g.manifest.With(g.list))
}

// use is called for each connection to be made. A grant for one connection is
// used up here, before the connection is made: two at once must not both pass.
func (g *grants) use(host string, port uint16) *deny.Reason {
	p := g.policy()
	one, ok := p.Granted(host, port)
	if !ok {
		// The manifest lists it, or another connection has used the grant up
		// since this one was checked.
		_, reason := p.Check(host, port)
		return reason
	}
	if !one.Once {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if one, ok = g.now.Load().Granted(host, port); !ok {
		_, reason := g.now.Load().Check(host, port)
		return reason
	}
	for i := range g.list {
		if g.list[i].Target == one.Target {
			g.list[i].Spent = true
		}
	}
	g.now.Store(g.manifest.With(g.list))
	return nil
}

// serve takes the warden's word until ctx ends.
func (g *grants) serve(ctx context.Context, ln *net.UnixListener) {
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	var watches sync.WaitGroup
	defer watches.Wait()
	for {
		c, err := ln.AcceptUnix()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			time.Sleep(20 * time.Millisecond) // until descriptors are free again
			continue
		}
		// One at a time, but what takes long: there is one warden.
		_ = c.SetDeadline(time.Now().Add(peekTimeout))
		g.take(ctx, wire.New(c), &watches)
	}
}

// Times of an answer to an operator, whose question writes to the disk. The warden waits
// longer than governTime (internal/host/warden, governAsk): it hears that nothing was done.
const (
	governTime = 12 * time.Second
	answerTime = 5 * time.Second // to send it
	// maxGoverning bounds the operators' questions under way.
	maxGoverning = 16
)

// answer answers a question of [toolbox.govern]. Its time begins when the question is
// there: what was decided must not be lost to a deadline that ended meanwhile.
func (g *grants) answer(ctx context.Context, c *wire.Conn, m wire.Message) {
	_ = c.Unix().SetDeadline(time.Now().Add(governTime + answerTime))
	ctx, cancel := context.WithTimeout(ctx, governTime)
	defer cancel()
	answer, err := g.govern(ctx, m.Verb, m.Body)
	if err != nil {
		_ = c.Send(m.ID, wire.VerbError, failureOf(err))
		return
	}
	_ = c.Send(m.ID, wire.VerbOK, answer)
}

func (g *grants) take(ctx context.Context, c *wire.Conn, watches *sync.WaitGroup) {
	kept := false
	defer func() {
		if !kept {
			_ = c.Close()
		}
	}()
	// Root is the overflow id inside, since no container has id 0. The socket
	// lies where nobody else comes; this keeps our own ids out all the same.
	peer, err := identity.PeerOf(c.Unix())
	if err != nil || peer.UID != 0 && peer.UID != identity.Overflow {
		return
	}
	if _, err := c.Greet(wire.GrantsProtocol, wire.GrantsVersion); err != nil {
		return
	}
	m, files, err := c.Recv()
	for _, f := range files {
		_ = f.Close()
	}
	if err != nil {
		return
	}
	if m.Verb == wire.VerbTrust {
		err := g.trust(m.Body)
		if err != nil {
			_ = c.Send(m.ID, wire.VerbError, wire.Failure{Message: err.Error()})
			return
		}
		_ = c.Send(m.ID, wire.VerbOK, struct{}{})
		return
	}
	if m.Verb == wire.VerbWatch && g.news != nil {
		kept = g.news.serve(ctx, c, m, watches)
		return
	}
	if governs(m.Verb) && g.govern != nil {
		select {
		case g.governing <- struct{}{}:
		default:
			_ = c.Send(m.ID, wire.VerbError, wire.Failure{Message: "the gateway answers as many operators as it does at a time; nothing was done", Mend: "try again", Exit: wire.ExitFailed})
			return
		}
		kept = true
		watches.Go(func() {
			defer func() { _ = c.Close(); <-g.governing }()
			g.answer(ctx, c, m)
		})
		return
	}
	var q wire.Grants
	if err := json.Unmarshal(m.Body, &q); err != nil || m.Verb != wire.VerbGrants {
		_ = c.Send(m.ID, wire.VerbError, wire.Failure{Message: fmt.Sprintf("gateway: %.40q is not the verb grants, or its body does not decode", m.Verb)})
		return
	}
	g.set(q.Grants)
	_ = c.Send(m.ID, wire.VerbOK, struct{}{})
}
