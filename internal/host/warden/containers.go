package warden

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/launcher"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// sources are the host paths of the manifest, which the account cell must show
// so that containers can be made from them.
func (a *agentRun) sources() []string {
	var out []string
	if a.Want.Rootfs != "" {
		out = append(out, a.Want.Rootfs)
	}
	for _, m := range a.Want.Mounts {
		if !slices.Contains(out, m.Host) {
			out = append(out, m.Host)
		}
	}
	return out
}

func (a *agentRun) startGateway(ctx context.Context) error {
	ln, err := listen(a.Place.GatewaySocket(), 0o660, int(a.IDs.Runtime()))
	if err != nil {
		return err
	}
	defer func() { _ = ln.Close() }()
	lf, err := ln.File()
	if err != nil {
		return fmt.Errorf("warden: %w", err)
	}
	defer func() { _ = lf.Close() }()
	gf, err := a.grantsListener()
	if err != nil {
		return err
	}
	defer func() { _ = gf.Close() }()
	cfg := gatewayConfig(&a.Agent, a.run.Token)
	cfg.Grants = a.grants.all()
	if a.adapter != nil {
		cfg.AdapterSocket, cfg.AdapterToken, cfg.Data = insideAdapter+"/adapter.sock", a.adapter.token(a.Place.Name), insideData
	}
	if a.CodeImage() != "" {
		cfg.CodeSocket = insideProc + codeSocket
	}
	a.serviceConfig(&cfg)
	if a.Want.Guest {
		cfg.SpoolBytes = guestSpool
	}
	cf, err := sealed("gateway-config", cfg)
	if err != nil {
		return err
	}
	defer func() { _ = cf.Close() }()
	spec := byEngine(&a.Agent, a.weaker(withTrust(gatewaySpec(&a.Agent, a.programs()), &a.Agent)))
	if err := a.confined(ctx, &spec); err != nil {
		return err
	}
	if err := a.keepSpec(spec); err != nil {
		return err
	}
	return a.launch(ctx, launcher.LaunchRequest{Spec: spec, Shim: &engine.ShimConfig{
		Version: engine.SpecVersion, Build: a.run.Build, Mode: engine.ShimService, Command: spec.Command, Dir: spec.Dir, PassFiles: 3,
	}}, lf, cf, gf)
}

// launch starts a container whose processes are found by its cgroup later on:
// the descriptor that comes with the answer is not needed.
func (a *agentRun) launch(ctx context.Context, r launcher.LaunchRequest, files ...*os.File) error {
	c, err := a.launcher.Launch(ctx, r, files...)
	if err != nil {
		return fmt.Errorf("start the %s: %w", r.Spec.Name, err)
	}
	if c.PIDFD == nil {
		return nil // it has ended already; whoever waits for it says so
	}
	return c.PIDFD.Close()
}

func (a *agentRun) startRuntime(ctx context.Context) error {
	spec := byEngine(&a.Agent, a.weaker(runtimeSpec(a.w.host, &a.Agent, a.programs())))
	if err := a.confined(ctx, &spec); err != nil {
		return err
	}
	if err := a.keepSpec(spec); err != nil {
		return err
	}
	shim := &engine.ShimConfig{
		Version: engine.SpecVersion, Build: a.run.Build, Mode: engine.ShimMode(a.Want.Mode), Command: spec.Command, Dir: spec.Dir,
		Terminal: a.Want.Terminal, Ports: a.Want.Ports,
		Listeners: staticListeners(&a.Agent), GatewaySocket: insideGateway + "/gateway.sock", Token: a.run.Token,
	}
	if a.Messages || a.Want.Tools != nil {
		shim.TokenFile, shim.Push = insideToken, pushOf(a.Want)
	}
	return a.launch(ctx, launcher.LaunchRequest{Spec: spec, LogBytes: a.Want.Limits.WithDefaults().LogBytes, Shim: shim})
}

// pushOf is the hook into which the shim delivers the agent's messages.
func pushOf(a *team.Agent) *engine.Push {
	if a.Messages == nil || a.Messages.Push == nil {
		return nil
	}
	p := a.Messages.Push
	return &engine.Push{Port: p.Port, Path: p.Path, TokenFile: p.TokenFile}
}

// weaker writes into a Spec what the operator accepted this host to lack.
func (a *agentRun) weaker(s engine.Spec) engine.Spec {
	s.AcceptMissing = acceptedMechanisms(a.accepted)
	return s
}

// acceptedMechanisms are the mechanisms that may be missing when layers were
// accepted: see the optional features.
func acceptedMechanisms(layers []string) []engine.Mechanism {
	if slices.Contains(layers, string(deny.LayerPod)) {
		return []engine.Mechanism{engine.MechLandlock}
	}
	return nil
}

// keepSpec leaves the Spec of a container beside it, for people and for
// evidence.
func (a *agentRun) keepSpec(s engine.Spec) error {
	return writeJSON(filepath.Join(a.Place.Conf(), s.Name+".spec.json"), s)
}

// readyTimeout bounds how long a container may take until its command runs and
// its listeners are with the gateway.
const readyTimeout = 30 * time.Second

func (a *agentRun) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	var last string
	again := false
	for {
		st, err := a.shimState(ctx, runtimeName, readyLook)
		if err == nil && st.Ready {
			return nil
		}
		if err != nil {
			last = err.Error()
		} else {
			last = st.Waiting
		}
		running, lerr := a.running(ctx)
		if lerr == nil && !running[runtimeName] && a.Want.Mode != team.ModeTask {
			return fmt.Errorf("the runtime ended before it was ready (%s); see `bulkhead logs %s`", last, a.Place.Name)
		}
		if lerr == nil && !running[runtimeName] {
			return nil // a short task may be over already
		}
		if lerr == nil && !running[gatewayName] {
			// Nobody watches yet, so its end would only show when time is up.
			if again {
				return fmt.Errorf("the gateway ended before the runtime was ready (%s); see `bulkhead logs %s --container gateway`", last, a.Place.Name)
			}
			again = true
			a.w.log.Warn("the gateway ended during a start; starting it again", "team", a.Place.Team, "agent", a.Place.Name)
			if err := a.startGateway(ctx); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("not ready after %s: %s", readyTimeout, last)
		}
		pause(ctx, nextLook)
	}
}

// How a runtime that starts is asked: its shim answers when it is ready, or
// after readyLook. Each look costs the shim and the launcher as well, and what
// they wait for needs the same processors.
const (
	readyLook = 250 * time.Millisecond
	nextLook  = 10 * time.Millisecond
)

// shimState asks a container's shim, which may keep its answer back for most
// until it is ready.
func (a *agentRun) shimState(ctx context.Context, container string, most time.Duration) (wire.ShimState, error) {
	c, err := dialWire(ctx, a.Place.ShimSocket(container), wire.ShimProtocol, wire.ShimVersion)
	if err != nil {
		return wire.ShimState{}, err
	}
	defer func() { _ = c.Close() }()
	var st wire.ShimState
	return st, ask(ctx, c, wire.VerbState, wire.StateRequest{WaitMillis: most.Milliseconds()}, &st)
}
