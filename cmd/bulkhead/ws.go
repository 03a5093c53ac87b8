package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"bulkhead/internal/client"
	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
	"bulkhead/internal/workspace"
)

// workspaceResult is the JSON form of ws.
type workspaceResult struct {
	SchemaVersion int                `json:"schemaVersion"`
	Team          string             `json:"team"`
	Agent         string             `json:"agent"`
	Folder        string             `json:"folder"`
	From          string             `json:"from"` // "agent" or "folder": where the changes come from
	Changes       []workspace.Change `json:"changes"`
	Left          []workspace.Left   `json:"left,omitempty"`
	Done          int                `json:"done"` // changes that were carried out
}

func newWorkspaceCommand(a *app) *cobra.Command {
	var remove bool
	c := &cobra.Command{
		Use:   "ws",
		Short: "Compare an agent's workspace with a folder of yours, and copy files between them",
		Long: `Compare an agent's workspace with a folder of yours, and copy files between them.
Nothing of the agent is executed, and git is not run.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	const rules = `

Nothing of the agent is executed, and git is not run. Links, devices, pipes, sockets
and everything called .git are left out. Without a folder, the current one is meant.`
	verb := func(name, short, long string) *cobra.Command {
		return &cobra.Command{
			Use: name + " AGENT [FOLDER]", Short: short, Long: long + rules,
			Example: "  sudo bulkhead ws " + name + " writer ./project",
			Args:    cobra.RangeArgs(1, 2),
			RunE: func(c *cobra.Command, args []string) error {
				folder := "."
				if len(args) == 2 {
					folder = args[1]
				}
				return a.workspace(c.Context(), name, args[0], folder, remove)
			},
		}
	}
	pull := verb("pull", "Copy what differs from the agent into your folder",
		"Copy files of the agent's workspace that differ into your folder. They are written as\nyou, the person behind sudo. Read what you pulled before you run it.")
	push := verb("push", "Copy what differs from your folder into the agent's workspace",
		"Copy files of your folder that differ into the agent's workspace, where they belong to\nthe agent. Its own changes to the same files are lost.")
	for _, v := range []*cobra.Command{pull, push} {
		v.Flags().BoolVar(&remove, "delete", false, "also remove files that only the destination has")
	}
	c.AddCommand(verb("diff", "Show which files differ", "Show which files of the agent's workspace are new or differ from your folder."), pull, push)
	return c
}

func (a *app) workspace(ctx context.Context, verb, agent, folder string, remove bool) error {
	team, err := a.theTeam(ctx)
	if err != nil {
		return err
	}
	inside, res, err := a.client().Workspace(ctx, wire.WorkspaceRequest{Team: team, Agent: agent, For: verb})
	if err != nil {
		return err
	}
	defer func() { _ = inside.Close() }()
	as, err := workspace.Operator()
	if err != nil {
		return badInput(err.Error(), "run the command with sudo")
	}
	theirs := &workspace.Side{Root: inside, Owner: &res.Owner}
	mine := &workspace.Side{As: as}
	open := func() (err error) {
		if verb == "pull" {
			if err := os.Mkdir(folder, 0o755); err != nil && !errors.Is(err, os.ErrExist) { // #nosec G301 -- the operator's own folder
				return err
			}
		}
		mine.Root, err = os.OpenFile(folder, os.O_RDONLY, 0) // #nosec G304 -- named by the operator, opened as the operator
		return err
	}
	if as != nil {
		err = as(open)
	} else {
		err = open()
	}
	if err != nil {
		return badInput(err.Error(), "name a folder of yours")
	}
	defer func() { _ = mine.Root.Close() }()
	out := workspaceResult{SchemaVersion: 1, Team: team, Agent: agent, Folder: folder, From: "agent"}
	from, to := theirs, mine
	if verb == "push" {
		from, to, out.From = mine, theirs, "folder"
	}
	d, err := workspace.Compare(ctx, from, to)
	if err != nil {
		return badInput(err.Error(), "mend it and run the command again; nothing was copied")
	}
	out.Changes, out.Left = d.Changes, d.Left
	if verb != "diff" {
		out.Done, err = d.Copy(ctx, from, to, remove)
	}
	if a.json {
		if perr := a.printJSON(out); perr != nil {
			return perr
		}
		if err != nil {
			return exitCode(wire.ExitFailed)
		}
		return nil
	}
	a.showWorkspace(out, verb, remove)
	if err != nil {
		return &client.Error{What: "not everything was copied:\n" + err.Error(), Mend: "mend it and run the command again: it is safe to repeat", Exit: wire.ExitFailed, Err: err}
	}
	return nil
}

func (a *app) showWorkspace(r workspaceResult, verb string, remove bool) {
	words := map[workspace.Kind]cell{workspace.Added: {"new", green}, workspace.Changed: {"changed", yellow}, workspace.Missing: {"only here", faint}}
	if r.From == "folder" {
		words[workspace.Missing] = cell{"only inside", faint}
	}
	if remove && verb != "diff" {
		words[workspace.Missing] = cell{"removed", red}
	}
	t := table{head: []string{"FILE", "SIZE", "PATH"}}
	for _, c := range r.Changes {
		t.add(words[c.Change], plain(bytesOf(c.Size)), plain(c.Path))
	}
	if len(r.Changes) > 0 {
		t.write(a.out, a.colour)
	}
	for _, l := range r.Left {
		fmt.Fprintln(a.out, terminal.Line("left out: "+l.Path+": "+l.Why))
	}
	switch {
	case len(r.Changes) == 0:
		fmt.Fprintln(a.out, "No file differs.")
	case verb != "diff":
		fmt.Fprintf(a.out, "%d of %d carried out\n", r.Done, len(r.Changes))
	}
}
