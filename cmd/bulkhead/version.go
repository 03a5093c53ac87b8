package main

import (
	"cmp"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// versions is the JSON form of version's result.
type versions struct {
	SchemaVersion  int    `json:"schemaVersion"`
	Build          string `json:"build"`
	Go             string `json:"go"`
	Platform       string `json:"platform"`
	Manifest       string `json:"manifest"`
	WardenProtocol int    `json:"wardenProtocol"`
	Warden         string `json:"warden,omitempty"` // build of the running warden
}

func newVersionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the builds of this program and of the running warden",
		Long: `Show the build of this program, the version of the manifest and of the protocol that
it speaks, and the build of the running warden. Without a warden, or without the right
to ask it, its build is left out.`,
		Example: "  bulkhead version --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			v := versions{
				SchemaVersion: 1, Build: build, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
				Manifest: team.APIVersion, WardenProtocol: wire.WardenVersion,
			}
			// Without a warden, or without the right to ask it, its build is left out.
			if b, err := a.client().Ping(c.Context()); err == nil {
				v.Warden = cmp.Or(b, "unknown")
			}
			if a.json {
				return a.printJSON(v)
			}
			fmt.Fprintf(a.out, "bulkhead %s (%s, %s), manifest %s, warden protocol %d\n", v.Build, v.Go, v.Platform, v.Manifest, v.WardenProtocol)
			if v.Warden != "" {
				fmt.Fprintf(a.out, "running warden: build %s\n", v.Warden)
			}
			return nil
		},
	}
}
