package warden

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	control "bulkhead/internal/control/protocol"
	"bulkhead/internal/deny"
	front "bulkhead/internal/front/protocol"
	"bulkhead/internal/host/ledger"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/hub"
	"bulkhead/internal/layout"
	"bulkhead/internal/record"
)

// Bounds of waking.
const (
	wakesAtOnce = 4 // started side by side
	placeWait   = 30 * time.Second
	placeTick   = 50 * time.Millisecond
	restTick    = 2 * time.Second
	settleTime  = 10 * time.Second // that a gateway may take until front has it
)

// wake makes a guest's gateway run, for which somebody with a token waits, and
// says so to front when it cannot.
func (w *Warden) wake(ctx context.Context, team, name string) {
	reason := w.wakeGuest(ctx, team, name)
	f := w.service(layout.FrontName)
	if f == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, serviceAsk)
	defer cancel()
	if err := f.ask(ctx, front.VerbWoken, front.Woken{Agent: front.Agent{Team: team, Name: name}, Reason: reason}, nil); err != nil && ctx.Err() == nil {
		w.log.Warn("front was not told of a guest", "team", team, "agent", name, "error", err)
	}
}

func (w *Warden) wakeGuest(ctx context.Context, team, name string) *deny.Reason {
	b, done, err := w.guestBook(team)
	if err != nil {
		return asleep(name, err.Error(), "`bulkhead status` shows whether the agent runs")
	}
	defer done()
	g := w.guest(b, name)
	if g == nil {
		return asleep(name, "the gateway of "+name+" is not there", "`bulkhead status` shows whether the agent runs")
	}
	if f := b.fence.Load(); f != nil {
		return asleep(name, "the guests of team "+team+" are fenced since "+f.Since.Format(time.RFC3339), "the operator: bulkhead release")
	}
	g.turn.Lock()
	defer g.turn.Unlock()
	w.mu.Lock()
	t, gone, up := w.teams[team], b.all[name] != g, g.state == guestUp
	w.mu.Unlock()
	if up && g.lives(ctx) {
		return nil
	}
	if up {
		if err := w.stopGuest(ctx, g); err != nil {
			return asleep(name, "what is left of its gateway cannot be ended", "the operator: the warden's log says why")
		}
	}
	switch {
	case gone || t == nil:
		return asleep(name, "it is not there any more", "make it anew")
	case t.manifest.Guests() == nil:
		return asleep(name, "the manifest has no guests any more", "the operator: state front.guests in bulkhead.yaml")
	}
	if more := t.manifest.Guests().Exceeded(g.Want); len(more) > 0 {
		return asleep(name, "the manifest gives guests less than it was made with: "+more[0].Path+": "+more[0].Problem, more[0].Mend)
	}
	if reason := w.placeFor(ctx, b, g, t.manifest.Guests().Awake); reason != nil {
		return reason
	}
	select {
	case w.wakes <- struct{}{}:
		defer func() { <-w.wakes }()
	case <-ctx.Done():
	}
	if err := w.startGuest(ctx, g); err != nil {
		w.log.Warn("a guest does not wake", "team", team, "agent", name, "error", err)
		g.event(record.Life, record.Failed, "", err.Error(), nil)
		if serr := w.stopGuest(ctx, g); serr != nil {
			w.log.Error("ending what did not wake", "team", team, "agent", name, "error", serr)
		}
		return asleep(name, "its gateway does not start", "try again; the operator: the warden's log says why")
	}
	return nil
}

func asleep(name, why, mend string) *deny.Reason {
	return &deny.Reason{Layer: deny.LayerTools, Code: deny.ToolUnavailable, What: name, Why: why, Mend: mend, RetryAfter: 1}
}

// placeFor waits until one more may run, for which another that is idle rests.
// The caller holds the guest's turn, and gets it in state guestMoving.
func (w *Warden) placeFor(ctx context.Context, b *guests, g *guest, most int64) *deny.Reason {
	ctx, cancel := context.WithTimeout(ctx, placeWait)
	defer cancel()
	for {
		w.mu.Lock()
		awake := int64(0)
		for _, o := range b.all {
			if o != g && o.state != guestAsleep {
				awake++
			}
		}
		if awake < most {
			g.state, g.since = guestMoving, time.Now()
			w.mu.Unlock()
			return nil
		}
		w.mu.Unlock()
		if w.restGuests(ctx, b, 0, 1, 0) == 0 {
			pause(ctx, placeTick)
		}
		if ctx.Err() != nil {
			return asleep(g.Place.Name, fmt.Sprintf("all %d guests that may run at a time are in use", most), "try again; or raise front.guests.awake in bulkhead.yaml")
		}
	}
}

// restGuests stops those that front has not called for so long, which run for
// at least settled, and says how many.
func (w *Warden) restGuests(ctx context.Context, b *guests, idle time.Duration, most int, settled time.Duration) int {
	f := w.service(layout.FrontName)
	if f == nil {
		return 0
	}
	q := front.Rest{Idle: idle, Most: most}
	w.mu.Lock()
	for _, g := range b.all {
		if g.state == guestUp && time.Since(g.since) >= settled {
			q.Agents = append(q.Agents, front.Agent{Team: g.Place.Team, Name: g.Place.Name})
		}
	}
	w.mu.Unlock()
	if len(q.Agents) == 0 {
		return 0
	}
	var out front.Rested
	actx, cancel := context.WithTimeout(ctx, serviceAsk)
	defer cancel()
	if err := f.ask(actx, front.VerbRest, q, &out); err != nil {
		return 0
	}
	for _, a := range out.Agents {
		g := w.guest(b, a.Name)
		if g == nil {
			continue
		}
		g.turn.Lock()
		w.mu.Lock()
		up := g.state == guestUp
		w.mu.Unlock()
		if up {
			// It goes on to the end, whoever waits for the place.
			if err := w.stopGuest(context.WithoutCancel(ctx), g); err != nil {
				w.log.Warn("a guest does not stop", "team", a.Team, "agent", a.Name, "error", err)
			}
		}
		g.turn.Unlock()
	}
	return len(out.Agents)
}

// lives says whether the gateway of one that is up still runs.
func (g *guest) lives(ctx context.Context) bool {
	g.procs.Lock()
	defer g.procs.Unlock()
	if g.launcher == nil || g.dials() && (g.dialer == nil || !g.dialer.alive()) {
		return false
	}
	running, err := g.running(ctx)
	return err == nil && running[gatewayName]
}

// startGuest brings the gateway up, from any state, or adopts it. Everything
// about it is as with any agent's: its own account cell, ids, disk, dialer and
// rules. The caller holds the guest's turn.
func (w *Warden) startGuest(ctx context.Context, g *guest) error {
	g.procs.Lock()
	defer g.procs.Unlock()
	if _, err := readJSON(runStatePath(g.Place), &g.run); err != nil {
		return err
	}
	if g.run.Digest != g.digest() || g.run.Token == "" {
		if err := g.takeDown(ctx); err != nil {
			return err
		}
		g.run = runState{Version: stateVersion, Digest: g.digest(), Build: w.build, Token: rand.Text()}
	}
	if err := g.guestFolders(ctx); err != nil {
		return err
	}
	if g.dials() {
		if err := w.applyTable(ctx); err != nil {
			return err
		}
		if err := g.ensureDialer(); err != nil {
			return err
		}
	}
	if err := g.ensureLauncher(ctx); err != nil {
		return err
	}
	if err := g.saveRun(); err != nil {
		return err
	}
	running, err := g.running(ctx)
	if err != nil {
		return err
	}
	if err := w.seatGuest(ctx, g, layout.AuditName); err != nil {
		return err
	}
	// With a place and a token there, and not admitted yet.
	if err := w.promiseSeat(g, layout.FrontName); err != nil {
		return err
	}
	if !running[gatewayName] {
		if err := g.startGateway(ctx); err != nil {
			return err
		}
	}
	// A revocation from here on reaches it as it does every gateway that runs;
	// those before are in what control says now. Front passes nothing on sooner.
	w.mu.Lock()
	g.state, g.since = guestUp, time.Now()
	w.mu.Unlock()
	trust, err := w.trustFor(ctx, g)
	if err != nil {
		return err
	}
	ready, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := g.tellTrust(ready, trust); err != nil {
		return fmt.Errorf("the gateway does not answer: %w", err)
	}
	if err := w.seatGuest(ctx, g, layout.FrontName); err != nil {
		return err
	}
	g.event(record.Life, record.Allowed, "", "awake", nil)
	return nil
}

// trustFor asks control what this gateway is to trust.
func (w *Warden) trustFor(ctx context.Context, g *guest) (json.RawMessage, error) {
	s := w.service(layout.ControlName)
	if s == nil {
		return nil, errors.New("control is not there")
	}
	ctx, cancel := context.WithTimeout(ctx, serviceAsk)
	defer cancel()
	var out control.Trusts
	err := s.ask(ctx, control.VerbTrust, control.TrustRequest{Gateways: []control.Gateway{{Team: g.Place.Team, Agent: g.Place.Name}}}, &out)
	if err == nil && len(out.Gateways) != 1 {
		err = errors.New("control did not say what to trust")
	}
	if err != nil {
		return nil, err
	}
	return out.Gateways[0], nil
}

// guestFolders makes what only one that runs has: its mounted disk and its
// folders of sockets.
func (g *guest) guestFolders(ctx context.Context) error {
	if err := g.stateFolder(); err != nil {
		return err
	}
	if err := g.ensureDisks(ctx); err != nil {
		return err
	}
	if err := g.guestData(); err != nil {
		return err
	}
	entries := []tree.Entry{
		{Path: g.Place.Logs(), Mode: 0o700},
		{Path: g.Place.Run, Mode: 0o711},
		{Path: g.Place.Control(), Mode: 0o700},
		{Path: g.Place.GatewayDir(), Mode: 0o711},
		{Path: g.Place.DialerDir(), Mode: 0o711},
		{Path: g.Place.PinDir(), Mode: 0o711},
		{Path: g.Place.Conf(), Mode: 0o755},
	}
	for _, name := range g.Services {
		entries = append(entries, tree.Entry{Path: g.Place.ServiceDir(name), Mode: 0o711})
	}
	if err := tree.MakeAll(entries...); err != nil {
		return err
	}
	company, err := companyOf(g.Want)
	if err != nil {
		return err
	}
	files, err := g.gatewayAuthorities(company)
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := tree.WriteFile(filepath.Join(g.Place.Conf(), name), []byte(content), 0o644, 0); err != nil {
			return err
		}
	}
	return nil
}

// guestData gives the gateway its folder on the disk.
func (g *guest) guestData() error {
	id := g.IDs.Gateway()
	owner, ok, err := tree.Owner(g.Place.Data())
	if err == nil && ok && owner != id {
		err = tree.Chown(g.Place.Data(), id, id)
	}
	if err != nil {
		return err
	}
	return tree.MakeAll(tree.Entry{Path: g.Place.Data(), UID: id, GID: id, Mode: 0o700})
}

// stopGuest ends everything that runs of a guest; its definition, ids and data
// stay. The caller holds its turn.
func (w *Warden) stopGuest(ctx context.Context, g *guest) error {
	w.mu.Lock()
	g.state, g.since = guestMoving, time.Now()
	w.mu.Unlock()
	w.unseatGuest(ctx, g)
	g.procs.Lock()
	defer g.procs.Unlock()
	if err := g.takeDown(ctx); err != nil {
		return err
	}
	if err := g.unmountGuest(); err != nil {
		return err
	}
	// Its profiles are made anew when it wakes: a thousand would stay in the kernel.
	if err := w.apparmor.Remove(g.Place.Team, g.Place.Name); err != nil {
		return err
	}
	if err := tree.Remove(g.Place.Run); err != nil {
		return err
	}
	w.mu.Lock()
	g.state, g.since = guestAsleep, time.Now()
	w.mu.Unlock()
	if g.dials() {
		if err := w.applyTable(ctx); err != nil {
			return err
		}
	}
	g.event(record.Life, record.Allowed, "", "asleep", nil)
	return nil
}

// unmountGuest takes the disk off. The ledger goes on naming the mount: it may
// be there again any moment.
func (g *guest) unmountGuest() error {
	defer g.w.disks.hold(g.Place)()
	for _, d := range g.w.wantedDisks(g.Place, g.Want) {
		if err := d.Unmount(); err != nil {
			return err
		}
	}
	return nil
}

// seatGuest has one of the host's servers know the gateway, by a socket of its
// own and a token, when the team has that server.
func (w *Warden) seatGuest(ctx context.Context, g *guest, name string) error {
	s := w.service(name)
	if s == nil || !slices.Contains(g.Services, name) {
		return nil
	}
	s.procs.Lock()
	defer s.procs.Unlock()
	m, err := s.promise(g)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	s.mu.Lock()
	members := maps.Clone(s.wants.members)
	members[m.Key()] = m
	s.wants.members = members
	s.mu.Unlock()
	w.mu.Lock()
	g.seats = append(slices.DeleteFunc(slices.Clone(g.seats), func(x string) bool { return x == name }), name)
	w.mu.Unlock()
	if problem, err := socketProblem(g.Place.ServiceSocket(name), m.GatewayID); problem == "" && err == nil {
		return nil // an adopted gateway's: it is as it should be
	}
	ctx, cancel := context.WithTimeout(ctx, serviceAsk)
	defer cancel()
	if err := s.admit(ctx, m); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// promiseSeat makes the token that the gateway will show.
func (w *Warden) promiseSeat(g *guest, name string) error {
	s := w.service(name)
	if s == nil || !slices.Contains(g.Services, name) {
		return nil
	}
	s.procs.Lock()
	defer s.procs.Unlock()
	_, err := s.promise(g)
	return err
}

func (w *Warden) unseatGuest(ctx context.Context, g *guest) {
	w.mu.Lock()
	g.seats = nil
	w.mu.Unlock()
	for _, name := range g.Services {
		if s := w.service(name); s != nil {
			if err := s.unseat(ctx, hub.Member{Team: g.Place.Team, Agent: g.Place.Name}); err != nil && ctx.Err() == nil {
				w.log.Warn("a server still knows a guest that sleeps", "server", name, "agent", g.Place.Name, "error", err)
			}
		}
	}
}

// promise gives the guest as a member, with the token that it has or a new one.
// The caller holds s.procs.
func (s *service) promise(g *guest) (hub.Member, error) {
	m := hub.Member{Team: g.Place.Team, Agent: g.Place.Name, GatewayID: g.IDs.Gateway()}
	s.mu.Lock()
	token, tokens := s.tokens[m.Key()], maps.Clone(s.tokens)
	s.mu.Unlock()
	if token == "" {
		var raw [32]byte
		_, _ = rand.Read(raw[:]) // never fails (crypto/rand)
		token = hex.EncodeToString(raw[:])
		tokens[m.Key()] = token
		if err := writeJSON(s.place.Tokens(), serviceTokens{Version: stateVersion, Tokens: tokens}); err != nil {
			return m, err
		}
		s.mu.Lock()
		s.tokens = tokens
		s.mu.Unlock()
	}
	m.TokenHash = hub.HashToken(token)
	return m, nil
}

func (s *service) unseat(ctx context.Context, m hub.Member) error {
	s.procs.Lock()
	defer s.procs.Unlock()
	s.mu.Lock()
	tokens, members := maps.Clone(s.tokens), maps.Clone(s.wants.members)
	delete(tokens, m.Key())
	delete(members, m.Key())
	s.tokens, s.wants.members = tokens, members
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, serviceAsk)
	defer cancel()
	return s.ask(ctx, hub.VerbExpel, m, nil)
}

// adoptGuests goes on with those that a former warden left running.
func (w *Warden) adoptGuests(team string) {
	w.mu.Lock()
	var left []*guest
	for _, g := range w.guestsOfLocked(team) {
		if w.ledger.Has(ledger.RunDir, g.Place.Run) {
			left = append(left, g)
		}
	}
	w.mu.Unlock()
	for _, g := range slices.SortedFunc(slices.Values(left), func(x, y *guest) int { return x.file.Place - y.file.Place }) {
		var run runState
		if ok, err := readJSON(runStatePath(g.Place), &run); err != nil || !ok {
			continue
		}
		w.owners.Go(func() { w.wake(w.ctx, team, g.Place.Name) })
	}
}

// watchGuests does what front has to do for guests, and has those rest that
// nobody calls.
func (w *Warden) watchGuests() {
	w.owners.Go(func() {
		for w.ctx.Err() == nil {
			pause(w.ctx, restTick)
			for name, idle := range w.guestTeams() {
				b, done, err := w.guestBook(name)
				if err != nil {
					continue
				}
				w.restGuests(w.ctx, b, idle, layout.GuestRanges, settleTime)
				done()
			}
		}
	})
	w.owners.Go(func() { w.watchFront(w.ctx) })
}

// guestTeams are the teams with guests, and how long one may be idle; without a
// ceiling not at all.
func (w *Warden) guestTeams() map[string]time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]time.Duration{}
	for name := range w.guests {
		if t := w.teams[name]; t != nil {
			out[name] = 0
			if g := t.manifest.Guests(); g != nil {
				out[name] = g.Idle
			}
		}
	}
	return out
}
