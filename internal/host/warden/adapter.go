package warden

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"sync"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/host/account"
	"bulkhead/internal/host/ledger"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/layout"
)

// adapterRun is the message adapter of one team and its owner. It lives from
// the first manifest with messages to the last, through every up.
type adapterRun struct {
	w     *Warden
	place layout.Agent
	uid   uint32 // of its account

	// procs serialises everything that starts or stops its process.
	procs   sync.Mutex
	process *process

	mu       sync.Mutex // guards what follows
	accepted []string   // layers that the operator accepted in a weaker form
	tokens   map[string]string
	wants    adapterWants
	owned    bool // it should run
	restarts int
	problem  string // why it does not run although it should
	with     string // digest of the programs that it runs with
	cancel   context.CancelFunc
	done     chan struct{} // closed when the owner has ended
	settled  chan struct{} // closed when the owner's first attempt is over
}

// adapterWants is what a running adapter should enforce and whom it should
// know.
type adapterWants struct {
	policy adapter.Policy
	agents map[string]protocol.Agent
}

// adapterTokens is the file of tokens, root's alone. They outlive the
// adapter's process and an agent's: a gateway goes on with the one that it has.
type adapterTokens struct {
	Version int               `json:"version"`
	Tokens  map[string]string `json:"tokens"`
}

// adapterRequest describes the adapter's account. It owns no range of ids: no
// other id ever runs for it.
func adapterRequest(p layout.Agent) account.Request {
	return account.Request{Name: p.Account, Home: "/nonexistent", Team: p.Team, Agent: p.Name, System: true}
}

// admitAdapter gives the team's adapter its account and folders, or takes note
// that the team has none any more. The caller holds w.change.
func (w *Warden) admitAdapter(ctx context.Context, t *teamRun) error {
	if !t.manifest.HasMessages() {
		t.leaving, t.adapter = t.adapter, nil
		return nil
	}
	a := t.adapter
	if a == nil {
		a = &adapterRun{w: w, place: w.host.Agent(t.name, layout.AdapterName), tokens: map[string]string{}}
	}
	u, _, err := w.accounts.Ensure(ctx, adapterRequest(a.place))
	if err != nil {
		return err
	}
	if a.uid != u.UID {
		a.uid = u.UID
	}
	if err := a.folders(); err != nil {
		return err
	}
	if err := a.keepTokens(t); err != nil {
		return err
	}
	a.mu.Lock()
	a.accepted = t.state.Accepted
	a.mu.Unlock()
	t.adapter = a
	return nil
}

// folders makes the adapter's folders; only its data belong to it. Data that
// was kept from an account with another id is given to the new one.
func (a *adapterRun) folders() error {
	if err := a.w.ledger.Announce(
		ledger.Thing{Kind: ledger.StateDir, Name: a.place.State, Team: a.place.Team, Agent: a.place.Name},
		ledger.Thing{Kind: ledger.RunDir, Name: a.place.Run, Team: a.place.Team, Agent: a.place.Name},
		ledger.Thing{Kind: ledger.Cgroup, Name: filepath.Join(a.place.Team, a.place.Name), Team: a.place.Team, Agent: a.place.Name},
	); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Dir(a.place.State), filepath.Dir(a.place.Run)} {
		if err := tree.MkdirAll(dir); err != nil {
			return err
		}
	}
	if err := tree.MakeAll(tree.Entry{Path: a.place.State, Mode: 0o711}); err != nil {
		return err
	}
	owner, ok, err := tree.Owner(a.place.AdapterData())
	if err == nil && ok && owner != a.uid {
		err = tree.Chown(a.place.AdapterData(), a.uid, a.uid)
	}
	if err != nil {
		return err
	}
	return tree.MakeAll(
		tree.Entry{Path: a.place.AdapterData(), UID: a.uid, GID: a.uid, Mode: 0o700},
		tree.Entry{Path: a.place.Logs(), Mode: 0o700},
		tree.Entry{Path: a.place.Run, Mode: 0o711},
		tree.Entry{Path: a.place.Control(), Mode: 0o700},
		tree.Entry{Path: a.place.Conf(), Mode: 0o755},
	)
}

// keepTokens gives every agent of the manifest a token, and keeps those that
// are there.
func (a *adapterRun) keepTokens(t *teamRun) error {
	var on adapterTokens
	if _, err := readJSON(a.place.AdapterTokens(), &on); err != nil {
		return err
	}
	next := map[string]string{}
	for _, one := range t.manifest.Agents {
		next[one.Name] = on.Tokens[one.Name]
		if next[one.Name] == "" {
			var raw [32]byte
			_, _ = rand.Read(raw[:]) // never fails (crypto/rand)
			next[one.Name] = hex.EncodeToString(raw[:])
		}
	}
	if !maps.Equal(next, on.Tokens) {
		if err := writeJSON(a.place.AdapterTokens(), adapterTokens{Version: stateVersion, Tokens: next}); err != nil {
			return err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tokens = next
	return nil
}

// token is what the agent's gateway authenticates with.
func (a *adapterRun) token(agent string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tokens[agent]
}

// want takes what the team's manifest says now; the next attempt to bring the
// adapter up puts it in force. The caller holds w.change.
func (a *adapterRun) want(t *teamRun) (changed bool) {
	next := adapterWants{policy: t.manifest.Policy(), agents: map[string]protocol.Agent{}}
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, one := range t.agents {
		next.agents[name] = protocol.Agent{GatewayID: one.IDs.Gateway(), TokenHash: protocol.HashToken(a.tokens[name])}
	}
	changed = !reflect.DeepEqual(next, a.wants)
	a.wants = next
	return changed
}

// startAdapter begins to start the team's adapter with the manifest's policy;
// wait returns when it runs, or has failed to. The caller holds w.change.
func (w *Warden) startAdapter(ctx context.Context, t *teamRun, say progress) (wait func() error) {
	a := t.adapter
	if a == nil {
		return func() error { return nil }
	}
	changed := a.want(t)
	a.mu.Lock()
	well := a.owned && a.problem == ""
	var settled <-chan struct{} = a.settled
	a.mu.Unlock()
	if changed || !well {
		a.release()
		settled = a.start()
	}
	return func() error {
		select {
		case <-settled:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := a.outcome(); err != nil {
			say(a.place.Name, "failed: "+err.Error())
			return err
		}
		say(a.place.Name, "ready")
		return nil
	}
}

// expel takes the adapter away from a team whose manifest has no messages any
// more. What it holds is kept as an agent's data is. The caller holds w.change.
func (w *Warden) expel(ctx context.Context, t *teamRun, say progress) error {
	if t.leaving == nil {
		return nil
	}
	say(layout.AdapterName, "removed")
	if err := t.leaving.halt(ctx); err != nil {
		return err
	}
	_, _, err := w.dismiss(ctx, t.leaving.place, false)
	t.leaving = nil
	return err
}

// undoAdapter brings the adapter back to what the old manifest says. The caller
// holds w.change.
func (w *Warden) undoAdapter(ctx context.Context, next, old *teamRun) error {
	if old.adapter == nil {
		if next.adapter == nil {
			return nil
		}
		if err := next.adapter.halt(ctx); err != nil {
			return err
		}
		_, _, err := w.dismiss(ctx, next.adapter.place, false)
		return err
	}
	if err := w.admitAdapter(ctx, old); err != nil {
		return fmt.Errorf("%s: %w", layout.AdapterName, err)
	}
	changed := old.adapter.want(old)
	old.adapter.mu.Lock()
	owned := old.adapter.owned
	old.adapter.mu.Unlock()
	if changed || !owned {
		old.adapter.release()
		old.adapter.start()
	}
	return nil
}
