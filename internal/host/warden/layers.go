package warden

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"bulkhead/internal/deny"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/host/account"
	"bulkhead/internal/host/nft"
	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
)

// look is what was read of the host for one answer about many agents, so that it
// is not read anew for each of them, nor for each layer.
type look struct {
	rules      *nft.Look
	accounts   func() (*account.Database, error)
	containers []wire.ContainerStatus // of the agent that is looked at; nil: not asked yet
}

// look begins one. What it gives is read when it is first asked for.
func (w *Warden) look() look {
	return look{rules: w.table.Look(), accounts: sync.OnceValues(func() (*account.Database, error) { return account.Read(w.accounts.Etc) })}
}

// layers are this build's layers in the order in which they are applied: ids
// first, then what they may write to, then the rules for these ids, then processes. They are removed in the
// opposite order.
func (w *Warden) layers(l look) []host.Layer {
	return []host.Layer{accountLayer{w, l.accounts}, quotaLayer{w}, egressLayer{w, l.rules}, podLayer{w, l.containers}}
}

// layersOf are those that an agent has: messages only where its team has an
// adapter. They inspect within one look.
func (w *Warden) layersOf(a *host.Agent, l look) []host.Layer {
	out := w.layers(l)
	if a.Messages {
		out = slices.Insert(out, 2, host.Layer(messagesLayer{w}))
	}
	return out
}

// runOf finds the owner of an agent.
func (w *Warden) runOf(a *host.Agent) (*agentRun, error) {
	return w.agent(a.Place.Team, a.Place.Name)
}

// accountLayer is layer 1: one Linux account per agent, with a range of ids
// that is shared with nobody.
type accountLayer struct {
	w    *Warden
	read func() (*account.Database, error) // nil: read it now
}

func (l accountLayer) database() (*account.Database, error) {
	if l.read != nil {
		return l.read()
	}
	return account.Read(l.w.accounts.Etc)
}

func accountRequest(a *host.Agent) account.Request {
	return account.Request{Name: a.Place.Account, Home: a.Place.Home(), Team: a.Place.Team, Agent: a.Place.Name, Range: layout.RangeSize}
}

// Name implements host.Layer.
func (accountLayer) Name() deny.Layer { return deny.LayerAccount }

// Plan implements host.Layer.
func (l accountLayer) Plan(_ context.Context, a *host.Agent) ([]string, error) {
	d, err := l.database()
	if err != nil {
		return nil, err
	}
	if err := l.w.accounts.CheckIn(d, accountRequest(a)); err != nil {
		return nil, err
	}
	if _, ok := d.User(a.Place.Account); !ok {
		return []string{"make account " + a.Place.Account}, nil
	}
	return nil, nil
}

// Apply implements host.Layer. It fills in the agent's account and range.
func (l accountLayer) Apply(ctx context.Context, a *host.Agent) error {
	u, rng, err := l.w.accounts.Ensure(ctx, accountRequest(a))
	if err != nil {
		return err
	}
	a.IDs.Account, a.IDs.Base = u.UID, rng.First
	return nil
}

// Inspect implements host.Layer: it reads the account files back.
func (l accountLayer) Inspect(_ context.Context, a *host.Agent) (host.Inspection, error) {
	d, err := l.database()
	if err != nil {
		return host.Inspection{}, err
	}
	u, ok := d.User(a.Place.Account)
	if !ok {
		return host.Inspection{Witness: l.w.accounts.Etc + "/passwd does not hold " + a.Place.Account}, nil
	}
	r, err := d.RangeOf(u, layout.RangeSize)
	switch {
	case err != nil:
		return host.Inspection{Witness: err.Error()}, nil //nolint:nilerr // it is the finding: not in force, and why
	case u.UID != a.IDs.Account || r.First != a.IDs.Base:
		return host.Inspection{Witness: fmt.Sprintf("%s has other ids than its processes: uid %d range %d; bulkhead restart %s", u.Name, u.UID, r.First, a.Place.Name)}, nil
	}
	return host.Inspection{InForce: true, Witness: fmt.Sprintf("/etc/passwd uid %d; /etc/subuid and /etc/subgid %d+%d, shared with nobody", u.UID, r.First, r.Count)}, nil
}

// Remove implements host.Layer.
func (l accountLayer) Remove(ctx context.Context, a *host.Agent) error {
	return l.w.accounts.Remove(ctx, a.Place.Account)
}

// Without implements host.Layer.
func (accountLayer) Without(s engine.Spec) engine.Spec { return s.Without(deny.LayerAccount) }

// egressLayer is layer 4 as far as the kernel keeps it: the rules for the
// agent's ids. Its dialer and pins come with its processes.
type egressLayer struct {
	w    *Warden
	look *nft.Look
}

// Name implements host.Layer.
func (egressLayer) Name() deny.Layer { return deny.LayerEgress }

// Plan implements host.Layer.
func (l egressLayer) Plan(ctx context.Context, a *host.Agent) ([]string, error) {
	i, err := l.Inspect(ctx, a)
	if err != nil || i.InForce {
		return nil, err
	}
	return []string{"load the rules of " + a.Place.Account}, nil
}

// Apply implements host.Layer: it puts the rules of all agents in force, in
// one batch.
func (l egressLayer) Apply(ctx context.Context, _ *host.Agent) error { return l.w.applyTable(ctx) }

// Inspect implements host.Layer: it reads the rules and sets back.
func (l egressLayer) Inspect(_ context.Context, a *host.Agent) (host.Inspection, error) {
	st, err := l.look.Inspect(a.Place.Account)
	if err != nil {
		return host.Inspection{}, err
	}
	if !st.InForce {
		return host.Inspection{Witness: "nftables differ: " + strings.Join(st.Difference, "; ")}, nil
	}
	return host.Inspection{InForce: true, Witness: fmt.Sprintf("nftables table inet bulkhead: %d rules for %s, %d pins, %d packets refused", st.Rules, a.Place.Account, st.Pins, st.Refused) + throughProxy(a.Want.Upstream)}, nil
}

// Remove implements host.Layer.
func (l egressLayer) Remove(ctx context.Context, a *host.Agent) error {
	l.w.pins.Remove(a.Place.Account)
	return l.w.table.RemoveAgent(ctx, a.Place.Account)
}

// Without implements host.Layer.
func (egressLayer) Without(s engine.Spec) engine.Spec { return s.Without(deny.LayerEgress) }

// podLayer is layer 2: the account cell and the containers in it.
type podLayer struct {
	w    *Warden
	seen []wire.ContainerStatus // nil: ask now
}

// Name implements host.Layer.
func (podLayer) Name() deny.Layer { return deny.LayerPod }

// Plan implements host.Layer.
func (l podLayer) Plan(ctx context.Context, a *host.Agent) ([]string, error) {
	r, err := l.w.runOf(a)
	if err != nil {
		return []string{"start " + a.Place.Name}, nil //nolint:nilerr // it has no owner yet: everything is to be done
	}
	var out []string
	for _, c := range r.containers(ctx) {
		if !c.Running {
			out = append(out, "start the "+c.Name)
		}
	}
	return out, nil
}

// Apply implements host.Layer.
func (l podLayer) Apply(ctx context.Context, a *host.Agent) error {
	r, err := l.w.runOf(a)
	if err != nil {
		return err
	}
	return l.w.startOne(ctx, r, true)
}

// Inspect implements host.Layer: it reads what confines the first process of
// each container.
func (l podLayer) Inspect(ctx context.Context, a *host.Agent) (host.Inspection, error) {
	r, err := l.w.runOf(a)
	if err != nil {
		return host.Inspection{}, err
	}
	labels, err := r.labels()
	if err != nil {
		return host.Inspection{}, err
	}
	seen := l.seen
	if seen == nil {
		seen = r.containers(ctx)
	}
	return inspectPod(a.IDs, seen, r.relayed(runtimeName), labels), nil
}

// Remove implements host.Layer.
func (l podLayer) Remove(ctx context.Context, a *host.Agent) error {
	r, err := l.w.runOf(a)
	if err != nil {
		return nil //nolint:nilerr // without an owner it has no processes
	}
	return r.halt(ctx)
}

// Without implements host.Layer.
func (podLayer) Without(s engine.Spec) engine.Spec { return s.Without(deny.LayerPod) }
