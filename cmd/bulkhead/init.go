package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"bulkhead/internal/client"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

func newInitCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "init [DIR]",
		Short: "Write a commented bulkhead.yaml",
		Long: `Write a commented bulkhead.yaml to DIR (default: here), which is made with its parents
when it does not exist. A file that is there is never overwritten.`,
		Example: `  bulkhead init
  bulkhead init ./myteam`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			dir := "."
			if len(args) == 1 {
				dir = args[0]
			}
			return a.init(dir)
		},
	}
}

// written is the JSON form of init's result.
type written struct {
	SchemaVersion int    `json:"schemaVersion"`
	Path          string `json:"path"`
}

func (a *app) init(dir string) error {
	cannot := func(err error) error {
		return &client.Error{What: "the manifest cannot be written: " + err.Error(), Mend: "choose a folder that you can write", Exit: wire.ExitFailed, Err: err}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { // #nosec G301 -- the operator's own folder of plain text
		return cannot(err)
	}
	path := filepath.Join(dir, "bulkhead.yaml")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) // #nosec G302 G304 -- holds no secrets; named by the operator
	if errors.Is(err, os.ErrExist) {
		return badInput(path+" is there already and is never overwritten", "edit it, or name another folder: `bulkhead init DIR`")
	}
	if err != nil {
		return cannot(err)
	}
	if _, err = f.Write(team.Example()); err != nil {
		return cannot(errors.Join(err, f.Close()))
	}
	if err := f.Close(); err != nil {
		return cannot(err)
	}
	if a.json {
		return a.printJSON(written{SchemaVersion: 1, Path: path})
	}
	fmt.Fprintln(a.out, "Wrote "+path)
	a.next("edit it, then `bulkhead plan` shows what it would do")
	return nil
}
