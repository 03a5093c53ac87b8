package main

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"bulkhead/internal/client"
	"bulkhead/internal/image/imagecmd"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
	"bulkhead/internal/workspace/gitclone"
)

// clones clones the repositories that workspaces have yet to begin with, writes
// where they lie into the request, and gives the function that removes them.
func (a *app) clones(ctx context.Context, m *team.Manifest, req *wire.ApplyRequest) (remove func() error, err error) {
	nothing := func() error { return nil }
	if !slices.ContainsFunc(m.Agents, func(x *team.Agent) bool { _, _, url := x.Clone(); return url }) {
		return nothing, nil
	}
	var plan wire.PlanResult
	if err := a.client().Call(ctx, wire.VerbPlan, *req, &plan, a.progress); err != nil {
		return nothing, err
	}
	if len(plan.Clones) == 0 {
		return nothing, nil
	}
	held, err := holdClones(a.host.Clones())
	if err != nil {
		return nothing, err
	}
	req.Clones = map[string]string{}
	remove = func() error {
		err := errors.Join(os.RemoveAll(held.Name()), held.Close())
		_ = os.Remove(a.host.Clones()) // when nobody else clones
		return err
	}
	for _, one := range m.Agents {
		from, ref, _ := one.Clone()
		if !slices.Contains(plan.Clones, one.Name) {
			continue
		}
		a.progress(wire.Progress{Agent: one.Name, Step: "cloning " + one.Workspace})
		into := filepath.Join(held.Name(), one.Name)
		limits := one.Limits.WithDefaults()
		if err := imagecmd.Clone(ctx, a.err, gitclone.Request{URL: from, Ref: ref, Bytes: limits.DiskBytes, Entries: int(limits.Inodes)}, into); err != nil {
			return nothing, errors.Join(&client.Error{
				What: "agents." + one.Name + ".workspace: " + err.Error(), Exit: wire.ExitFailed, Err: err,
				Mend: "see above what git said; what needs a key or a certificate of your own you clone yourself, and write the folder; nothing was changed",
			}, remove())
		}
		req.Clones[one.Name] = into
	}
	return remove, nil
}

// holdClones makes a folder for this up below dir and holds it with flock(2), and
// removes those that nobody holds: of an up that was killed.
func holdClones(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		old, err := os.Open(filepath.Join(dir, e.Name())) // #nosec G304 -- root's own folder
		if err != nil {
			continue
		}
		if unix.Flock(int(old.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil { // #nosec G115 -- a descriptor
			err = os.RemoveAll(old.Name())
		}
		if err = errors.Join(err, old.Close()); err != nil {
			return nil, err
		}
	}
	path := filepath.Join(dir, rand.Text())
	if err := os.Mkdir(path, 0o700); err != nil {
		return nil, err
	}
	f, err := os.Open(path) // #nosec G304 -- root's own folder
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil { // #nosec G115 -- a descriptor
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
