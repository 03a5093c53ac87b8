package warden

import (
	"context"
	"crypto/rand"
	"fmt"
	"path/filepath"
	"time"

	"bulkhead/internal/deny"
	front "bulkhead/internal/front/protocol"
	"bulkhead/internal/host/tree"
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
	if reason := g.fenced(b); reason != nil {
		return reason
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
	// Whoever fenced it since does not see it sleep any more, and waits for its turn.
	if reason := g.fenced(b); reason != nil {
		w.mu.Lock()
		g.state, g.since = guestAsleep, time.Now()
		w.mu.Unlock()
		return reason
	}
	select {
	case w.wakes <- struct{}{}:
		defer func() { <-w.wakes }()
	case <-ctx.Done():
	}
	if err := w.startGuest(ctx, b, g); err != nil {
		w.log.Warn("a guest does not wake", "team", team, "agent", name, "error", err)
		g.event(record.Life, record.Failed, "", err.Error(), nil)
		if serr := w.stopGuest(ctx, g); serr != nil {
			w.log.Error("ending what did not wake", "team", team, "agent", name, "error", serr)
		}
		if reason := g.fenced(b); reason != nil {
			return reason
		}
		return asleep(name, "its gateway does not start", "try again; the operator: the warden's log says why")
	}
	return nil
}

// fenced says that the guest may not act; nil: it may.
func (g *guest) fenced(b *guests) *deny.Reason {
	if f := g.fence.Load(); f != nil {
		return asleep(g.Place.Name, "it is fenced since "+f.Since.Format(time.RFC3339), "the operator: bulkhead release "+g.Place.Name)
	}
	if f := b.fence.Load(); f != nil {
		return asleep(g.Place.Name, "the guests of team "+g.Place.Team+" are fenced since "+f.Since.Format(time.RFC3339), "the operator: bulkhead release --guests")
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

// startGuest brings the gateway up, from any state, or adopts it. Everything
// about it is as with any agent's: its own account cell, ids, disk, dialer and
// rules. The caller holds the guest's turn.
func (w *Warden) startGuest(ctx context.Context, b *guests, g *guest) error {
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
	}
	if err := g.unlessFenced(b, func() error { return g.ensureFirst(ctx, g.dials()) }); err != nil {
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
		if err := g.unlessFenced(b, func() error { return g.startGateway(ctx) }); err != nil {
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
	g.startHearing()
	g.event(record.Life, record.Allowed, "", "awake", nil)
	return nil
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
