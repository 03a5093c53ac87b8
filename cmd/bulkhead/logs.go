package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

// followEvery is how often a followed log is looked at.
const followEvery = 200 * time.Millisecond

func newLogsCommand(a *app) *cobra.Command {
	var follow bool
	var container string
	var tail int
	c := &cobra.Command{
		Use:   "logs AGENT",
		Short: "Show what an agent printed",
		Long: `Show what an agent's process printed. Control characters are taken out, so that
an agent cannot act on your terminal. With --json each line is one document.

How much is kept is limits.logs of the manifest. With -f you are told when the
agent printed faster than this could be read.`,
		Example: `  sudo bulkhead logs writer --tail 50
  sudo bulkhead logs writer -f
  sudo bulkhead logs writer --container gateway --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if tail < -1 {
				return badInput("--tail is negative", "name how many lines to show, or -1 for all")
			}
			if err := oneOf("container", container, "runtime", "gateway", "dialer"); err != nil {
				return err
			}
			team, err := a.theTeam(c.Context())
			if err != nil {
				return err
			}
			return a.follow(c.Context(), wire.LogsRequest{Team: team, Agent: args[0], Container: container}, tail, follow, a.showLine)
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on showing new lines")
	c.Flags().StringVar(&container, "container", "runtime", "runtime, gateway or dialer")
	c.Flags().IntVar(&tail, "tail", -1, "show only the last lines; -1: all")
	return c
}

// follow shows the last lines of a log, or all with a tail of -1, and goes on
// with new ones until ctx ends when follow is set.
func (a *app) follow(ctx context.Context, req wire.LogsRequest, tail int, follow bool, showLine func(logLine) error) error {
	files, err := a.client().Logs(ctx, req)
	if err != nil {
		return err
	}
	defer func() { closeAll(files) }()
	show := showLine
	var kept *ring
	if tail >= 0 {
		kept = &ring{size: tail}
		show = kept.add
	}
	s := logSplitter{show: show}
	var at int64
	for _, f := range files {
		if at, err = copyFrom(&s, f, 0); err != nil {
			return err
		}
	}
	if !follow {
		if err := s.end(); err != nil {
			return err
		}
	}
	if kept != nil {
		if err := kept.each(showLine); err != nil {
			return err
		}
		s.show = showLine
	}
	for follow {
		select {
		case <-ctx.Done():
			return nil // the operator has seen enough
		case <-time.After(followEvery):
		}
		if len(files) > 0 {
			if at, err = copyFrom(&s, files[len(files)-1], at); err != nil {
				return err
			}
		}
		if files, at, err = a.reopen(ctx, req, &s, files, at); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
	return nil
}

// reopen follows a log that was rotated: the rest of the file that was being read
// is shown first, then every newer one from its start. When that file is not
// kept any more, others may have gone with it, which is said.
func (a *app) reopen(ctx context.Context, req wire.LogsRequest, s *logSplitter, files []*os.File, at int64) ([]*os.File, int64, error) {
	now, err := a.client().Logs(ctx, req)
	if err != nil {
		return files, at, err
	}
	known := -1
	if len(files) > 0 {
		last := files[len(files)-1]
		known = slices.IndexFunc(now, func(f *os.File) bool { return same(f, last) })
	}
	if len(now) == 0 || known == len(now)-1 {
		closeAll(now)
		return files, at, nil
	}
	if len(files) > 0 {
		if _, err := copyFrom(s, files[len(files)-1], at); err != nil {
			closeAll(now)
			return files, at, err
		}
		if known < 0 {
			if err := a.outrun(req.Agent); err != nil {
				closeAll(now)
				return files, at, err
			}
		}
	}
	closeAll(files)
	for _, f := range now[known+1:] {
		if at, err = copyFrom(s, f, 0); err != nil {
			break
		}
	}
	return now, at, err
}

// outrun says that the log went on without us.
func (a *app) outrun(agent string) error {
	text := agent + " printed faster than this was read, so the log was rotated past it: lines may be missing here (limits.logs in the manifest says how much is kept)"
	if a.json {
		return a.showLine(logLine{Time: time.Now().UTC().Format(time.RFC3339Nano), Stream: "bulkhead", Text: text})
	}
	_, err := fmt.Fprintln(a.err, "bulkhead: "+terminal.Line(text))
	return err
}

func same(a, b *os.File) bool {
	x, err1 := a.Stat()
	y, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

// copyFrom feeds what a file holds from offset at on, and gives its new end.
// The position of a passed descriptor is shared, so it is never used.
func copyFrom(s *logSplitter, f *os.File, at int64) (int64, error) {
	n, err := io.Copy(s, io.NewSectionReader(f, at, 1<<62))
	return at + n, err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// showLine prints one line of a log.
func (a *app) showLine(l logLine) error {
	if a.json {
		l.SchemaVersion = 1
		return a.encode(l, "")
	}
	_, err := io.WriteString(a.out, l.clean()+"\n")
	return err
}
