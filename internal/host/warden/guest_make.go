package warden

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	control "bulkhead/internal/control/protocol"
	"bulkhead/internal/deny"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/layout"
	"bulkhead/internal/record"
)

// guestMade is the answer to POST.
type guestMade struct {
	SchemaVersion int    `json:"schemaVersion"`
	Team          string `json:"team"`
	Name          string `json:"name"`
	Created       bool   `json:"created"`
	// Token is given once. Without one there is a token already, and Mend says how
	// to get another.
	Token     string     `json:"token,omitempty"`
	TokenID   string     `json:"tokenId,omitempty"`
	ExpiresIn int64      `json:"expiresIn,omitempty"` // seconds
	Expires   *time.Time `json:"expires,omitempty"`
	Mend      string     `json:"mend,omitempty"`
}

// makeGuest makes a guest, or finds the one that an earlier request made, and
// gives it a token when it has none.
func (w *Warden) makeGuest(ctx context.Context, b *guests, s, f *service, o control.AdminOrder, key string) (int, any, *deny.Reason, error) {
	name := o.Guest.Agent.Name
	g, made, reason, err := w.claimGuest(b, o, key)
	if reason != nil || err != nil {
		return 0, nil, reason, err
	}
	g.turn.Lock()
	defer g.turn.Unlock()
	if made {
		if reason, err := w.clearGuest(ctx, b, g); reason != nil || err != nil {
			return 0, nil, reason, err
		}
		if err := w.buildGuest(ctx, g); err != nil {
			derr := w.razeGuest(ctx, b, g)
			if full(err) {
				return 0, nil, &deny.Reason{Layer: deny.LayerQuota, Code: deny.ToolQuota, Why: "the host's disk has no room for it", Mend: "ask for less tools.storage and tools.memory; or the operator frees some space"}, derr
			}
			return 0, nil, nil, errors.Join(err, derr)
		}
	} else if w.guest(b, name) != g {
		return 0, nil, conflict("it was removed, or could not be made, at this moment", "ask again"), nil
	}
	out := guestMade{SchemaVersion: 1, Team: o.Team, Name: name, Created: made}
	ctx, cancel := context.WithTimeout(ctx, serviceAsk)
	defer cancel()
	if !made {
		var have control.Tokens
		if err := s.ask(ctx, control.VerbList, control.List{Team: o.Team, Agent: name}, &have); err != nil {
			return 0, nil, nil, err
		}
		switch {
		case len(have.Tokens) > 0 && !o.Guest.NewToken:
			out.Mend = `it has a token, which was given once; "newToken": true ends it and gives another`
			return statusOK, out, nil, nil
		case len(have.Tokens) > 0:
			if err := w.revokeGuest(ctx, s, o.Team, name); err != nil {
				return 0, nil, nil, err
			}
		}
	}
	if reason := g.fenced(b); reason != nil {
		return 0, nil, reason, nil
	}
	var t control.Issued
	if err := s.ask(ctx, control.VerbIssue, control.Issue{Team: o.Team, Agent: name, For: o.Guest.For, By: f.uid}, &t); err != nil {
		return 0, nil, nil, err
	}
	out.Token, out.TokenID, out.Expires, out.ExpiresIn = t.Token, t.ID, &t.Expires, int64(time.Until(t.Expires).Round(time.Second)/time.Second)
	if made {
		g.event(record.Life, record.Allowed, "", "made through front", nil)
		w.log.Info("a guest was made", "team", o.Team, "agent", name, "ids", g.IDs.String())
		return statusCreated, out, nil, nil
	}
	return statusOK, out, nil, nil
}

// revokeGuest ends all tokens of a guest, as of now wherever they are looked at.
func (w *Warden) revokeGuest(ctx context.Context, s *service, team, name string) error {
	var r control.Revoked
	if err := s.ask(ctx, control.VerbRevoke, control.Revoke{Team: team, Agent: name}, &r); err != nil {
		return err
	}
	if waiting := w.spreadTrust(ctx); len(waiting) > 0 {
		w.log.Warn("tokens of a guest were revoked, and some were not told; they refuse every token before long", "team", team, "agent", name, "waiting", waiting)
	}
	return nil
}

// claimGuest finds the guest of a request, or takes name, key and a place for a
// new one. What control said is held against the manifest once more: control
// may narrow it, never widen.
func (w *Warden) claimGuest(b *guests, o control.AdminOrder, key string) (g *guest, made bool, reason *deny.Reason, err error) {
	if o.Guest == nil || o.Guest.Agent == nil || o.Guest.Agent.Tools == nil {
		return nil, false, nil, errors.New("control ordered a guest that is none")
	}
	want := o.Guest.Agent
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.teams[o.Team]
	if t == nil || t.manifest.Guests() == nil {
		return nil, false, nil, fmt.Errorf("control ordered a guest for team %q, whose manifest has none", o.Team)
	}
	ceiling := t.manifest.Guests()
	// As its code reads it, and no field more.
	if more := ceiling.Exceeded(want); len(more) > 0 || !want.PlainGuest() {
		return nil, false, nil, fmt.Errorf("control ordered more than the manifest gives guests: %s", more.Error())
	}
	want.Upstream, want.CAFiles = ceiling.Upstream, ceiling.CAFiles
	if b.fence.Load() != nil {
		return nil, false, &deny.Reason{Layer: deny.LayerTools, Code: deny.ToolUnavailable, Why: "the guests of this team are fenced", Mend: "the operator: bulkhead release"}, nil
	}
	if t.manifest.Agent(want.Name) != nil {
		return nil, false, conflict(want.Name+" is an agent of the manifest", "choose another name"), nil
	}
	if old := b.all[want.Name]; old != nil {
		if !old.file.same(want) {
			return nil, false, conflict("a guest "+want.Name+" was made from another request", "remove it first: DELETE /admin/agents/"+want.Name), nil
		}
		if old.fence.Load() != nil {
			return nil, false, old.fenced(b), nil
		}
		return old, false, nil, nil
	}
	if int64(len(b.all)) >= ceiling.Max {
		return nil, false, &deny.Reason{Layer: deny.LayerTools, Code: deny.ToolQuota, Why: fmt.Sprintf("there are %d guests already", ceiling.Max), Mend: "remove some; or raise front.guests.max in bulkhead.yaml"}, nil
	}
	for _, x := range b.all {
		if key != "" && x.file.Key == key {
			return nil, false, conflict("the Idempotency-Key was used for the guest "+x.Place.Name, "use a new key for another guest"), nil
		}
	}
	at, err := w.guestPlaceLocked(-1)
	if err != nil {
		return nil, false, nil, err
	}
	g = w.newGuest(t, guestFile{Version: stateVersion, Place: at, Made: time.Now().UTC().Truncate(time.Second), Key: key, Agent: want})
	b.all[want.Name] = g
	return g, true, nil, nil
}

// clearGuest removes what a crash left of a guest of that name. Data that is an
// agent's, which the manifest had once, is nobody else's: then there is no guest
// of that name. The caller holds its turn.
func (w *Warden) clearGuest(ctx context.Context, b *guests, g *guest) (*deny.Reason, error) {
	drop := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(b.all, g.Place.Name)
	}
	if _, ok, err := tree.Owner(g.Place.State); err != nil || !ok {
		if err != nil {
			drop()
		}
		return nil, err
	}
	rest, err := leftOfGuest(g.Place)
	if err != nil || !rest {
		drop()
		return conflict("data of an agent "+g.Place.Name+" that the manifest had once are kept on this host", "choose another name; or the operator removes them"), err
	}
	if _, _, err := w.dismiss(ctx, g.Place, true); err != nil {
		drop()
		return nil, err
	}
	return nil, nil
}

// leftOfGuest says whether a state folder is what a crash left of a guest: one
// with the mark, or one in which there is nothing yet, not even the whole mark.
func leftOfGuest(place layout.Agent) (bool, error) {
	if _, marked, err := tree.Owner(place.GuestMark()); err != nil || marked {
		return marked, err
	}
	names, err := os.ReadDir(place.State)
	if err != nil {
		return false, fmt.Errorf("warden: %w", err)
	}
	return !slices.ContainsFunc(names, func(e os.DirEntry) bool { return !strings.HasPrefix(e.Name(), ".") }), nil
}

// buildGuest makes what a guest has while it sleeps: its ids in the ledger, its
// disk, and the file that says it is there, last. The caller holds its turn.
func (w *Warden) buildGuest(ctx context.Context, g *guest) error {
	var need int64
	for _, d := range w.wantedDisks(g.Place, g.Want) {
		need += d.size.Bytes
	}
	free, err := freeOn(w.host.State)
	if err != nil {
		return err
	}
	if need > free-minRoom {
		return fmt.Errorf("its disk takes %d MiB of the %d that are free: %w", need>>20, free>>20, errFull)
	}
	if err := w.ledger.Announce(g.idRange()); err != nil {
		return err
	}
	if err := g.stateFolder(); err != nil {
		return err
	}
	if err := writeJSON(g.Place.GuestMark(), g.file); err != nil {
		return err
	}
	if err := g.ensureDisks(ctx); err != nil {
		return err
	}
	if err := errors.Join(g.guestData(), g.unmountGuest()); err != nil {
		return err
	}
	if err := writeJSON(g.Place.GuestFile(), g.file); err != nil {
		return err
	}
	return tree.Remove(g.Place.GuestMark())
}

// deleteGuest removes a guest with its data. Its tokens end first.
func (w *Warden) deleteGuest(ctx context.Context, b *guests, s *service, o control.AdminOrder) (*deny.Reason, error) {
	g := w.guest(b, o.Name)
	if g == nil {
		return noGuest(o.Name), nil
	}
	g.turn.Lock()
	defer g.turn.Unlock()
	if w.guest(b, o.Name) != g {
		return noGuest(o.Name), nil
	}
	if reason := g.fenced(b); reason != nil {
		return reason, nil
	}
	actx, cancel := context.WithTimeout(ctx, serviceAsk)
	defer cancel()
	if err := w.revokeGuest(actx, s, o.Team, o.Name); err != nil {
		return nil, err
	}
	if reason := g.remove(b); reason != nil {
		return reason, nil // its tokens have ended, which no fence minds
	}
	// From here on it goes on to the end.
	if err := w.razeGuest(context.WithoutCancel(ctx), b, g); err != nil {
		return nil, err
	}
	w.log.Info("a guest was removed", "team", o.Team, "agent", o.Name)
	return nil, nil
}

// razeGuest removes everything of a guest. The file that says it is there goes
// first, and what is left after a crash goes by the mark. The caller holds its
// turn.
func (w *Warden) razeGuest(ctx context.Context, b *guests, g *guest) error {
	w.mu.Lock()
	asleep := g.state == guestAsleep
	w.mu.Unlock()
	if !asleep {
		if err := w.stopGuest(ctx, g); err != nil {
			return err
		}
	}
	if _, ok, err := tree.Owner(g.Place.State); err != nil {
		return err
	} else if ok {
		if err := writeJSON(g.Place.GuestMark(), g.file); err != nil {
			return err
		}
	}
	if err := tree.Remove(g.Place.GuestFile()); err != nil {
		return err
	}
	if _, _, err := w.dismiss(ctx, g.Place, true); err != nil {
		return err
	}
	if err := w.forgetIDs(g.Place.Team, g.Place.Name); err != nil {
		return err
	}
	w.mu.Lock()
	delete(b.all, g.Place.Name)
	w.mu.Unlock()
	return nil
}
