package main

import "github.com/spf13/cobra"

func newCompletionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a completion script for a shell",
		Long:  "Print a script that completes commands, flags and names of agents in a shell.",
		Example: `  source <(bulkhead completion bash)
  bulkhead completion zsh > "${fpath[1]}/_bulkhead"
  bulkhead completion fish | source`,
		Args:      cobra.ExactArgs(1),
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(c *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return c.Root().GenBashCompletionV2(a.out, true)
			case "zsh":
				return c.Root().GenZshCompletion(a.out)
			case "fish":
				return c.Root().GenFishCompletion(a.out, true)
			}
			return badInput("completion for "+args[0]+" is not known", "name bash, zsh or fish")
		},
	}
}
