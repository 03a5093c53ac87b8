package warden

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	auditproto "bulkhead/internal/audit/protocol"
	control "bulkhead/internal/control/protocol"
	front "bulkhead/internal/front/protocol"
	"bulkhead/internal/gateway/gatewayconfig"
	"bulkhead/internal/layout"
	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

// trustTick is how often gateways and front are told what to trust: three times
// within token.DefaultMaxAge, so that one that is missed closes nothing.
const trustTick = 10 * time.Second

// tokens passes an operator's request on to control, which is started when it
// never was. What changes what is trusted is told to every gateway before the
// operator is answered.
func (c *call) tokens() error {
	var req wire.TokensRequest
	if err := json.Unmarshal(c.body, &req); err != nil {
		return badInput("the request does not decode: "+err.Error(), "use the bulkhead program of the same build")
	}
	switch req.Verb {
	case control.VerbIssue:
		return passOn(c, req, func(q *control.Issue) error {
			q.By = c.uid
			place, err := c.w.tokenFor(q.Team, q.Agent)
			if err == nil {
				q.Team = place.Team
			}
			return err
		}, func(r *control.Issued, waiting []string) { r.Waiting = waiting })
	case control.VerbList:
		return passOn(c, req, func(*control.List) error { return nil }, (func(*control.Tokens, []string))(nil))
	case control.VerbRevoke:
		return passOn(c, req, func(*control.Revoke) error { return nil }, func(r *control.Revoked, waiting []string) { r.Waiting = waiting })
	case control.VerbRotate:
		return passOn(c, req, func(*control.Rotate) error { return nil }, func(r *control.Rotated, waiting []string) { r.Waiting = waiting })
	}
	return badInput(fmt.Sprintf("an operator may not ask %.40q of control", req.Verb), "use the bulkhead program of the same build")
}

// passOn checks a request, asks control, and with a spread tells every gateway.
func passOn[Q, R any](c *call, req wire.TokensRequest, check func(*Q) error, spread func(*R, []string)) error {
	var q Q
	if err := json.Unmarshal(req.Body, &q); err != nil {
		return badInput("the request does not decode: "+err.Error(), "use the bulkhead program of the same build")
	}
	if err := check(&q); err != nil {
		return err
	}
	s, err := c.w.ensureControl(c.ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.ctx, serviceAsk)
	defer cancel()
	var r R
	err = s.ask(ctx, req.Verb, q, &r)
	if spread != nil {
		c.w.controlDid(c.uid, req.Verb, err)
	}
	if err != nil {
		return err
	}
	if spread != nil {
		spread(&r, c.w.spreadTrust(c.ctx))
	}
	return c.conn.Send(c.id, wire.VerbResult, r)
}

// controlDid tells those who watch, and the log, what an operator changed. The
// token is in neither.
func (w *Warden) controlDid(uid uint32, verb string, err error) {
	r := record.Record{
		Agent: layout.ControlName, Kind: record.Secret, Verdict: record.Allowed, Target: "tokens: " + verb,
		Detail: "by the operator with user id " + strconv.FormatUint(uint64(uid), 10),
	}
	if err != nil {
		r.Verdict, r.Detail = record.Failed, r.Detail+": "+err.Error()
	}
	w.events.emit(r)
	w.log.Info("an operator asked control", "verb", verb, "uid", uid, "error", err)
}

// ensureControl gives control, which is made when nobody wanted it before.
func (w *Warden) ensureControl(ctx context.Context) (*service, error) {
	if s := w.service(layout.ControlName); s != nil {
		return s, s.outcome()
	}
	w.change.Lock()
	defer w.change.Unlock()
	if s := w.service(layout.ControlName); s != nil {
		return s, s.outcome()
	}
	if len(w.running()) == 0 {
		return nil, badInput("no team runs on this host", "bulkhead up")
	}
	s, err := w.foundService(ctx, layout.ControlName)
	if err == nil {
		err = w.applyTable(ctx)
	}
	if err == nil {
		err = s.startAnew(ctx)
	}
	return s, err
}

// watchTrust tells gateways and front again and again what to trust, as control
// says it at that moment: when control is away they stop taking tokens.
func (w *Warden) watchTrust() {
	w.owners.Go(func() {
		for w.ctx.Err() == nil {
			pause(w.ctx, trustTick)
			w.spreadTrust(w.ctx)
			w.witness(w.ctx)
		}
	})
}

// spreadTrust tells everybody who runs, side by side, and gives those who could
// not be told.
func (w *Warden) spreadTrust(ctx context.Context) (waiting []string) {
	s := w.service(layout.ControlName)
	if s == nil {
		return nil
	}
	var agents []*agentRun
	w.mu.Lock()
	for _, t := range w.teams {
		for _, a := range t.agents {
			if !t.state.Removing && !t.state.Agents[a.Place.Name].Stopped {
				agents = append(agents, a)
			}
		}
	}
	agents = append(agents, w.guestsLocked(func(g *guest) bool { return g.state == guestUp })...)
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, serviceAsk)
	defer cancel()
	req := control.TrustRequest{Gateways: []control.Gateway{}}
	for _, a := range agents {
		req.Gateways = append(req.Gateways, control.Gateway{Team: a.Place.Team, Agent: a.Place.Name})
	}
	var trusts control.Trusts
	err := s.ask(ctx, control.VerbTrust, req, &trusts)
	if err == nil && len(trusts.Gateways) != len(agents) {
		err = fmt.Errorf("control answered for %d gateways, not %d", len(trusts.Gateways), len(agents))
	}
	if err != nil {
		if ctx.Err() == nil {
			w.log.Warn("control does not say what to trust; tokens will be refused", "error", err)
		}
		return []string{"all gateways"}
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	told := func(who string, tell func() error) {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := tell(); err != nil && w.ctx.Err() == nil {
				mu.Lock()
				waiting = append(waiting, who)
				mu.Unlock()
			}
		})
	}
	if f := w.service(layout.FrontName); f != nil {
		told(layout.FrontName, func() error { return f.ask(ctx, front.VerbTrust, trusts.Front, nil) })
	}
	for i, a := range agents {
		told(a.Place.Team+"/"+a.Place.Name, func() error { return a.tellTrust(ctx, trusts.Gateways[i]) })
	}
	wg.Wait()
	return waiting
}

// tellTrust passes on what control said of this agent's gateway.
func (a *agentRun) tellTrust(ctx context.Context, trust json.RawMessage) error {
	c, err := dialWire(ctx, a.Place.GrantsSocket(), wire.GrantsProtocol, wire.GrantsVersion)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	var ok struct{}
	return ask(ctx, c, wire.VerbTrust, trust, &ok)
}

// serviceConfig writes into a gateway's config how it reaches the servers of
// this host, each by its own socket and token.
func (a *agentRun) serviceConfig(cfg *gatewayconfig.Config) {
	for _, name := range a.Services {
		s := a.w.service(name)
		if s == nil {
			continue
		}
		one := &gatewayconfig.Service{Socket: insideService + name + "/" + name + ".sock", Token: s.token(a.Place.Team, a.Place.Name)}
		switch name {
		case layout.FrontName:
			cfg.Front = one
		case layout.AuditName:
			cfg.Audit, cfg.Data = one, insideData
		case layout.TopicsName:
			cfg.Topics = one
		}
	}
}

// audit passes an operator's question on to audit.
func (c *call) audit() error {
	var req wire.AuditRequest
	if err := json.Unmarshal(c.body, &req); err != nil {
		return badInput("the request does not decode: "+err.Error(), "use the bulkhead program of the same build")
	}
	if req.Verb != auditproto.VerbTail && req.Verb != auditproto.VerbVerify {
		return badInput(fmt.Sprintf("an operator may not ask %.40q of audit", req.Verb), "use the bulkhead program of the same build")
	}
	s := c.w.service(layout.AuditName)
	if s == nil {
		return badInput("this host keeps no audit log", "write `audit: true` into bulkhead.yaml, and run bulkhead up; `bulkhead watch AGENT --since 1h` shows the calls that its gateway still keeps")
	}
	ctx, cancel := context.WithTimeout(c.ctx, operatorPatience)
	defer cancel()
	if req.Verb == auditproto.VerbVerify {
		heads, err := s.witnesses()
		if err != nil {
			return err
		}
		if req.Body, err = json.Marshal(auditproto.Verify{Witnesses: heads}); err != nil {
			return fmt.Errorf("warden: %w", err)
		}
	}
	var out json.RawMessage
	if err := s.ask(ctx, req.Verb, req.Body, &out); err != nil {
		return err
	}
	return c.conn.Send(c.id, wire.VerbResult, out)
}
