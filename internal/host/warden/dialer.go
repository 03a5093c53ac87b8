package warden

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"bulkhead/internal/dial"
	"bulkhead/internal/dialer"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/gateway/gatewayconfig"
	"bulkhead/internal/host"
	"bulkhead/internal/wire"
)

// ensureDialer starts or adopts the agent's dialer and serves its pin socket.
// The agent's rules are in force already.
func (a *agentRun) ensureDialer() error {
	if a.dialer != nil && a.dialer.alive() {
		return nil
	}
	if a.dialer != nil {
		a.dialer.kill() // frees its descriptors and cgroup
		a.dialer = nil
	}
	// The pin socket is always this warden's own: a former one took its
	// listener along, and dialers connect again by path.
	pin, err := listen(a.Place.PinSocket(), 0o660, int(a.IDs.Dialer))
	if err != nil {
		return err
	}
	if err := a.w.pins.Add(a.Place.Account, a.IDs.Dialer, pin, a.policy()); err != nil {
		_ = pin.Close()
		return err
	}
	if a.dialer = a.adoptDialer(); a.dialer != nil {
		return nil
	}
	if err := a.w.killCgroup(cgroupOf(&a.Agent, dialerName)); err != nil {
		return err
	}
	a.dialer, err = a.startDialer()
	return err
}

func (a *agentRun) adoptDialer() *process {
	if a.run.Dialer == 0 {
		return nil
	}
	path := filepath.Join(a.Place.Run, "dialer.json")
	return a.w.adopt(path, a.IDs.Dialer, cgroupOf(&a.Agent, dialerName))
}

func (a *agentRun) startDialer() (*process, error) {
	ln, err := listen(a.Place.DialerSocket(), 0o660, int(a.IDs.Gateway()))
	if err != nil {
		return nil, err
	}
	defer func() { _ = ln.Close() }()
	lf, err := ln.File()
	if err != nil {
		return nil, fmt.Errorf("warden: %w", err)
	}
	defer func() { _ = lf.Close() }()
	connections := a.Want.Limits.WithDefaults().Connections
	cf, err := sealed("dialer-config", dialer.Config{
		Gateway: a.IDs.Gateway(), PinSocket: insidePin + "/pin.sock",
		Connections: int(connections), PerSecond: perSecond(connections), Relay: a.Want.Upstream != nil,
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = cf.Close() }()
	log, err := openLog(filepath.Join(a.Place.Logs(), dialerName+".log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	spec := a.weaker(dialerSpec(&a.Agent, a.programs()))
	if err := a.keepSpec(spec); err != nil {
		return nil, err
	}
	p, err := cell.Start(spec, cell.Options{
		Cgroups: a.w.cgroups, Bare: a.w.bare, Stdout: log, Stderr: log, Files: []*os.File{lf, cf},
	})
	if err != nil {
		return nil, fmt.Errorf("start the dialer: %w", err)
	}
	d := started(p)
	return d, writeJSON(filepath.Join(a.Place.Run, "dialer.json"), d.identity)
}

// perSecond is how many connections an agent may make in a second for long when
// so many may be open at a time.
func perSecond(connections int64) int { return int(max(1, connections/4)) }

func gatewayConfig(a *host.Agent, token string) gatewayconfig.Config {
	return gatewayconfig.Config{
		TakesGrants: true,
		Team:        a.Place.Team, Agent: a.Place.Name, Token: token, Egress: a.Want.Egress, Hosts: a.Want.Hosts,
		DialerSocket: insideDialer + "/dialer.sock", Data: insideData, Tools: a.Want.Tools, Ask: a.Want.Ask,
	}
}

func staticListeners(a *host.Agent) []wire.Listener { return dial.StaticFor(a.Want).Listeners }

// sealed makes a sealed file in memory with v as JSON: a configuration that is
// on no disk, in no environment and in no argument, and that its reader cannot
// change for another holder.
func sealed(name string, v any) (*os.File, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("warden: encode %s: %w", name, err)
	}
	return cell.Sealed(name, raw)
}
