package main

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"slices"

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
	if err := os.MkdirAll(a.host.Clones(), 0o700); err != nil {
		return nothing, err
	}
	req.Clones = map[string]string{}
	remove = func() error {
		var errs []error
		for _, path := range req.Clones {
			errs = append(errs, os.RemoveAll(path))
		}
		return errors.Join(errs...)
	}
	for _, one := range m.Agents {
		from, ref, _ := one.Clone()
		if !slices.Contains(plan.Clones, one.Name) {
			continue
		}
		a.progress(wire.Progress{Agent: one.Name, Step: "cloning " + one.Workspace})
		into := filepath.Join(a.host.Clones(), rand.Text())
		if err := imagecmd.Clone(ctx, a.err, gitclone.Request{URL: from, Ref: ref}, into); err != nil {
			return nothing, errors.Join(&client.Error{
				What: "agents." + one.Name + ".workspace: " + err.Error(), Exit: wire.ExitFailed, Err: err,
				Mend: "see above what git said; what needs a key or a certificate of your own you clone yourself, and write the folder; nothing was changed",
			}, remove())
		}
		req.Clones[one.Name] = into
	}
	return remove, nil
}
