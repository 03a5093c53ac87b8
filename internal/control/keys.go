package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/identity/token"
)

// keyFile is keys/<kid>.json.
type keyFile struct {
	Version int       `json:"version"`
	Kid     string    `json:"kid"`
	Alg     token.Alg `json:"alg"`
	Team    string    `json:"team,omitempty"`
	Agent   string    `json:"agent,omitempty"`
	Created time.Time `json:"created"`
	Until   int64     `json:"until,omitempty"`
	Private []byte    `json:"private"`
}

// signer is one key on disk.
type signer struct {
	*token.Signer
	created time.Time
}

// ring is the folder of keys. Its caller serialises calls.
type ring struct {
	dir  string
	keys []*signer // oldest first
}

func openRing(dir string, now time.Time) (*ring, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("control: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("control: %w", err)
	}
	r := &ring{dir: dir}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue // the rest of a write that was cut short
		}
		s, err := readKey(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		if s.ID+".json" != e.Name() {
			return nil, fmt.Errorf("control: %s holds key %.64q", e.Name(), s.ID)
		}
		r.keys = append(r.keys, s)
	}
	r.sort()
	return r, r.forget(now)
}

func readKey(path string) (*signer, error) {
	st, err := os.Lstat(path)
	if err != nil {
		return nil, fmt.Errorf("control: %w", err)
	}
	if !st.Mode().IsRegular() || st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("control: %s has mode %s: a signing key must be a file that nobody else can read; chmod 600", path, st.Mode())
	}
	raw, err := os.ReadFile(path) // #nosec G304 -- our own data
	if err != nil {
		return nil, fmt.Errorf("control: %w", err)
	}
	var f keyFile
	if err := json.Unmarshal(raw, &f); err != nil || f.Version != 1 {
		return nil, fmt.Errorf("control: %s is no key of version 1; put it back from a backup, or remove it: its tokens end then", path)
	}
	s, err := token.LoadSigner(token.Key{ID: f.Kid, Alg: f.Alg, Team: f.Team, Agent: f.Agent, Until: f.Until}, f.Private)
	if err != nil {
		return nil, err
	}
	return &signer{s, f.Created}, nil
}

func (r *ring) sort() {
	slices.SortStableFunc(r.keys, func(a, b *signer) int { return a.created.Compare(b.created) })
}

func (r *ring) save(s *signer) error {
	private, err := s.Private()
	if err != nil {
		return err
	}
	raw, err := json.Marshal(keyFile{Version: 1, Kid: s.ID, Alg: s.Alg, Team: s.Team, Agent: s.Agent, Created: s.created, Until: s.Until, Private: private})
	if err != nil {
		return fmt.Errorf("control: %w", err)
	}
	return replace(filepath.Join(r.dir, s.ID+".json"), raw)
}

// make makes a key that is on disk when it returns.
func (r *ring) make(alg token.Alg, team, agent string, now time.Time) (*signer, error) {
	made, err := token.NewSigner(alg, team, agent)
	if err != nil {
		return nil, err
	}
	s := &signer{made, now}
	if err := r.save(s); err != nil {
		return nil, err
	}
	r.keys = append(r.keys, s)
	return s, nil
}

// use gives the key that signs; nil: there is none yet.
func (r *ring) use(alg token.Alg, team, agent string) *signer {
	for _, s := range slices.Backward(r.keys) {
		if s.Alg == alg && s.Until == 0 && (alg != token.HS256 || s.Team == team && s.Agent == agent) {
			return s
		}
	}
	return nil
}

// retire gives a key its end.
func (r *ring) retire(s *signer, until time.Time) error {
	before := s.Until
	s.Until = until.Unix()
	if err := r.save(s); err != nil {
		s.Until = before
		return err
	}
	return nil
}

// forget removes keys whose overlap is over.
func (r *ring) forget(now time.Time) error {
	var errs []error
	r.keys = slices.DeleteFunc(r.keys, func(s *signer) bool {
		if s.Until == 0 || now.Unix() < s.Until {
			return false
		}
		if err := os.Remove(filepath.Join(r.dir, s.ID+".json")); err != nil {
			errs = append(errs, fmt.Errorf("control: %w", err))
			return false // kept, but over all the same
		}
		return true
	})
	return errors.Join(errs...)
}
