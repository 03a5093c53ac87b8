package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"bulkhead/internal/client"
	"bulkhead/internal/preset"
	"bulkhead/internal/team"
	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

const defaultManifest = "bulkhead.yaml"

// manifestFlag adds -f.
func manifestFlag(c *cobra.Command, path *string) {
	c.Flags().StringVarP(path, "file", "f", defaultManifest, "the manifest")
	_ = c.MarkFlagFilename("file", "yaml", "yml") // the flag exists
}

// theManifest is readManifest for a command that has --team, which must not
// name another team than the manifest does. Presets are expanded here, by the
// operator's own clients: the warden runs none.
func (a *app) theManifest(ctx context.Context, path string) (*team.Manifest, wire.ApplyRequest, error) {
	m, req, err := readManifest(path)
	if err == nil && a.team != "" && a.team != m.Team {
		err = badInput("--team "+a.team+", but "+path+" is the manifest of team "+m.Team, "leave out --team, or name the other manifest with -f")
	}
	if err != nil || len(m.Presets) == 0 {
		return m, req, err
	}
	a.progress(wire.Progress{Step: "asking " + strings.Join(m.Presets, ", ") + " for their hosts"})
	if req.Presets, err = preset.Expand(ctx, m.Presets, preset.Client); err != nil {
		return nil, req, badInput(err.Error(), "mend that client's configuration, or list the hosts themselves under egress; nothing was changed")
	}
	m, err = team.ParseWith(filepath.Clean(path), req.Manifest, req.Presets)
	return m, req, err
}

// showPresets says what presets stand for.
func (a *app) showPresets(list map[string][]string) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintln(a.out, "\nPresets, by the configuration of their clients on this host:")
	for _, name := range slices.Sorted(maps.Keys(list)) {
		fmt.Fprintln(a.out, terminal.Line("  "+name+": "+strings.Join(list[name], ", ")))
	}
}

// readManifest reads and checks a manifest, and gives it as the request that
// the warden checks again.
func readManifest(path string) (*team.Manifest, wire.ApplyRequest, error) {
	path = filepath.Clean(path)
	fail := func(err error) (*team.Manifest, wire.ApplyRequest, error) {
		mend := "name the manifest with -f"
		if errors.Is(err, os.ErrNotExist) {
			mend = "write one with `bulkhead init`, or name another with -f"
		}
		return nil, wire.ApplyRequest{}, &client.Error{What: "the manifest cannot be read: " + err.Error(), Mend: mend, Exit: wire.ExitBadInput, Err: err}
	}
	f, err := os.Open(path) // #nosec G304 -- named by the operator
	if err != nil {
		return fail(err)
	}
	defer func() { _ = f.Close() }()
	// One byte more than is allowed, so that Parse can tell.
	data, err := io.ReadAll(io.LimitReader(f, team.MaxSize+1))
	if err != nil {
		return fail(err)
	}
	m, err := team.Parse(path, data)
	if err != nil {
		return nil, wire.ApplyRequest{}, err
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return fail(err)
	}
	return m, wire.ApplyRequest{Path: abs, Manifest: data}, nil
}

// changes prints what a plan would do or up did.
func (a *app) changes(list []wire.Change, heads map[wire.Action]string) {
	t := table{head: []string{"AGENT", "CHANGE", "WHY"}}
	paint := map[wire.Action]string{
		wire.ActionCreate: green, wire.ActionUpdate: green, wire.ActionRestart: yellow, wire.ActionRemove: red, wire.ActionKeep: faint, wire.ActionStart: green,
	}
	for _, c := range list {
		why := ""
		if len(c.Why) > 0 {
			why = c.Why[0]
		}
		t.add(plain(c.Agent), cell{heads[c.Action], paint[c.Action]}, plain(why))
		for _, more := range c.Why[min(1, len(c.Why)):] {
			t.add(plain(""), plain(""), plain(more))
		}
	}
	t.write(a.out, a.colour)
}

func (a *app) missing(layers []string) {
	if len(layers) > 0 {
		fmt.Fprintln(a.out)
	}
	for _, l := range layers {
		fmt.Fprintln(a.out, "Not in force on this host: layer "+terminal.Line(l))
	}
}
