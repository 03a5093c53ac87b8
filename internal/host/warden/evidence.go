package warden

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/attest"
	"bulkhead/internal/host/ledger"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/wire"
)

// maxEvidence bounds the history of one team; the oldest go first.
const maxEvidence = 200

// evidenceTime is how an id begins.
const evidenceTime = "20060102T150405.000Z"

// makeEvidence attacks and proves a whole team, and signs what was seen.
func (w *Warden) makeEvidence(ctx context.Context, req wire.EvidenceRequest, say progress) (*wire.EvidenceEntry, error) {
	t, err := w.team(req.Team)
	if err != nil {
		return nil, err
	}
	attacks, err := w.verify(ctx, wire.VerifyRequest{Team: t.name, NoControls: req.NoControls}, say)
	if err != nil {
		return nil, err
	}
	say("", "reading the kernel back")
	proofs, err := w.prove(ctx, wire.TeamRequest{Team: t.name})
	if err != nil {
		return nil, err
	}
	e := attest.Evidence{Team: t.name, Time: time.Now().UTC().Truncate(time.Millisecond), Build: w.cfg.Build, Kernel: proofs.Kernel}
	if e.Verify, err = json.Marshal(attacks); err != nil {
		return nil, fmt.Errorf("warden: %w", err)
	}
	if e.Prove, err = json.Marshal(proofs); err != nil {
		return nil, fmt.Errorf("warden: %w", err)
	}
	subject, configuration, open, err := w.subjects(t)
	if err != nil {
		return nil, err
	}
	e.NotCovered = append(w.notCovered(t, req.NoControls), open...)
	for _, l := range attacks.LeftOut {
		e.NotCovered = append(e.NotCovered, l.String())
	}
	s, err := attest.New(subject, configuration, e)
	if err != nil {
		return nil, err
	}
	say("", "signing")
	return w.keepEvidence(s)
}

// keepEvidence signs a statement and adds it to its team's history.
func (w *Warden) keepEvidence(s *attest.Statement) (*wire.EvidenceEntry, error) {
	w.signing.Lock()
	defer w.signing.Unlock()
	key, err := w.signer()
	if err != nil {
		return nil, err
	}
	file, err := attest.Sign(s, key)
	if err != nil {
		return nil, err
	}
	e := &s.Predicate.Evidence
	dir := w.host.EvidenceOf(e.Team)
	if err := w.evidenceFolders(dir); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(file)
	id := e.Time.Format(evidenceTime) + "-" + strings.ToLower(s.Predicate.Result) + "-" + hex.EncodeToString(sum[:4])
	if err := tree.WriteFile(filepath.Join(dir, id+".json"), file, 0o600, 0); err != nil {
		return nil, err
	}
	list, err := w.evidenceOf(e.Team)
	if err != nil {
		return nil, err
	}
	for len(list) > maxEvidence {
		if err := tree.Remove(list[0].Path); err != nil {
			return nil, err
		}
		list = list[1:]
	}
	i := slices.IndexFunc(list, func(x wire.EvidenceEntry) bool { return x.ID == id })
	if i < 0 {
		return nil, errors.New("warden: the evidence that was written is not there; has the clock gone back?")
	}
	list[i].SchemaVersion = 1
	w.log.Info("evidence", "team", e.Team, "id", id, "result", s.Predicate.Result)
	return &list[i], nil
}

// evidenceOf lists a team's history by the names of its files, oldest first.
func (w *Warden) evidenceOf(team string) ([]wire.EvidenceEntry, error) {
	dir := w.host.EvidenceOf(team)
	names, err := os.ReadDir(dir) // sorted
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("warden: %w", err)
	}
	out := []wire.EvidenceEntry{}
	for _, n := range names {
		e, ok := parseEvidenceName(n.Name())
		if !ok {
			continue
		}
		st, err := n.Info()
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("warden: %w", err)
		}
		e.Team, e.Bytes, e.Path = team, st.Size(), filepath.Join(dir, n.Name())
		out = append(out, e)
	}
	return out, nil
}

// parseEvidenceName reads TIME-RESULT-DIGEST.json.
func parseEvidenceName(name string) (wire.EvidenceEntry, bool) {
	id, ok := strings.CutSuffix(name, ".json")
	f := strings.Split(id, "-")
	if !ok || len(f) != 3 {
		return wire.EvidenceEntry{}, false
	}
	at, err := time.Parse(evidenceTime, f[0])
	result := strings.ToUpper(f[1])
	if err != nil || !slices.Contains([]string{attest.Passed, attest.Warned, attest.Failed}, result) {
		return wire.EvidenceEntry{}, false
	}
	return wire.EvidenceEntry{ID: id, Time: at, Result: result}, true
}

// evidenceTeam lets an operator name a team that is down by now, too.
func (w *Warden) evidenceTeam(name string) (string, error) {
	t, err := w.team(name)
	if err == nil {
		return t.name, nil
	}
	if name != "" && filepath.Base(name) == name {
		if _, serr := os.Stat(w.host.EvidenceOf(name)); serr == nil {
			return name, nil
		}
	}
	return "", err
}

func (w *Warden) listEvidence(req wire.TeamRequest) (*wire.EvidenceList, error) {
	name, err := w.evidenceTeam(req.Team)
	if err != nil {
		return nil, err
	}
	w.signing.Lock()
	defer w.signing.Unlock()
	list, err := w.evidenceOf(name)
	if err != nil {
		return nil, err
	}
	return &wire.EvidenceList{SchemaVersion: 1, Team: name, Evidence: list}, nil
}

// evidenceFile passes one file of the history.
func (c *call) evidenceFile() error {
	var req wire.EvidenceFileRequest
	if err := json.Unmarshal(c.body, &req); err != nil {
		return badInput("the request does not decode: "+err.Error(), "use the bulkhead program of the same build")
	}
	list, err := c.w.listEvidence(wire.TeamRequest{Team: req.Team})
	if err != nil {
		return err
	}
	for i := range list.Evidence {
		e := &list.Evidence[i]
		if e.ID != req.ID {
			continue
		}
		f, err := os.Open(e.Path) // #nosec G304 -- a name that was read from root's own folder
		if err != nil {
			return fmt.Errorf("warden: %w", err)
		}
		defer func() { _ = f.Close() }()
		e.SchemaVersion = 1
		return c.conn.Send(c.id, wire.VerbResult, e, f)
	}
	return badInput(fmt.Sprintf("team %s has no evidence %.100q", list.Team, req.ID), "see `bulkhead evidence list`, or name a file by its path")
}

// purgeEvidence removes the histories of teams that are gone, and the keys with
// the last of them; an empty name means every team. The caller holds w.change.
func (w *Warden) purgeEvidence(team string) (gone []string, err error) {
	w.signing.Lock()
	defer w.signing.Unlock()
	w.mu.Lock()
	left := map[string]bool{}
	for name := range w.teams {
		left[name] = true
	}
	for name := range w.unreadable {
		left[name] = true
	}
	w.mu.Unlock()
	parent := filepath.Dir(w.host.EvidenceOf("x"))
	names, err := os.ReadDir(parent)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("warden: %w", err)
	}
	kept := len(left)
	for _, n := range names {
		if left[n.Name()] {
			continue
		}
		if team != "" && n.Name() != team {
			kept++
			continue
		}
		dir := w.host.EvidenceOf(n.Name())
		if err := tree.Remove(dir); err != nil {
			return gone, err
		}
		gone = append(gone, dir)
	}
	thing := ledger.Thing{Kind: ledger.StateDir, Name: w.host.Evidence()}
	if kept > 0 || !w.ledger.Has(thing.Kind, thing.Name) {
		return gone, nil
	}
	if err := tree.Remove(w.host.Evidence()); err != nil {
		return gone, err
	}
	return append(gone, w.host.Evidence()), w.ledger.Forget(thing)
}
