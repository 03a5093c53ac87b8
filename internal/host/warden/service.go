package warden

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"

	"bulkhead/internal/host/account"
	"bulkhead/internal/host/ledger"
	"bulkhead/internal/host/nft"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/hub"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
	"bulkhead/internal/topic"
)

// service is one of the host's own servers (layout.ServiceNames) and its
// owner. It lives from the first team that wants it to the last.
type service struct {
	w     *Warden
	place layout.Service
	uid   uint32 // of its account

	// procs serialises everything that starts, stops or tells its process.
	procs   sync.Mutex
	process *process

	mu       sync.Mutex // guards what follows
	wants    serviceWants
	tokens   map[string]string // by hub.Member.Key
	owned    bool              // it should run
	restarts int
	problem  string // why it does not run although it should
	cancel   context.CancelFunc
	done     chan struct{} // closed when the owner has ended
	settled  chan struct{} // closed when the owner's first attempt is over
}

// serviceWants is what a running server should be told, and whom it should
// know.
type serviceWants struct {
	guests   map[string]*team.Guests // by team
	members  map[string]hub.Member
	fronts   map[netip.AddrPort]*team.Front
	teams    map[netip.AddrPort][]string // that listen there
	accepted []string
	topics   map[string]topic.Policy // by team
}

// serviceTokens is the file of tokens, root's alone.
type serviceTokens struct {
	Version int               `json:"version"`
	Tokens  map[string]string `json:"tokens"`
}

// serviceRequest describes a server's account. It owns no range of ids.
func serviceRequest(p layout.Service) account.Request {
	return account.Request{Name: p.Account, Home: "/nonexistent", System: true}
}

// wanted says which servers the teams of this host want. Control is there once
// a token was asked for, and with front, which could let nobody in without it.
// The caller holds w.mu.
func (w *Warden) wantedLocked() map[string]bool {
	out := map[string]bool{}
	for _, t := range w.teams {
		if t.state.Removing {
			continue
		}
		for _, name := range t.manifest.Services() {
			out[name] = true
		}
		out[layout.ControlName] = out[layout.ControlName] || t.manifest.Front != nil
	}
	if len(w.teams) > 0 && w.ledger.Has(ledger.StateDir, w.host.Service(layout.ControlName).State) {
		out[layout.ControlName] = true
	}
	return out
}

// foundServices gives the servers that are wanted their accounts and folders,
// and ends those that are not any more. The caller holds w.change.
func (w *Warden) foundServices(ctx context.Context) error {
	w.mu.Lock()
	wanted := w.wantedLocked()
	w.mu.Unlock()
	for _, name := range layout.ServiceNames() {
		if !wanted[name] {
			if _, err := w.dropService(ctx, name); err != nil {
				return err
			}
			continue
		}
		if _, err := w.foundService(ctx, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (w *Warden) service(name string) *service {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.services[name]
}

func (w *Warden) foundService(ctx context.Context, name string) (*service, error) {
	s := w.service(name)
	if s == nil {
		s = &service{w: w, place: w.host.Service(name), tokens: map[string]string{}}
	}
	u, _, err := w.accounts.Ensure(ctx, serviceRequest(s.place))
	if err != nil {
		return nil, err
	}
	s.uid = u.UID
	if err := s.folders(); err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.services[name] = s
	w.mu.Unlock()
	return s, s.want()
}

// folders makes the server's folders; only its data belong to it.
func (s *service) folders() error {
	if err := s.w.ledger.Announce(
		ledger.Thing{Kind: ledger.StateDir, Name: s.place.State},
		ledger.Thing{Kind: ledger.RunDir, Name: s.place.Run},
		ledger.Thing{Kind: ledger.Cgroup, Name: s.place.Cgroup()},
	); err != nil {
		return err
	}
	if err := tree.MakeAll(tree.Entry{Path: s.place.State, Mode: 0o711}); err != nil {
		return err
	}
	owner, ok, err := tree.Owner(s.place.Data())
	if err == nil && ok && owner != s.uid {
		err = tree.Chown(s.place.Data(), s.uid, s.uid)
	}
	if err != nil {
		return err
	}
	return tree.MakeAll(
		tree.Entry{Path: s.place.Data(), UID: s.uid, GID: s.uid, Mode: 0o700},
		tree.Entry{Path: s.place.Logs(), Mode: 0o700},
		tree.Entry{Path: s.place.Run, Mode: 0o711},
		tree.Entry{Path: s.place.Control(), Mode: 0o700},
		tree.Entry{Path: s.place.Conf(), Mode: 0o755},
	)
}

// want takes what the manifests say now; the next attempt to bring the server
// up puts it in force. Every agent of a team that wants it has a token.
func (s *service) want() error {
	next := serviceWants{topics: map[string]topic.Policy{}, guests: map[string]*team.Guests{}, members: map[string]hub.Member{}, fronts: map[netip.AddrPort]*team.Front{}, teams: map[netip.AddrPort][]string{}}
	s.w.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(s.w.teams)) {
		t := s.w.teams[name]
		next.accepted = append(next.accepted, t.state.Accepted...)
		if g := t.manifest.Guests(); g != nil && !t.state.Removing {
			next.guests[name] = g
		}
		if t.state.Removing || !slices.Contains(t.manifest.Services(), s.place.Name) {
			continue
		}
		next.topics[name] = t.manifest.Topics
		for _, g := range s.w.guestsOfLocked(name) {
			if slices.Contains(g.seats, s.place.Name) {
				m := hub.Member{Team: name, Agent: g.Place.Name, GatewayID: g.IDs.Gateway()}
				next.members[m.Key()] = m
			}
		}
		if f := t.manifest.Front; f != nil && s.place.Name == layout.FrontName {
			next.fronts[f.Listen] = f
			next.teams[f.Listen] = append(next.teams[f.Listen], name)
		}
		for _, a := range t.agents {
			m := hub.Member{Team: name, Agent: a.Place.Name, GatewayID: a.IDs.Gateway()}
			next.members[m.Key()] = m
		}
	}
	s.w.mu.Unlock()
	var on serviceTokens
	if _, err := readJSON(s.place.Tokens(), &on); err != nil {
		return err
	}
	tokens := map[string]string{}
	for key, m := range next.members {
		if tokens[key] = on.Tokens[key]; tokens[key] == "" {
			var raw [32]byte
			_, _ = rand.Read(raw[:]) // never fails (crypto/rand)
			tokens[key] = hex.EncodeToString(raw[:])
		}
		m.TokenHash = hub.HashToken(tokens[key])
		next.members[key] = m
	}
	if !maps.Equal(tokens, on.Tokens) {
		if err := writeJSON(s.place.Tokens(), serviceTokens{Version: stateVersion, Tokens: tokens}); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wants, s.tokens = next, tokens
	return nil
}

// token is what the agent's gateway authenticates with.
func (s *service) token(team, agent string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tokens[hub.Member{Team: team, Agent: agent}.Key()]
}

// startServices returns when every server that is wanted runs as wanted, or has
// failed to, with a line for each that did. The caller holds w.change.
func (w *Warden) startServices(ctx context.Context, say progress) (failed []string) {
	for _, name := range layout.ServiceNames() {
		s := w.service(name)
		if s == nil {
			continue
		}
		if err := s.startAnew(ctx); err != nil {
			say(name, "failed: "+err.Error())
			failed = append(failed, name+": "+err.Error())
			continue
		}
		say(name, "ready")
	}
	return failed
}

// startAnew gives the server a new owner, which adopts a process that is as
// wanted.
func (s *service) startAnew(ctx context.Context) error {
	s.release()
	select {
	case <-s.start():
		return s.outcome()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// dropService ends a server and removes all of it but its data. The caller
// holds w.change.
func (w *Warden) dropService(ctx context.Context, name string) (gone []string, err error) {
	s := w.service(name)
	place := w.host.Service(name)
	if s != nil {
		if err := s.halt(ctx); err != nil {
			return nil, err
		}
	} else if !w.ledger.Has(ledger.Account, place.Account) && !w.ledger.Has(ledger.RunDir, place.Run) && !w.ledger.Has(ledger.Cgroup, place.Cgroup()) {
		return nil, nil
	}
	if err := w.killCgroup(place.Cgroup()); err != nil {
		return nil, err
	}
	if w.ledger.Has(ledger.Account, place.Account) {
		if err := w.accounts.Remove(ctx, place.Account); err != nil {
			return nil, err
		}
		gone = append(gone, "account "+place.Account)
	}
	if err := tree.Remove(place.Run); err != nil {
		return gone, err
	}
	gone = append(gone, place.Run)
	if _, ok, err := tree.Owner(place.State); err != nil {
		return gone, err
	} else if ok {
		// The files carry an id that another account may get.
		if err := tree.MakeAll(tree.Entry{Path: place.State, Mode: 0o700}); err != nil {
			return gone, err
		}
	}
	w.mu.Lock()
	delete(w.services, name)
	w.mu.Unlock()
	return gone, w.ledger.Forget(ledger.Thing{Kind: ledger.Cgroup, Name: place.Cgroup()}, ledger.Thing{Kind: ledger.RunDir, Name: place.Run})
}

// dropServices ends all of them: no team is left.
func (w *Warden) dropServices(ctx context.Context) (gone []string, err error) {
	var errs []error
	for _, name := range layout.ServiceNames() {
		one, err := w.dropService(ctx, name)
		gone, errs = append(gone, one...), append(errs, err)
	}
	return gone, errors.Join(errs...)
}

// servicesKept lists the data that servers left behind which do not run. The
// caller holds w.mu.
func (w *Warden) servicesKeptLocked() []ledger.Thing {
	return w.ledger.Things(func(x ledger.Thing) bool {
		name := filepath.Base(x.Name)
		return x.Kind == ledger.StateDir && slices.Contains(layout.ServiceNames(), name) && x.Name == w.host.Service(name).State && w.services[name] == nil
	})
}

// purgeServices removes that data.
func (w *Warden) purgeServices() (gone []string, err error) {
	w.mu.Lock()
	kept := w.servicesKeptLocked()
	w.mu.Unlock()
	for _, th := range kept {
		if err := tree.Remove(th.Name); err != nil {
			return gone, err
		}
		gone = append(gone, th.Name)
		if err := w.ledger.Forget(th); err != nil {
			return gone, err
		}
	}
	return gone, nil
}

// serviceRules are what nftables keep for the servers' ids, for whoever gets
// out of a server's cell: nothing, but that front answers on the connections
// that it accepts. The caller holds w.mu.
func (w *Warden) serviceRulesLocked(want *nft.Want) {
	for _, s := range w.services {
		if s.place.Name != layout.FrontName {
			want.Refused = append(want.Refused, nft.Range{First: s.uid, Last: s.uid})
			continue
		}
		s.mu.Lock()
		server := nft.Server{ID: s.uid, Listen: slices.SortedFunc(maps.Keys(s.wants.fronts), netip.AddrPort.Compare)}
		s.mu.Unlock()
		want.Servers = append(want.Servers, server)
	}
}
