package warden

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/podman"
	"bulkhead/internal/engine/podman/release"
	"bulkhead/internal/host"
	"bulkhead/internal/host/account"
	"bulkhead/internal/host/doctor"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// progress tells the person who waits what happens.
type progress func(agent, step string)

// review checks everything that can be checked without changing the host.
type review struct {
	manifest *team.Manifest
	old      *team.Manifest // nil: the team is new
	changes  []wire.Change
	lost     []string
	clones   []string // agents whose workspace is yet to be cloned
}

func (w *Warden) review(ctx context.Context, req wire.ApplyRequest) (*review, error) {
	m, err := team.ParseWith(req.Path, req.Manifest, req.Presets)
	if err != nil {
		return nil, &fault{wire.Failure{Message: err.Error(), Exit: wire.ExitBadInput}}
	}
	r := &review{manifest: m}
	w.mu.Lock()
	if t, ok := w.teams[m.Team]; ok {
		r.old = t.manifest
	}
	w.mu.Unlock()
	r.changes = team.Diff(r.old, m)
	w.markStopped(m.Team, r.changes)
	w.overtaken(ctx, r.old, m, r.changes)
	faults := checkCompany(m)
	l := w.look()
	for _, a := range m.Agents {
		place := w.host.Agent(m.Team, a.Name)
		todo, err := (accountLayer{w, l.accounts}).Plan(ctx, &host.Agent{Place: place, Want: a})
		if err != nil {
			faults = append(faults, fmt.Sprintf("agents.%s: %v", a.Name, err))
		}
		if i := slices.IndexFunc(r.changes, func(c wire.Change) bool { return c.Agent == a.Name }); i >= 0 {
			r.changes[i].Why = append(r.changes[i].Why, todo...)
		}
		if err := checkRootfs(rootfsOf(w.host, &host.Agent{Place: place, Want: a}), a); err != nil {
			faults = append(faults, fmt.Sprintf("agents.%s: %v", a.Name, err))
		}
		if cloneWanted(place, a) {
			r.clones = append(r.clones, a.Name)
			if i := slices.IndexFunc(r.changes, func(c wire.Change) bool { return c.Agent == a.Name }); i >= 0 {
				r.changes[i].Why = append(r.changes[i].Why, "clone "+a.Workspace)
			}
		}
		for _, problem := range checkSources(a) {
			faults = append(faults, fmt.Sprintf("agents.%s.%s", a.Name, problem))
		}
		if a.Engine == string(engine.Podman) {
			if err := podman.Installed(a.OCI); err != nil {
				faults = append(faults, fmt.Sprintf("agents.%s: engine podman: %v; to mend: install podman with crun or runc, or write engine: cell", a.Name, err))
			}
		}
	}
	if slices.ContainsFunc(m.Agents, func(a *team.Agent) bool { return a.Engine == string(engine.Podman) }) && podman.Installed("") == nil {
		if err := podman.Fits(ctx); err != nil {
			faults = append(faults, fmt.Sprintf("%v; %s", err, release.Way))
		}
	}
	if m.HasMessages() {
		if err := w.accounts.Check(adapterRequest(w.host.Agent(m.Team, layout.AdapterName))); err != nil {
			faults = append(faults, err.Error())
		}
	}
	faults = append(faults, notAcceptable(req.AcceptMissing, doctor.Features())...)
	faults = append(faults, w.checkServices(m)...)
	faults = append(faults, w.checkGuests(m)...)
	if err := roomOn(w.host.State); err != nil {
		faults = append(faults, err.Error())
	}
	var refused *fault
	lost, reasons := missing(ctx, doctor.Here(), doctor.Features(), req.AcceptMissing)
	if len(reasons) > 0 {
		lines := make([]string, len(reasons))
		for i, reason := range reasons {
			lines[i] = reason.Error()
		}
		refused = &fault{wire.Failure{Message: strings.Join(lines, "\n"), Exit: wire.ExitMissing}}
	}
	if refused == nil {
		faults = append(faults, w.checkDisks(m, lost)...)
	}
	if len(faults) > 0 {
		return nil, &fault{wire.Failure{Message: strings.Join(faults, "\n"), Exit: wire.ExitBadInput}}
	}
	if refused != nil {
		return nil, refused
	}
	r.lost = lost
	return r, nil
}

// markStopped turns keep into start for agents that up will start although
// nothing in the manifest changed, and says which it leaves fenced.
func (w *Warden) markStopped(name string, changes []wire.Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t, ok := w.teams[name]
	if !ok {
		return
	}
	for i := range changes {
		c := &changes[i]
		if c.Action != wire.ActionKeep {
			continue
		}
		if a := t.agents[c.Agent]; a != nil && a.fence.Load() != nil {
			c.Why = append(c.Why, "fenced, and left so")
		} else if t.state.Agents[c.Agent].Stopped {
			c.Action, c.Why = wire.ActionStart, append(c.Why, "stopped by `bulkhead stop`")
		}
	}
}

// mountPoints must exist in every root file system, because it is mounted
// read-only and nothing can be made in it.
var mountPoints = []string{"proc", "sys", "dev", "tmp", "run", "workspace", "home/agent", ".bulkhead", "etc/hosts", "etc/resolv.conf", "etc/passwd", "etc/group"}

func checkRootfs(root string, a *team.Agent) error {
	d, err := tree.Open(root)
	switch {
	case errors.Is(err, unix.ENOENT) && a.Image != "":
		return fmt.Errorf("image %q is not in the store; to mend: `bulkhead image list` shows those that are, `sudo bulkhead image build RECIPE` makes one", a.Image)
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("rootfs %s does not exist; to mend: name the folder of a root file system, or image: NAME", root)
	case err != nil:
		return err
	}
	defer func() { _ = d.Close() }()
	var absent []string
	for _, p := range mountPoints {
		if _, err := os.Lstat(filepath.Join(root, p)); err != nil {
			absent = append(absent, "/"+p)
		}
	}
	if len(absent) > 0 {
		return fmt.Errorf("the root file system %s lacks the mount points %s; to mend: make them (empty folders and files), or import it with `sudo bulkhead image import`, which does", root, strings.Join(absent, " "))
	}
	return nil
}

// checkSources says which host folders of the manifest cannot be used, and what
// the manifest asks for that this build does not have: to start an agent
// without it in silence would be worse than to refuse.
func checkSources(a *team.Agent) []string {
	var out []string
	if _, _, url := a.Clone(); a.Workspace != "" && !url {
		switch st, err := os.Stat(a.Workspace); {
		case errors.Is(err, unix.ENOENT):
			out = append(out, fmt.Sprintf("workspace: %s does not exist; to mend: make it, or name a folder that exists", a.Workspace))
		case err != nil:
			out = append(out, fmt.Sprintf("workspace: %v; to mend: name a folder that root can read", err))
		case !st.IsDir():
			out = append(out, fmt.Sprintf("workspace: %s is not a folder; to mend: name the folder that holds it", a.Workspace))
		}
	}
	for i, m := range a.Mounts {
		if err := tree.Check(m.Host); err != nil {
			out = append(out, fmt.Sprintf("mounts[%d].host: %s; to mend: name a folder or file of this host, not a link, below folders that root alone can write", i, strings.TrimPrefix(err.Error(), "tree: ")))
		}
	}
	if len(a.Secrets) > 0 {
		out = append(out, "secrets: this build does not deliver secrets; to mend: remove them, and give the agent a credential file in its workspace if you must")
	}
	if a.Knowledge != "" {
		out = append(out, "knowledge: this build has no knowledge vaults; to mend: remove it, or mount the folder read-only under mounts")
	}
	return out
}

// minRoom is what must be free before anything is made: a half-written account
// database or ledger is worse than a refusal.
const minRoom = 64 << 20

func roomOn(path string) error {
	free, err := freeOn(path)
	if err != nil {
		return err
	}
	if free < minRoom {
		return fmt.Errorf("the file system of %s has %d MiB free, Bulkhead needs %d to start: free some space", path, free>>20, minRoom>>20)
	}
	return nil
}

func (w *Warden) plan(ctx context.Context, req wire.ApplyRequest) (*wire.PlanResult, error) {
	r, err := w.review(ctx, req)
	if err != nil {
		return nil, err
	}
	return &wire.PlanResult{SchemaVersion: 1, Team: r.manifest.Team, Changes: r.changes, MissingLayers: r.lost, Grants: w.openGrants(r.manifest.Team), Presets: req.Presets, Clones: r.clones}, nil
}

// apply makes the host as the manifest says.
func (w *Warden) apply(ctx context.Context, req wire.ApplyRequest, say progress) (*wire.ApplyResult, error) {
	w.change.Lock()
	defer w.change.Unlock()
	// A start leaves much behind, and may be the last for months: what it leaves
	// is given back at its end, and not looked for again and again before.
	defer debug.FreeOSMemory()
	defer debug.SetGCPercent(debug.SetGCPercent(garbageOfApply))
	r, err := w.review(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := w.checkClones(r.clones, req.Clones); err != nil {
		return nil, err
	}
	w.mu.Lock()
	old := w.teams[r.manifest.Team]
	w.mu.Unlock()
	next := &teamRun{name: r.manifest.Team, manifest: r.manifest, raw: req.Manifest, clones: req.Clones, agents: map[string]*agentRun{}, state: teamState{
		Version: stateVersion, Accepted: r.lost, Agents: map[string]agentState{}, Source: req.Path, Presets: req.Presets,
	}}
	if old != nil {
		maps.Copy(next.agents, old.agents)
		maps.Copy(next.state.Agents, old.state.Agents)
		next.adapter = old.adapter
	}
	if err := w.found(ctx, next, r.changes, say); err != nil {
		return nil, w.undo(ctx, next, old, err)
	}
	w.mu.Lock()
	delete(w.unreadable, next.name) // it is readable now
	w.mu.Unlock()
	failed := w.startChanged(ctx, next, r.changes, say)
	w.spreadTrust(ctx)
	res := &wire.ApplyResult{SchemaVersion: 1, Changes: r.changes, Status: w.status(ctx, next.name)}
	w.drifts.teamChanged(next.name) // after it: what it looks for takes the same processors
	if len(failed) > 0 {
		return res, &fault{wire.Failure{Message: strings.Join(failed, "\n"), Exit: wire.ExitFailed}}
	}
	return res, nil
}

// garbageOfApply is the garbage that may gather while a team starts, in percent
// of what is in use.
const garbageOfApply = 400

// found makes accounts, folders and rules of the team: everything that must be
// in force before a process starts.
func (w *Warden) found(ctx context.Context, next *teamRun, changes []wire.Change, say progress) error {
	action := actions(changes)
	if err := w.saveTeam(next, next.raw); err != nil {
		return err
	}
	if _, err := w.ensureSystem(ctx); err != nil {
		return err
	}
	if err := w.foundGuests(ctx, next); err != nil {
		return err
	}
	w.mountDisks(ctx, next)
	if err := w.admitAdapter(ctx, next); err != nil {
		return fmt.Errorf("%s: %w", layout.AdapterName, err)
	}
	admitted := make([]*agentRun, len(next.manifest.Agents))
	for i, want := range next.manifest.Agents {
		a, err := w.admit(ctx, next, want)
		if err != nil {
			return fmt.Errorf("agent %s: %w", want.Name, err)
		}
		a.clone = next.clones[want.Name]
		admitted[i] = a
	}
	if err := makeFolders(admitted); err != nil {
		return err
	}
	for i, want := range next.manifest.Agents {
		a := admitted[i]
		if had, ok := next.agents[want.Name]; ok {
			if action[want.Name] == wire.ActionKeep || action[want.Name] == wire.ActionStart {
				continue
			}
			// Its processes go on until the new owner finds them to be of
			// another manifest.
			had.release()
		}
		next.agents[want.Name] = a
		say(want.Name, a.Place.Account+": "+a.IDs.String())
	}
	for name, a := range next.agents {
		if slices.ContainsFunc(next.manifest.Agents, func(x *team.Agent) bool { return x.Name == name }) {
			continue
		}
		say(name, "removed")
		if err := a.halt(ctx); err != nil {
			return err
		}
		delete(next.agents, name)
		delete(next.state.Agents, name)
		w.setTeam(next)
		if err := w.applyTable(ctx); err != nil {
			return err
		}
		if _, _, err := w.dismiss(ctx, a.Place, false); err != nil {
			return err
		}
	}
	w.setTeam(next)
	if err := w.settleGuests(ctx, next); err != nil {
		return err
	}
	if err := w.saveTeam(next, nil); err != nil {
		return err
	}
	if err := w.foundServices(ctx); err != nil {
		return err
	}
	if err := w.applyTable(ctx); err != nil {
		return err
	}
	if err := w.ensureResolver(ctx); err != nil {
		return err
	}
	return w.expel(ctx, next, say)
}

// makeFolders makes the folders of many agents side by side.
func makeFolders(agents []*agentRun) error {
	errs := make([]error, len(agents))
	slots := make(chan struct{}, startsPerCore*runtime.NumCPU())
	var all sync.WaitGroup
	for i, a := range agents {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			if err := a.folders(); err != nil {
				errs[i] = fmt.Errorf("agent %s: %w", a.Place.Name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (w *Warden) setTeam(t *teamRun) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.teams[t.name] = t
}

// undo takes back what a failed founding made, so that nothing is half
// applied, and adds to the error what could not be taken back.
func (w *Warden) undo(ctx context.Context, next, old *teamRun, cause error) error {
	exit := wire.ExitFailed
	if errors.Is(cause, account.ErrTaken) {
		exit = wire.ExitBadInput
	}
	var errs []error
	if old == nil {
		w.setTeam(next)
		_, err := w.removeTeam(ctx, next, false)
		errs = append(errs, err)
	} else {
		w.setTeam(old)
		for _, a := range old.sorted() {
			// What root wrote for the refused manifest must not stay.
			errs = append(errs, a.folders())
			if _, ok := next.agents[a.Place.Name]; ok && !old.state.Agents[a.Place.Name].Stopped {
				a.mu.Lock()
				owned := a.cancel != nil
				a.mu.Unlock()
				if !owned {
					a.start()
				}
			}
		}
		errs = append(errs, w.undoAdapter(ctx, next, old), w.saveTeam(old, old.raw))
		// By the manifest: the one whose founding failed is in no list yet.
		for _, a := range next.manifest.Agents {
			if _, had := old.agents[a.Name]; !had {
				_, _, err := w.dismiss(ctx, w.host.Agent(next.name, a.Name), false)
				errs = append(errs, err)
			}
		}
		errs = append(errs, w.foundServices(ctx), w.applyTable(ctx))
		w.startServices(ctx, func(string, string) {})
	}
	msg := cause.Error()
	if err := errors.Join(errs...); err != nil {
		msg += "\nand taking it back failed: " + err.Error() + " (bulkhead down removes what is left)"
	} else {
		msg += "\nnothing was changed"
	}
	return &fault{wire.Failure{Message: msg, Exit: exit}}
}
