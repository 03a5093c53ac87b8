package evidence

import (
	"errors"
	"net"
	"os"
	"path/filepath"

	"bulkhead/internal/layout"
	"bulkhead/internal/topic"
)

// What decoys find beside files and sockets of the target.
const (
	decoyTokenFile = "/run/bulkhead-token" // of the target's tools
	decoyKnowledge = "/decoy/knowledge"    // of the target and of the attacker
	insideGiven    = "/knowledge"          // where the attacker is given its own
)

// makeKept makes what is kept of agents by root, by the host's servers and by
// their gateways. What is the attacker's own gateway's in a team is the
// target's id's here: the runtime of the attacker may not have it either.
func (s *scene) makeKept() error {
	id := int(s.b.IDs.Runtime())
	var errs []error
	file := func(path string, owner int, mode os.FileMode) {
		errs = append(errs, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("decoy\n"), mode), os.Chmod(path, mode), os.Chown(path, owner, owner)) // #nosec G301 -- the leaf is closed
	}
	folder := func(path string, owner int, mode os.FileMode) {
		errs = append(errs, os.MkdirAll(path, 0o755), os.Chmod(path, mode), os.Chown(path, owner, owner)) // #nosec G301 G302 -- as above
	}
	// Root's, and the servers'.
	services := []layout.Service{}
	for _, name := range layout.ServiceNames() {
		services = append(services, s.host.Service(name))
	}
	for _, v := range services {
		file(v.Tokens(), 0, 0o600)
		errs = append(errs, s.listen(v.OperatorSocket(), 0, 0o600))
		folder(v.Data(), 0, 0o700)
	}
	audit, control := s.host.Service(layout.AuditName), s.host.Service(layout.ControlName)
	for _, p := range []string{
		filepath.Join(audit.Data(), "log.jsonl"), filepath.Join(audit.Data(), "key"), filepath.Join(audit.State, "witness.json"),
		filepath.Join(control.Data(), "tokens.jsonl"), filepath.Join(control.Data(), "keys", "k.json"),
		filepath.Join(s.host.EvidenceKeys(), "key"), s.a.adapter().AdapterTokens(),
	} {
		file(p, 0, 0o600)
	}
	for _, name := range topic.Files(s.a.Place.Team) {
		file(filepath.Join(s.host.Service(layout.TopicsName).Data(), name), 0, 0o600)
	}
	folder(filepath.Join(control.Data(), "keys"), 0, 0o700)
	folder(s.host.EvidenceKeys(), 0, 0o700)
	errs = append(errs, s.listen(s.a.adapter().OperatorSocket(), 0, 0o600), s.listen(s.host.WardenSocket(), 0, 0o660))
	for _, dir := range []string{audit.Control(), control.Control(), s.host.Service(layout.FrontName).Control(), s.a.adapter().Control()} {
		folder(dir, 0, 0o700)
	}
	// The target's, and the attacker's own gateway's.
	for _, a := range []Agent{s.a, s.b} {
		for _, dir := range a.Secrets() {
			if dir == s.a.Place.Workspace() {
				continue // decoys that take too much work in it
			}
			folder(dir, id, 0o700)
		}
		file(filepath.Join(a.Place.Data(), gatewayStore), id, 0o600)
		sockets := []string{a.Place.ProcSocket(), a.Place.ServiceSocket(layout.AuditName), a.Place.ServiceSocket(layout.TopicsName), a.Place.ServiceSocket(layout.FrontName)}
		if a.Name == s.a.Name {
			sockets = append(sockets, a.Place.GatewaySocket(), a.Place.AdapterSocket(), a.Place.LauncherSocket())
		}
		for _, p := range sockets {
			errs = append(errs, s.listen(p, id, 0o660))
		}
	}
	folder(s.b.Place.Conf(), id, 0o755)
	file(filepath.Join(s.b.Place.Conf(), "hosts"), id, 0o644)
	file(decoyTokenFile, id, 0o400)
	file(filepath.Join(decoyKnowledge, "b", "note.md"), id, 0o644)
	folder(filepath.Join(decoyKnowledge, "b"), id, 0o755)
	own := int(s.a.IDs.Runtime())
	file(filepath.Join(decoyKnowledge, "a", "note.md"), own, 0o644)
	folder(filepath.Join(decoyKnowledge, "a"), own, 0o755)
	folder(filepath.Join(decoyRoot, insideGiven), 0, 0o755)
	return errors.Join(errs...)
}

// listen makes a socket that one group may use.
func (s *scene) listen(path string, group int, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { // #nosec G301 -- as on a real host
		return err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	s.sockets = append(s.sockets, l)
	s.net.wait.Go(func() { accept(l, func() {}) })
	return errors.Join(os.Chown(path, 0, group), os.Chmod(path, mode)) // #nosec G302 -- the group is one id
}
