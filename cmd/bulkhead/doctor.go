package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"bulkhead/internal/client"
	"bulkhead/internal/deny"
	"bulkhead/internal/host/doctor"
	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

func newDoctorCommand(a *app) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Read what this host offers, and how to mend what it lacks",
		Long: `Read what this host offers to each layer: what was found and where, why it
matters, and the mend. Nothing is changed. Without root some lines are unknown.
The command ends with 0 when nothing is missing, else with 1.`,
		Example: `  sudo bulkhead doctor
  bulkhead doctor --all
  bulkhead doctor --json | jq '.lines[] | select(.state != "ok")'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			h := doctor.Here()
			h.Layout, h.Build = a.host, build
			h.Ping = func(ctx context.Context) (string, bool, error) {
				b, err := a.client().Ping(ctx)
				return b, client.NotRunning(err), err
			}
			return a.diagnosis(doctor.Examine(c.Context(), h), all)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "explain the lines that are well, too")
	return c
}

// diagnosis shows a report and gives the exit code.
func (a *app) diagnosis(r doctor.Report, all bool) error {
	if a.json {
		if err := a.printJSON(r); err != nil {
			return err
		}
	} else {
		a.showReport(r, all)
	}
	if r.Missing > 0 {
		return exitCode(wire.ExitFailed)
	}
	return nil
}

func (a *app) showReport(r doctor.Report, all bool) {
	paints := map[doctor.State]string{doctor.OK: green, doctor.Weak: yellow, doctor.Missing: red, doctor.NotSupported: yellow, doctor.Unknown: yellow}
	const indent = "                 "
	count := map[doctor.State]int{}
	var layer deny.Layer
	for _, l := range r.Lines {
		count[l.State]++
		if l.Layer != layer {
			if layer != "" {
				fmt.Fprintln(a.out)
			}
			layer = l.Layer
			fmt.Fprintln(a.out, layer)
		}
		state := fmt.Sprintf("%-13s", l.State)
		if a.colour {
			state = "\x1b[" + paints[l.State] + "m" + state + "\x1b[0m"
		}
		// What is found is written by other programs, agents' accounts among them.
		fmt.Fprintf(a.out, "  %s  %s: %s\n", state, l.Name, terminal.Line(l.Found))
		if l.State == doctor.OK && !all {
			continue
		}
		fmt.Fprintln(a.out, indent+"read:    "+terminal.Line(l.Where))
		fmt.Fprintln(a.out, indent+"why:     "+l.Why)
		if l.Mend != "" {
			mend := strings.ReplaceAll(strings.TrimRight(terminal.Text(l.Mend), "\n"), "\n", "\n"+indent+"         ")
			fmt.Fprintln(a.out, indent+"to mend: "+mend)
		}
	}
	var sums []string
	for _, s := range []doctor.State{doctor.OK, doctor.Weak, doctor.Missing, doctor.NotSupported, doctor.Unknown} {
		if count[s] > 0 {
			sums = append(sums, fmt.Sprintf("%d %s", count[s], s))
		}
	}
	fmt.Fprintln(a.out, "\n"+strings.Join(sums, ", "))
	if r.Missing > 0 {
		a.next("mend what is missing; then `bulkhead doctor` again")
		return
	}
	a.next("`bulkhead init` writes a commented bulkhead.yaml")
}
