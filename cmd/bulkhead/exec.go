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
	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

// ttyFlag is -t: as given, or by what the operator sits at.
type ttyFlag struct{ value bool }

func (f *ttyFlag) register(c *cobra.Command) {
	// Input is passed on always; -i is there for hands that type -it.
	c.Flags().BoolP("interactive", "i", true, "pass input on (always so)")
	_ = c.Flags().MarkHidden("interactive") // it is taken for who is used to write it
	c.Flags().BoolVarP(&f.value, "tty", "t", false, "give it a terminal (default: when this is one)")
}

func (f *ttyFlag) wanted(c *cobra.Command, a *app) bool {
	if c.Flags().Changed("tty") {
		return f.value
	}
	return a.terminal && term.IsTerminal(int(a.in.Fd())) // #nosec G115 -- a descriptor
}

func newExecCommand(a *app) *cobra.Command {
	var container string
	var tty ttyFlag
	c := &cobra.Command{
		Use:   "exec AGENT [flags] -- COMMAND [ARG...]",
		Short: "Run a command inside an agent, behind the same walls",
		Long: `Run a command inside a running agent. It goes through the agent's shim, so it
has the same ids, namespaces, seccomp filter, Landlock domain and limits as the
agent itself. The exit code is that of the command.`,
		Example: `  sudo bulkhead exec writer -- sh
  sudo bulkhead exec writer -- cat /etc/hosts
  sudo bulkhead exec writer --container gateway -- /.bulkhead/bulkhead-shim`,
		Args: agentAndCommand,
		RunE: func(c *cobra.Command, args []string) error {
			if err := oneOf("container", container, "runtime", "gateway"); err != nil {
				return err
			}
			team, err := a.theTeam(c.Context())
			if err != nil {
				return err
			}
			e := a.execRequest(args[1:], tty.wanted(c, a))
			return a.session(c.Context(), wire.VerbExec, wire.AgentExec{Team: team, Agent: args[0], Container: container, Exec: e}, e)
		},
	}
	c.Flags().StringVar(&container, "container", "runtime", "runtime or gateway")
	tty.register(c)
	return c
}

// agentAndCommand wants AGENT -- COMMAND.
func agentAndCommand(c *cobra.Command, args []string) error {
	switch dash := c.ArgsLenAtDash(); {
	case len(args) == 0 || dash == 0:
		return badInput("no agent is named", "write `bulkhead "+c.Name()+" AGENT -- COMMAND`")
	case dash > 1 || dash < 0 && len(args) > 1:
		return badInput("the command is not set apart", "write -- before the command: `bulkhead "+c.Name()+" "+args[0]+" -- COMMAND`")
	case len(args) < 2:
		return badInput("no command is named", "write `bulkhead "+c.Name()+" "+args[0]+" -- COMMAND`")
	}
	return nil
}

func (a *app) execRequest(argv []string, tty bool) wire.ExecRequest {
	e := wire.ExecRequest{Argv: argv, Terminal: tty}
	if !tty {
		return e
	}
	if t := os.Getenv("TERM"); t != "" {
		e.Env = []string{"TERM=" + t}
	}
	// A terminal that does not know its size has 0 by 0, on which some programs
	// fail; this is what terminals began with.
	e.Rows, e.Cols = 24, 80
	if cols, rows, err := term.GetSize(int(a.out.Fd())); err == nil && rows > 0 && cols > 0 { // #nosec G115 -- a descriptor
		e.Rows, e.Cols = uint16(rows), uint16(cols) // #nosec G115 -- the kernel's own 16-bit numbers
	}
	return e
}

// session runs a process and passes its exit code on.
func (a *app) session(ctx context.Context, verb string, body any, e wire.ExecRequest) error {
	// With a terminal, ^C is a byte for the far side. Without, the signal is
	// passed on, and the far side decides; so this program must not end by it.
	// Caught from here on: a signal that comes while the process starts is
	// passed on as well, or calls the start off.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGWINCH, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	s, err := a.client().Start(ctx, verb, body, e.Terminal, a.progress)
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if err != nil {
		return err
	}
	restore, err := a.raw(e.Terminal)
	if err != nil {
		cancel()
		return err
	}
	defer restore()

	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.forward(s, signals, done, e.Terminal)
	}()
	defer func() {
		signal.Stop(signals)
		close(done)
		<-ended
	}()

	out, flushOut := a.agentOutput(a.out, e.Terminal)
	errout, flushErr := a.agentOutput(a.err, e.Terminal)
	exited, err := s.Run(ctx, a.in, out, errout)
	if err := errors.Join(err, flushOut(), flushErr()); err != nil {
		return err
	}
	if exited.Code != 0 {
		return exitCode(exited.Code)
	}
	return nil
}

func (a *app) forward(s *client.Session, signals <-chan os.Signal, done <-chan struct{}, tty bool) {
	for {
		select {
		case <-done:
			return
		case sig := <-signals:
			switch n, _ := sig.(syscall.Signal); {
			case n == syscall.SIGWINCH && tty:
				if cols, rows, err := term.GetSize(int(a.out.Fd())); err == nil { // #nosec G115 -- a descriptor
					_ = s.Resize(uint16(rows), uint16(cols)) // #nosec G115 -- the kernel's own 16-bit numbers
				}
			case n != syscall.SIGWINCH:
				_ = s.Signal(int(n)) // a session that is gone is told by Run
			}
		}
	}
}

// raw puts the operator's terminal into raw mode.
func (a *app) raw(tty bool) (restore func(), err error) {
	fd := int(a.in.Fd()) // #nosec G115 -- a descriptor
	if !tty || !term.IsTerminal(fd) {
		return func() {}, nil
	}
	old, err := term.MakeRaw(fd)
	if err != nil {
		return nil, badInput("this terminal cannot be put into raw mode: "+err.Error(), "run without a terminal: -t=false")
	}
	return func() { _ = term.Restore(fd, old) }, nil
}

// agentOutput cleans what an agent prints when a terminal shows it as text. A
// full terminal session passes as it is: that is what it is for. So do pipes
// and files: they may hold anything.
func (a *app) agentOutput(w io.Writer, tty bool) (out io.Writer, flush func() error) {
	f, ok := w.(*os.File)
	if tty || !ok || !term.IsTerminal(int(f.Fd())) { // #nosec G115 -- a descriptor
		return w, func() error { return nil }
	}
	t := terminal.NewWriter(w)
	return t, t.Flush
}
