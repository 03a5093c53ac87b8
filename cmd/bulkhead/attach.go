package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"bulkhead/internal/client"
	"bulkhead/internal/wire"
)

// The keys that leave a command running: ^P ^Q, as elsewhere.
const (
	leaveFirst  = 'P' & 0x1f
	leaveSecond = 'Q' & 0x1f
)

func newAttachCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "attach AGENT",
		Short: "Join the terminal of an agent's command, and leave it running",
		Long: `Join the terminal of an agent's command: see what it writes from now on, and type.
^P ^Q leaves it running; attach again as often as you like, from several places.
What it wrote before is in its log (bulkhead logs).

A session's command (mode: session, with a command) is started by the first attach
and goes on when you leave. A service or a task needs "terminal: true" in the
manifest. When the command ends, its exit code is this program's.`,
		Example: `  sudo bulkhead attach writer`,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			team, err := a.theTeam(c.Context())
			if err != nil {
				return err
			}
			return a.attach(c.Context(), team, args[0])
		},
	}
}

func (a *app) attach(ctx context.Context, team, agent string) error {
	// Caught from here on: a signal leaves, also while the command starts.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGWINCH, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)

	e := a.execRequest(nil, true)
	s, err := a.client().Start(ctx, wire.VerbAttach, wire.AgentAttach{
		Team: team, Agent: agent, Attach: wire.AttachRequest{Env: e.Env, Rows: e.Rows, Cols: e.Cols},
	}, true, a.progress)
	if err != nil {
		return err
	}
	ctx, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	tty := a.terminal && term.IsTerminal(int(a.in.Fd())) // #nosec G115 -- a descriptor
	restore, err := a.raw(tty)
	if err != nil {
		leave()
		return err
	}
	defer restore()
	if tty {
		s.LeaveOn(leaveFirst, leaveSecond)
		fmt.Fprintf(a.err, "Attached to %s; ^P ^Q leaves it running\r\n", agent)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for sig := range signals {
			if sig != syscall.SIGWINCH {
				leave()
				continue
			}
			if cols, rows, err := term.GetSize(int(a.out.Fd())); err == nil { // #nosec G115 -- a descriptor
				_ = s.Resize(uint16(rows), uint16(cols)) // #nosec G115 -- the kernel's own 16-bit numbers
			}
		}
	}()
	defer func() {
		signal.Stop(signals)
		close(signals)
		<-ended
	}()
	out, flush := a.agentOutput(a.out, tty)
	exited, err := s.Run(ctx, a.in, out, out)
	err = errors.Join(err, flush())
	if errors.Is(err, client.ErrDetached) || ctx.Err() != nil {
		restore()
		fmt.Fprintf(a.err, "\nLeft; the command of %s goes on\n", agent)
		return nil
	}
	if err != nil {
		return err
	}
	if exited.Code != 0 {
		return exitCode(exited.Code)
	}
	return nil
}
