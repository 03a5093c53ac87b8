package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"bulkhead/internal/client"
	"bulkhead/internal/image/imagecmd"
	"bulkhead/internal/layout"
)

// app is what every command works with.
type app struct {
	in       *os.File
	out      *os.File
	err      io.Writer
	host     layout.Host
	socket   string // --socket
	team     string // --team
	json     bool   // --json
	colour   bool   // out is a terminal, and NO_COLOR is not set
	terminal bool   // out is a terminal
	noHelp   error  // why there is no help to show
}

// client reaches the warden.
func (a *app) client() *client.Client { return &client.Client{Socket: a.socket, Build: build} }

// run is the whole program: it gives the exit code.
func run(args []string, in, out, errout *os.File) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	a := &app{in: in, out: out, err: errout, host: layout.Default()}
	a.terminal = term.IsTerminal(int(out.Fd())) // #nosec G115 -- a descriptor
	a.colour = a.terminal && os.Getenv("NO_COLOR") == ""
	root := newRoot(a)
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errout)
	command, err := root.ExecuteContextC(ctx)
	if err = ofCommandLine(command, err); err == nil {
		err = a.noHelp
	}
	var code exitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	}
	return a.report(err)
}

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "bulkhead",
		Short: "Run a team of agents so that one agent's failure stays that agent's failure",
		Long: `Bulkhead runs a team of autonomous agents on this host. Each agent has its own
account, namespaces and list of destinations; everything else is denied.

  bulkhead doctor    see what this host offers
  bulkhead init      write a commented bulkhead.yaml
  bulkhead plan      see what would change
  bulkhead up        put it in force
  bulkhead verify    attack every wall and see what held
  bulkhead prove     say exactly what the kernel lets the team do`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(ofFlag)
	root.PersistentPreRunE = func(*cobra.Command, []string) error { return a.checkTeam() }
	f := root.PersistentFlags()
	f.BoolVar(&a.json, "json", false, "print JSON with a schemaVersion")
	f.StringVar(&a.team, "team", "", "the team, when several run")
	f.StringVar(&a.socket, "socket", a.host.WardenSocket(), "the warden's socket")
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(
		newInitCommand(a), newPlanCommand(a), newUpCommand(a), newStatusCommand(a), newExecCommand(a), newAttachCommand(a),
		newRunCommand(a), newLogsCommand(a), newRestartCommand(a), newStopCommand(a), newPanicCommand(a), newReleaseCommand(a), newDownCommand(a),
		newForwardCommand(a), newWorkspaceCommand(a), newAllowCommand(a), newRevokeCommand(a), newApprovalsCommand(a), newApproveCallCommand(a), newDenyCommand(a), newGrantsCommand(a), newExecutionCommand(a), newTokenCommand(a), newAuditCommand(a), newMessagesCommand(a), newDeadLettersCommand(a), newMetricsCommand(a), newWatchCommand(a), newDenialsCommand(a), newNoticesCommand(a), newWhyCommand(a), newEgressCommand(a),
		newVerifyCommand(a), newProveCommand(a), newEvidenceCommand(a), newDoctorCommand(a), newVersionCommand(a), newCompletionCommand(a), imagecmd.Command(a.host),
	)
	a.helpOn(root)
	return root
}
