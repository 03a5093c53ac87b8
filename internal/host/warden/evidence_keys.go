package warden

import (
	"cmp"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/attest"
	"bulkhead/internal/host/ledger"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/wire"
)

// signingKey is the name of the private key among the keys. Beside it lies each
// public key that ever signed, as <id>.pub.pem.
const signingKey = "signing.pem"

const publicSuffix = ".pub.pem"

// maxKeyFile bounds one key's file.
const maxKeyFile = 4096

// evidenceFolders makes the folders of evidence, and says so first.
func (w *Warden) evidenceFolders(more ...string) error {
	if err := w.ledger.Announce(ledger.Thing{Kind: ledger.StateDir, Name: w.host.Evidence()}); err != nil {
		return err
	}
	if err := tree.MakeAll(tree.Entry{Path: w.host.Evidence(), Mode: 0o700}, tree.Entry{Path: w.host.EvidenceKeys(), Mode: 0o700}); err != nil {
		return err
	}
	for _, dir := range more {
		if err := tree.MakeAll(tree.Entry{Path: filepath.Dir(dir), Mode: 0o700}, tree.Entry{Path: dir, Mode: 0o700}); err != nil {
			return err
		}
	}
	return nil
}

// signer gives the key that signs, and makes it at its first use. The caller
// holds w.signing.
func (w *Warden) signer() (ed25519.PrivateKey, error) {
	if err := w.evidenceFolders(); err != nil {
		return nil, err
	}
	path := filepath.Join(w.host.EvidenceKeys(), signingKey)
	raw, err := tree.ReadFile(path, maxKeyFile, true)
	if errors.Is(err, fs.ErrNotExist) {
		return w.newSigner()
	}
	if err != nil {
		return nil, fmt.Errorf("the key that signs evidence: %w", err)
	}
	key, err := attest.ParsePrivate(raw)
	if err != nil {
		return nil, &fault{wire.Failure{
			Message: fmt.Sprintf("%s cannot be read as a key: %v", path, err), Exit: wire.ExitFailed,
			Mend: "restore it from a backup, or make a new one with `bulkhead evidence key rotate`; evidence that was signed stays good",
		}}
	}
	return key, nil
}

// newSigner makes a key and puts it in force. Its public half is there first: a
// signature by a key that nobody knows would be worse than a key without one.
func (w *Warden) newSigner() (ed25519.PrivateKey, error) {
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, fmt.Errorf("warden: make a key: %w", err)
	}
	id, err := attest.KeyID(pub)
	if err != nil {
		return nil, err
	}
	open, err := attest.EncodePublic(pub)
	if err != nil {
		return nil, err
	}
	secret, err := attest.EncodePrivate(key)
	if err != nil {
		return nil, err
	}
	dir := w.host.EvidenceKeys()
	if err := tree.WriteFile(filepath.Join(dir, id+publicSuffix), open, 0o600, 0); err != nil {
		return nil, err
	}
	if err := tree.WriteFile(filepath.Join(dir, signingKey), secret, 0o600, 0); err != nil {
		return nil, err
	}
	w.log.Info("a new key signs evidence", "key", id)
	return key, nil
}

// evidenceKeys lists the public keys, and makes the first when there is none.
func (w *Warden) evidenceKeys() (*wire.EvidenceKeys, error) {
	w.signing.Lock()
	defer w.signing.Unlock()
	key, err := w.signer()
	if err != nil {
		return nil, err
	}
	return w.publicKeys(key)
}

// rotateEvidenceKey makes another key sign from now on. The private half of the
// former is gone; its public half stays, so that what it signed can be checked.
func (w *Warden) rotateEvidenceKey() (*wire.EvidenceKeys, error) {
	w.signing.Lock()
	defer w.signing.Unlock()
	if err := w.evidenceFolders(); err != nil {
		return nil, err
	}
	key, err := w.newSigner()
	if err != nil {
		return nil, err
	}
	return w.publicKeys(key)
}

func (w *Warden) publicKeys(signer ed25519.PrivateKey) (*wire.EvidenceKeys, error) {
	pub, ok := signer.Public().(ed25519.PublicKey)
	if !ok {
		return nil, errors.New("warden: no Ed25519 key")
	}
	current, err := attest.KeyID(pub)
	if err != nil {
		return nil, err
	}
	names, err := os.ReadDir(w.host.EvidenceKeys())
	if err != nil {
		return nil, fmt.Errorf("warden: %w", err)
	}
	res := &wire.EvidenceKeys{SchemaVersion: 1, Keys: []wire.EvidenceKey{}}
	for _, n := range names {
		id, ok := strings.CutSuffix(n.Name(), publicSuffix)
		if !ok || strings.HasPrefix(id, ".") {
			continue
		}
		path := filepath.Join(w.host.EvidenceKeys(), n.Name())
		raw, err := tree.ReadFile(path, maxKeyFile, false)
		if err != nil {
			return nil, err
		}
		keys, err := attest.ParsePublic(raw)
		if err != nil || len(keys) != 1 || keys[id] == nil {
			return nil, &fault{wire.Failure{Message: path + " does not hold the key that it is named after", Mend: "remove it, or restore it from a backup", Exit: wire.ExitFailed}}
		}
		st, err := n.Info()
		if err != nil {
			return nil, fmt.Errorf("warden: %w", err)
		}
		res.Keys = append(res.Keys, wire.EvidenceKey{ID: id, PEM: string(raw), Current: id == current, Made: st.ModTime().UTC()})
	}
	if !slices.ContainsFunc(res.Keys, func(k wire.EvidenceKey) bool { return k.Current }) {
		return nil, &fault{wire.Failure{Message: "the public half of the key that signs is missing: " + current, Mend: "bulkhead evidence key rotate", Exit: wire.ExitFailed}}
	}
	slices.SortFunc(res.Keys, func(a, b wire.EvidenceKey) int {
		if a.Current != b.Current {
			if a.Current {
				return -1
			}
			return 1
		}
		return cmp.Or(b.Made.Compare(a.Made), cmp.Compare(a.ID, b.ID))
	})
	return res, nil
}
