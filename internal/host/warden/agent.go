package warden

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/launcher"
	"bulkhead/internal/engine/podman"
	"bulkhead/internal/host"
	"bulkhead/internal/host/ledger"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// agentRun is one agent of this host and its owner.
type agentRun struct {
	w *Warden
	host.Agent
	clone    string      // root's folder of the repository that the workspace begins with; empty: none was given
	accepted []string    // layers that the operator accepted in a weaker form
	adapter  *adapterRun // the team's; nil: it has none

	// procs serialises everything that starts or stops processes of this agent.
	procs    sync.Mutex
	launcher *launcher.Client
	dialer   *process
	run      runState
	grants   grantBook
	heard    hearing

	fence atomic.Pointer[wire.Fence] // nil: it is not fenced

	mu       sync.Mutex // guards what follows
	want     bool       // should run
	restarts []time.Time
	problem  string             // why it does not run although it should
	with     string             // digest of the programs that it runs with
	cancel   context.CancelFunc // ends the owner
	done     chan struct{}      // closed when the owner has ended
	settled  chan struct{}      // closed when the owner's first attempt is over
}

// digest says what the running containers must have been made from. The
// programs' build is not part of it: an upgrade of Bulkhead restarts nobody.
func (a *agentRun) digest() string {
	raw, err := json.Marshal(struct {
		Want     string
		IDs      layout.IDs
		Messages bool     `json:",omitempty"`
		Services []string `json:",omitempty"`
	}{a.Want.Digest(), a.IDs, a.Messages, a.Services})
	if err != nil {
		panic("warden: an agent of a manifest does not encode: " + err.Error()) // plain data: cannot happen
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// stateFolder makes the folder of the agent's state and says so first.
func (a *agentRun) stateFolder() error {
	if err := a.w.ledger.Announce(
		ledger.Thing{Kind: ledger.StateDir, Name: a.Place.State, Team: a.Place.Team, Agent: a.Place.Name},
		ledger.Thing{Kind: ledger.RunDir, Name: a.Place.Run, Team: a.Place.Team, Agent: a.Place.Name},
		ledger.Thing{Kind: ledger.Cgroup, Name: filepath.Join(a.Place.Team, a.Place.Name), Team: a.Place.Team, Agent: a.Place.Name},
	); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Dir(a.Place.State), filepath.Dir(a.Place.Run)} {
		if err := tree.MkdirAll(dir); err != nil {
			return err
		}
	}
	return tree.MakeAll(tree.Entry{Path: a.Place.State, Mode: 0o711})
}

// folders makes the agent's disks and folders, each leaf with its owner. Data
// that was kept from an account with other ids is given to the new ones.
func (a *agentRun) folders() error {
	if err := a.stateFolder(); err != nil {
		return err
	}
	if err := a.ensureDisks(a.w.ctx); err != nil {
		return err
	}
	if err := a.leaves(); err != nil {
		return err
	}
	if err := tree.MakeAll(
		tree.Entry{Path: a.Place.Logs(), Mode: 0o700},
		tree.Entry{Path: a.Place.Run, Mode: 0o711},
		tree.Entry{Path: a.Place.Control(), Mode: 0o700},
		tree.Entry{Path: a.Place.GatewayDir(), Mode: 0o711},
		tree.Entry{Path: a.Place.DialerDir(), Mode: 0o711},
		tree.Entry{Path: a.Place.PinDir(), Mode: 0o711},
		tree.Entry{Path: a.Place.AdapterDir(), Mode: 0o711},
		tree.Entry{Path: a.Place.ProcDir(), Mode: 0o711},
		tree.Entry{Path: a.Place.ServiceDir(layout.AuditName), Mode: 0o711},
		tree.Entry{Path: a.Place.ServiceDir(layout.FrontName), Mode: 0o711},
		tree.Entry{Path: a.Place.ServiceDir(layout.TopicsName), Mode: 0o711},
		tree.Entry{Path: a.Place.Conf(), Mode: 0o755},
	); err != nil {
		return err
	}
	return a.writeConf()
}

// leaves makes what belongs to the agent's ids.
func (a *agentRun) leaves() error {
	rt, gw := a.IDs.Runtime(), a.IDs.Gateway()
	for _, leaf := range []struct {
		path string
		id   uint32
	}{{a.Place.Home(), rt}, {a.Place.Workspace(), rt}, {a.Place.Data(), gw}} {
		owner, ok, err := tree.Owner(leaf.path)
		if err != nil {
			return err
		}
		if ok && owner != leaf.id {
			if err := tree.Chown(leaf.path, leaf.id, leaf.id); err != nil {
				return err
			}
		}
		if !ok && leaf.path == a.Place.Workspace() && a.Want.Workspace != "" {
			if err := a.beginWorkspace(); err != nil {
				return err
			}
		}
		if err := tree.MakeAll(tree.Entry{Path: leaf.path, UID: leaf.id, GID: leaf.id, Mode: 0o700}); err != nil {
			return err
		}
	}
	return a.noteClone()
}

// writeConf writes what root tells the agent's containers by files.
func (a *agentRun) writeConf() error {
	files := confFiles(&a.Agent)
	if a.Want.Engine == string(engine.Podman) {
		more, err := podman.Files()
		if err != nil {
			return err
		}
		if err := tree.MakeAll(tree.Entry{Path: a.Place.PodmanConf(), Mode: 0o755}); err != nil {
			return err
		}
		for name, content := range more {
			files[filepath.Join(filepath.Base(a.Place.PodmanConf()), name)] = content
		}
	}
	more, err := a.authorities()
	if err != nil {
		return err
	}
	maps.Copy(files, more)
	for name, content := range files {
		path := filepath.Join(a.Place.Conf(), name)
		// A file that is right stays the very file: a container that is being
		// started at this moment may hold it, and could not mount one that was
		// renamed away.
		if have, err := os.ReadFile(path); err == nil && string(have) == content { // #nosec G304 -- root's own file
			continue
		}
		if err := tree.WriteFile(path, []byte(content), 0o644, 0); err != nil {
			return err
		}
	}
	return nil
}

// bringUp makes the agent's processes run as the manifest wants, from any
// state, and returns when they are ready. Accounts, folders and rules are in
// force already. The caller holds a.procs.
func (a *agentRun) bringUp(ctx context.Context) error {
	if err := a.fencedFault(); err != nil {
		return err
	}
	if _, err := readJSON(runStatePath(a.Place), &a.run); err != nil {
		return err
	}
	if a.run.Digest != a.digest() || a.run.Token == "" {
		// What runs, if anything, was made from another manifest.
		if err := a.takeDown(ctx); err != nil {
			return err
		}
		if err := a.refit(ctx); err != nil {
			return err
		}
		a.run = runState{Version: stateVersion, Digest: a.digest(), Build: a.w.build, Token: rand.Text()}
	}
	if err := a.ensureFirst(ctx, true); err != nil {
		return err
	}
	if err := a.ensureCode(ctx); err != nil {
		return err
	}
	if a.adapter != nil {
		a.adapter.tried(ctx) // ready before a gateway asks for it
	}
	// Written before containers start: a token that a container knows and we
	// do not would be worse than the other way round.
	if err := a.saveRun(); err != nil {
		return err
	}
	running, err := a.running(ctx)
	if err != nil {
		return err
	}
	var starts []func(context.Context) error
	if !running[gatewayName] {
		starts = append(starts, a.startGateway)
	}
	if _, was := running[runtimeName]; !running[runtimeName] && (!was || a.Want.Mode != team.ModeTask) {
		starts = append(starts, a.startRuntime)
	}
	if err := a.startAll(ctx, starts); err != nil {
		return err
	}
	err = a.waitReady(ctx)
	if err != nil && ctx.Err() == nil {
		// A gateway that does not take the listeners may serve a socket that is
		// not there any more: the next attempt makes both anew.
		_, _ = a.launcher.Kill(ctx, gatewayName)
	}
	return err
}

// startAll starts containers one after the other; side by side under Podman,
// which spends most of a start waiting. The runtime's shim waits for the
// gateway in either order.
func (a *agentRun) startAll(ctx context.Context, starts []func(context.Context) error) error {
	errs := make([]error, len(starts))
	var wg sync.WaitGroup
	for i, start := range starts {
		if a.Want.Engine == string(engine.Podman) {
			wg.Go(func() { errs[i] = start(ctx) })
		} else if err := start(ctx); err != nil {
			return err
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (a *agentRun) saveRun() error {
	a.mu.Lock()
	a.with = a.run.Build
	a.mu.Unlock()
	if a.dialer != nil {
		a.run.Dialer, a.run.Started = a.dialer.identity.PID, a.dialer.identity.Start
	}
	return writeJSON(runStatePath(a.Place), a.run)
}

// running tells which containers run, as the launcher, their parent, sees it.
// A container that ended is in the map with false.
func (a *agentRun) running(ctx context.Context) (map[string]bool, error) {
	list, err := a.launcher.List(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, c := range list {
		out[c.Name] = c.State == launcher.StateRunning
		if c.PIDFD != nil {
			_ = c.PIDFD.Close()
		}
	}
	return out, nil
}

// programs is the folder of the build that this agent runs.
func (a *agentRun) programs() string { return a.w.host.Programs(a.run.Build) }

// ensureFirst makes what the containers need run: the launcher and, unless the
// agent never connects, the dialer; side by side, since neither asks for the
// other.
func (a *agentRun) ensureFirst(ctx context.Context, dials bool) error {
	found, err := a.findLauncher(ctx)
	if err != nil {
		return err
	}
	if !found {
		a.run.Build = a.w.build // of both
	}
	var wg sync.WaitGroup
	var dialerErr error
	if dials {
		wg.Go(func() { dialerErr = a.ensureDialer() })
	}
	if !found {
		err = a.startLauncher(ctx)
	}
	wg.Wait()
	return errors.Join(dialerErr, err)
}

// findLauncher says whether the agent's launcher runs, and connects to it.
func (a *agentRun) findLauncher(ctx context.Context) (bool, error) {
	if a.launcher != nil {
		select {
		case <-a.launcher.Exited():
			_ = a.launcher.Close()
			a.launcher = nil
		default:
			return true, nil
		}
	}
	c, err := launcher.Connect(ctx, a.Place.LauncherSocket())
	if err == nil {
		a.launcher = c
		return true, nil
	}
	if !errors.Is(err, launcher.ErrGone) {
		return false, err
	}
	return false, nil
}

func (a *agentRun) startLauncher(ctx context.Context) error {
	// Nobody answers. Whatever may be left of a former launcher must be gone
	// before the same cgroups and sockets are used again.
	err := a.w.killCgroup(filepath.Join(a.Place.Team, a.Place.Name, launcherGroup))
	if err != nil {
		return err
	}
	a.launcher, err = launcher.Start(ctx, launcher.Config{
		Host: a.w.host, Place: a.Place, Account: a.IDs.Account,
		Programs: a.programs(), Build: a.run.Build, CgroupRoot: a.w.cgroupRoot(), Sources: a.sources(), Ptrace: a.relayed(runtimeName),
	}, launcher.Means{Cgroups: a.w.cgroups, Bare: a.w.bare})
	return err
}

// takeDown ends every process of the agent; its account, rules and data stay.
// The caller holds a.procs.
func (a *agentRun) takeDown(ctx context.Context) error {
	if a.fence.Load() != nil {
		// What is frozen cannot end politely.
		if err := a.w.killCgroup(filepath.Join(a.Place.Team, a.Place.Name)); err != nil {
			return err
		}
	}
	if a.launcher == nil {
		if c, err := launcher.Connect(ctx, a.Place.LauncherSocket()); err == nil {
			a.launcher = c
		}
	}
	if a.launcher != nil {
		// The command first and politely, then everything.
		grace := a.Want.Limits.StopGrace
		if grace == 0 {
			grace = defaultGrace
		}
		if err := a.endContainers(ctx, grace); err != nil && !errors.Is(err, launcher.ErrGone) {
			a.w.log.Warn("launcher did not shut down; killing its cgroup", "agent", a.Place.Name, "error", err)
		}
		_ = a.launcher.Close()
		a.launcher = nil
	}
	a.w.pins.Remove(a.Place.Account)
	if a.dialer == nil {
		a.dialer = a.adoptDialer()
	}
	if a.dialer != nil {
		a.dialer.kill()
		a.dialer = nil
	}
	// Whatever is left, by the cgroup that only root can leave.
	if err := a.w.killCgroup(filepath.Join(a.Place.Team, a.Place.Name)); err != nil {
		return err
	}
	return tree.Remove(runStatePath(a.Place))
}

// endPatience is how long a launcher may take to end its containers, beyond
// the grace of the command. Whoever takes an agent down often holds up every
// other team, and the cgroup ends what the launcher does not.
const endPatience = 10 * time.Second

// endContainers ends the command politely, then the launcher with everything.
func (a *agentRun) endContainers(ctx context.Context, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, grace+endPatience)
	defer cancel()
	if running, err := a.running(ctx); err == nil && running[runtimeName] {
		_, _ = a.launcher.Stop(ctx, runtimeName, grace) // what Stop leaves, Shutdown and the cgroup end
	}
	return a.launcher.Shutdown(ctx)
}

// launcherGroup is the control group of an agent's launcher, below the agent's.
const launcherGroup = "launcher"

// defaultGrace is how long a command may take to end after SIGTERM.
const defaultGrace = 5 * time.Second
