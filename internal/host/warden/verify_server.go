package warden

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/evidence"
	"bulkhead/internal/layout"
)

// probeGroup is where probes of servers run, below our root cgroup. No team can
// have its name, which begins with a capital.
const probeGroup = "Probes"

// attackers are the servers that a team relies on, as attacks see who was taken
// over.
// Those that the manifest has and that are not there, down names with the reason.
func (w *Warden) attackers(t *teamRun) (out []evidence.Agent, down map[string]string) {
	down = map[string]string{}
	add := func(name string, uid uint32) {
		out = append(out, evidence.Agent{Name: name, Place: w.host.Agent(t.name, name), IDs: layout.IDs{Account: uid}, Server: true})
	}
	if t.adapter != nil {
		add(layout.AdapterName, t.adapter.uid)
	}
	for _, s := range w.servicesOf(t) {
		add(s.place.Name, s.uid)
	}
	for _, name := range t.manifest.Services() {
		if s := w.service(name); s == nil {
			down[name] = "the warden has none"
		} else if pids, err := s.pids(); err != nil || len(pids) == 0 {
			down[name] = "it has no process"
		}
	}
	if t.manifest.Front != nil {
		for i := range out {
			out[i].Listens = t.manifest.Front.Listen.String()
		}
	}
	return out, down
}

// serverProbe is a server's cell with the probe as its command. It has neither
// the server's data nor its sockets: what those open is the server's to open.
func (w *Warden) serverProbe(team, name string) (engine.Spec, error) {
	t, err := w.team(team)
	if err != nil {
		return engine.Spec{}, err
	}
	var s engine.Spec
	if name == layout.AdapterName && t.adapter != nil {
		s = adapterSpec(t.adapter.place, t.adapter.uid, w.programs)
	} else {
		v := w.service(name)
		if v == nil {
			return s, fmt.Errorf("warden: there is no server %q", name)
		}
		s = serviceSpec(v.place, v.uid, w.programs)
	}
	s.Mounts = slices.DeleteFunc(s.Mounts, func(m engine.Mount) bool { return m.Target == insideData })
	s.AcceptMissing = acceptedMechanisms(t.state.Accepted)
	s.Name = "probe-" + strings.ToLower(rand.Text()[:10])
	s.Cgroup = filepath.Join(probeGroup, s.Name)
	s.Command = []string{programsDir + "/" + probeProgram}
	return s, nil
}

// probeServer runs a probe where a server runs.
func (w *Warden) probeServer(ctx context.Context, team, name string, request []byte, said func()) (answer []byte, err error) {
	spec, err := w.serverProbe(team, name)
	if err != nil {
		return nil, err
	}
	inside, outside, err := stdioPipes()
	if err != nil {
		return nil, err
	}
	defer closeFiles(outside)
	w.probing.Lock()
	p, err := cell.Start(spec, cell.Options{Cgroups: w.cgroups, Stdin: inside[0], Stdout: inside[1], Stderr: inside[2]})
	w.probing.Unlock()
	closeFiles(inside)
	if err != nil {
		return nil, fmt.Errorf("start a probe like %s: %w", name, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = p.Kill() })
	defer func() {
		stop()
		kerr := p.Kill() // and what it left behind
		_, werr := p.Wait()
		err = errors.Join(err, kerr, werr, p.Cleanup(), p.Close(), w.dropProbes())
	}()
	return converse(ctx, outside[0], outside[1], outside[2], request, said)
}

// dropProbes removes the group of probes when the last one has gone.
func (w *Warden) dropProbes() error {
	w.probing.Lock()
	defer w.probing.Unlock()
	g, err := w.cgroups.Group(probeGroup)
	if err != nil || !g.Exists() {
		return err
	}
	list, err := g.Children()
	if err != nil || len(list) > 0 {
		return err
	}
	return g.Remove()
}
