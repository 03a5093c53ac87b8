package main

import (
	"github.com/spf13/cobra"

	"bulkhead/internal/wire"
)

func newRunCommand(a *app) *cobra.Command {
	var tty ttyFlag
	c := &cobra.Command{
		Use:   "run AGENT [flags] -- COMMAND [ARG...]",
		Short: "Run a command in a fresh container of an agent",
		Long: `Run a command in a new container with the agent's image and walls, but without
its home, workspace, destinations or gateway. The container is gone when the
command ends. The exit code is that of the command.`,
		Example: `  sudo bulkhead run writer -- python3 -c 'print(1)'
  sudo bulkhead run writer -- true`,
		Args: agentAndCommand,
		RunE: func(c *cobra.Command, args []string) error {
			team, err := a.theTeam(c.Context())
			if err != nil {
				return err
			}
			e := a.execRequest(args[1:], tty.wanted(c, a))
			return a.session(c.Context(), wire.VerbRun, wire.RunRequest{Team: team, Agent: args[0], Exec: e}, e)
		},
	}
	tty.register(c)
	return c
}
