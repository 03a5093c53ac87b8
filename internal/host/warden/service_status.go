package warden

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"

	"bulkhead/internal/deny"
	"bulkhead/internal/host"
	"bulkhead/internal/host/account"
	"bulkhead/internal/host/doctor"
	"bulkhead/internal/host/ledger"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// recoverServices gives every server that is wanted an owner, which goes on by
// itself and reports in status.
func (w *Warden) recoverServices() {
	for _, name := range layout.ServiceNames() {
		if s := w.service(name); s != nil {
			s.release()
			s.start()
		}
	}
}

// servicesLeft says whether a crash left something of a server.
func (w *Warden) servicesLeft() bool {
	return slices.ContainsFunc(layout.ServiceNames(), func(name string) bool {
		p := w.host.Service(name)
		return w.ledger.Has(ledger.Account, p.Account) || w.ledger.Has(ledger.RunDir, p.Run) || w.ledger.Has(ledger.Cgroup, p.Cgroup())
	})
}

// running are the teams of this host.
func (w *Warden) running() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for name := range w.teams {
		out = append(out, name)
	}
	return out
}

// checkServices says what of a manifest's wish for servers cannot be kept.
func (w *Warden) checkServices(m *team.Manifest) []string {
	var out []string
	names := m.Services()
	if m.Front != nil {
		names = append(names, layout.ControlName)
	}
	for _, name := range names {
		if err := w.accounts.Check(serviceRequest(w.host.Service(name))); err != nil {
			out = append(out, err.Error())
		}
	}
	if m.Front == nil {
		return out
	}
	if m.Front.Cert.Path != "" {
		if _, _, err := frontPair(m.Front); err != nil {
			out = append(out, err.Error())
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, t := range w.teams {
		if o := t.manifest.Front; o != nil && name != m.Team && o.Listen == m.Front.Listen && (o.Cert.Path != m.Front.Cert.Path || o.Key.Path != m.Front.Key.Path) {
			out = append(out, fmt.Sprintf("front.listen: team %s listens on %s with another certificate: choose another port, or the same files", name, o.Listen))
		}
	}
	return out
}

// serviceStatus is a row for each server, read back from the kernel now.
func (w *Warden) serviceStatus(ctx context.Context) []wire.AgentStatus {
	var out []wire.AgentStatus
	for _, name := range layout.ServiceNames() {
		if s := w.service(name); s != nil {
			out = append(out, s.status(ctx))
		}
	}
	return out
}

func (s *service) status(ctx context.Context) wire.AgentStatus {
	s.mu.Lock()
	want, problem, restarts, accepted := s.owned, s.problem, s.restarts, s.wants.accepted
	members := len(s.wants.members)
	s.mu.Unlock()
	c := wire.ContainerStatus{Name: s.place.Name, HostID: s.uid}
	if p := s.w.adopt(s.processPath(), s.uid, s.place.Cgroup()); p != nil {
		c.Running, c.PID, c.MemoryBytes = p.alive(), p.identity.PID, s.w.memoryOf(s.place.Cgroup())
		_ = p.pidfd.Close()
	}
	out := wire.AgentStatus{
		Agent: s.place.Name, Account: s.place.Account, Range: "account " + strconv.FormatUint(uint64(s.uid), 10), Restarts: restarts, Why: problem,
		Containers: []wire.ContainerStatus{c}, Layers: []wire.LayerStatus{},
	}
	inForce := true
	add := func(layer deny.Layer, i host.Inspection, err error) {
		l := wire.LayerStatus{Layer: string(layer), InForce: err == nil && i.InForce, Witness: i.Witness}
		if err != nil {
			l.Witness = err.Error()
		}
		holds := l.InForce
		if slices.Contains(accepted, l.Layer) {
			l.InForce = false
			l.Witness = lacking(ctx, doctor.Here(), doctor.Features(), l.Layer) + ", accepted by the operator; the rest: " + l.Witness
		}
		if !holds {
			inForce = false
			if out.Why == "" {
				out.Why = "layer " + l.Layer + " is not in force: " + l.Witness
			}
		}
		out.Layers = append(out.Layers, l)
	}
	i, err := s.inspectAccount()
	add(deny.LayerAccount, i, err)
	add(deny.LayerEgress, inspectNoNetwork(c), nil)
	if s.place.Name != layout.ControlName {
		i, err = s.inspectSockets(members)
		add(deny.LayerTools, i, err)
	}
	add(deny.LayerPod, inspectCell(c, s.uid), nil)
	out.State = stateWord(want, problem, c.Running, inForce, c.Running)
	return out
}

// inspectAccount reads the account files back.
func (s *service) inspectAccount() (host.Inspection, error) {
	d, err := account.Read(s.w.accounts.Etc)
	if err != nil {
		return host.Inspection{}, err
	}
	u, ok := d.User(s.place.Account)
	switch {
	case !ok:
		return host.Inspection{Witness: s.w.accounts.Etc + "/passwd does not hold " + s.place.Account}, nil
	case u.UID != s.uid:
		return host.Inspection{Witness: fmt.Sprintf("%s has uid %d, its process %d; bulkhead up", u.Name, u.UID, s.uid)}, nil
	}
	st, ok, err := tree.Owner(s.place.Data())
	if err != nil || !ok || st != s.uid {
		return host.Inspection{Witness: s.place.Data() + " does not belong to " + u.Name}, err
	}
	if fi, err := os.Lstat(s.place.Data()); err != nil || fi.Mode().Perm() != 0o700 {
		return host.Inspection{Witness: s.place.Data() + " is open to others"}, err
	}
	return host.Inspection{InForce: true, Witness: fmt.Sprintf("/etc/passwd uid %d, no subordinate ids; its data are its own, mode 0700", u.UID)}, nil
}

// inspectSockets reads back who may connect to whose socket.
func (s *service) inspectSockets(n int) (host.Inspection, error) {
	s.mu.Lock()
	members := s.wants.members
	s.mu.Unlock()
	for _, m := range members {
		if problem, err := socketProblem(s.w.host.Agent(m.Team, m.Agent).ServiceSocket(s.place.Name), m.GatewayID); problem != "" || err != nil {
			return host.Inspection{Witness: problem}, err
		}
	}
	if problem, err := socketProblem(s.place.OperatorSocket(), 0); problem != "" || err != nil {
		return host.Inspection{Witness: problem}, err
	}
	return host.Inspection{InForce: true, Witness: fmt.Sprintf("/proc/net/unix: %d agents' sockets and root's listen, each for one id", n)}, nil
}
