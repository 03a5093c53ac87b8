package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

func newStatusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show what runs and which layers are in force",
		Long: `Show what runs, read from the kernel at this moment. An agent is "running" only
when all of its containers run and every layer was read back as in force.`,
		Example: `  bulkhead status
  bulkhead status --team pair --json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var res wire.StatusResult
			if err := a.client().Call(c.Context(), wire.VerbStatus, wire.TeamRequest{Team: a.team}, &res, a.progress); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res)
			}
			if len(res.Teams) == 0 {
				fmt.Fprintln(a.out, "No team is up.")
				a.next("`sudo bulkhead up` puts a manifest in force")
				return nil
			}
			wrong := a.teams(res)
			a.builds(res)
			switch {
			case fenced(res) != "":
				a.next("`sudo bulkhead release "+fenced(res)+"` lets it go on as it was", "`bulkhead logs "+fenced(res)+"` shows what it printed")
			case wrong:
				a.next("`bulkhead logs AGENT` shows what it printed", "`sudo bulkhead restart AGENT` makes it anew")
			}
			return nil
		},
	}
}

// fenced is the first agent that is cut off; "" when none is.
func fenced(res wire.StatusResult) string {
	for _, t := range res.Teams {
		for _, s := range t.Agents {
			if s.Fence != nil {
				return s.Agent
			}
		}
		if t.Guests != nil && len(t.Guests.Fenced) > 0 {
			return t.Guests.Fenced[0]
		}
	}
	return ""
}

// teams prints each team's table and, below it, what is wrong; it says whether
// something is.
func (a *app) teams(res wire.StatusResult) (wrong bool) {
	for i, t := range res.Teams {
		if i > 0 {
			fmt.Fprintln(a.out)
		}
		fmt.Fprintf(a.out, "Team %s\n\n", terminal.Line(t.Team))
		tab := table{head: []string{"AGENT", "STATE", "CONTAINERS", "MEMORY", "DISK", "RESTARTS", "LAYERS", "ACCOUNT"}}
		var below, tail, notices, asks, raised []string
		for _, s := range t.Agents {
			layers, notes := layersOf(s)
			tab.add(plain(s.Agent), cell{s.State, statePaint(s.State)}, plain(containersOf(s)), plain(bytesOf(memoryOf(s))), diskOf(s),
				plain(strconv.Itoa(s.Restarts)), layers, plain(s.Account))
			if s.Why != "" {
				below = append(below, s.Agent+": "+s.Why)
			}
			if s.State == "stopped" {
				notes = nil // nothing runs that the layers would have to hold
			}
			for _, g := range s.Grants {
				tail = append(tail, s.Agent+": "+grantText(g))
			}
			told := toldOf(s, time.Now())
			below = append(below, told.wrong...)
			notices, asks = append(notices, told.notices...), append(asks, told.asks...)
			if s.Raised != nil {
				raised = append(raised, s.Agent+": "+raisedText(*s.Raised))
			}
			for _, n := range notes {
				below = append(below, s.Agent+": "+n)
			}
		}
		tab.write(a.out, a.colour)
		if line := guestsOf(t.Guests); line != "" {
			fmt.Fprintln(a.out, "\n"+terminal.Line(line))
		}
		for _, part := range []struct {
			head  string
			lines []string
		}{{"Temporary destinations:", tail}, {"Raised limits:", raised}, {"Notices:", notices}, {"Calls that wait for you:", asks}} {
			if len(part.lines) == 0 {
				continue
			}
			fmt.Fprintln(a.out, "\n"+part.head)
			for _, l := range part.lines {
				fmt.Fprintln(a.out, "  "+terminal.Line(l))
			}
		}
		if len(below) > 0 {
			wrong = true
			fmt.Fprintln(a.out)
			for _, l := range below {
				fmt.Fprintln(a.out, "  "+terminal.Line(l))
			}
		}
	}
	return a.services(res) || wrong
}

// builds says which warden runs, and which agents an earlier one started: an
// upgrade restarts nobody.
func (a *app) builds(res wire.StatusResult) {
	var former []string
	for _, t := range res.Teams {
		for _, s := range t.Agents {
			if s.Programs != "" && s.Programs != res.Programs {
				former = append(former, s.Agent)
			}
		}
	}
	if res.Build != "" {
		fmt.Fprintln(a.out, "\nWarden of build "+terminal.Line(res.Build))
	}
	if len(former) > 0 {
		fmt.Fprintln(a.out, "With the programs of an earlier build, until `sudo bulkhead restart AGENT`: "+terminal.Line(strings.Join(former, ", ")))
	}
}

// guestsOf is one line about agents that were made through front, however many
// there are.
func guestsOf(g *wire.GuestStatus) string {
	if g == nil || g.Made == 0 && g.Max == 0 {
		return ""
	}
	line := fmt.Sprintf("Guests: %d of %d", g.Made, g.Max)
	named := func(what string, n int, names []string) {
		if n == 0 {
			return
		}
		line += fmt.Sprintf(", %d %s", n, what)
		if n <= fewGuests {
			line += " (" + strings.Join(names, ", ") + ")"
		}
	}
	named("awake", g.Running, g.Awake)
	named("asleep", g.Made-g.Running, g.Asleep)
	if g.Running > 0 {
		line += fmt.Sprintf("; %s in memory, at most %d awake", bytesOf(g.MemoryBytes), g.MaxAwake)
	}
	if len(g.Fenced) > 0 {
		line += "; fenced: " + strings.Join(g.Fenced, ", ")
	}
	if g.Fence != nil {
		line += "; fenced since " + g.Fence.Since.Format(time.RFC3339) + " by " + g.Fence.By
	}
	return line
}

// fewGuests are named one by one.
const fewGuests = 5

// services prints a row for each of the host's own servers; it says whether
// something is wrong.
func (a *app) services(res wire.StatusResult) (wrong bool) {
	if len(res.Services) == 0 {
		return false
	}
	fmt.Fprint(a.out, "\nServers of this host\n\n")
	tab := table{head: []string{"SERVER", "STATE", "MEMORY", "RESTARTS", "LAYERS", "ACCOUNT"}}
	var below []string
	for _, s := range res.Services {
		layers, notes := layersOf(s)
		tab.add(plain(s.Agent), cell{s.State, statePaint(s.State)}, plain(bytesOf(memoryOf(s))), plain(strconv.Itoa(s.Restarts)), layers, plain(s.Account))
		if s.Why != "" {
			below = append(below, s.Agent+": "+s.Why)
		}
		for _, n := range notes {
			below = append(below, s.Agent+": "+n)
		}
	}
	tab.write(a.out, a.colour)
	for i, l := range below {
		if i == 0 {
			fmt.Fprintln(a.out)
		}
		fmt.Fprintln(a.out, "  "+terminal.Line(l))
	}
	return len(below) > 0
}

func statePaint(state string) string {
	switch state {
	case "running":
		return green
	case "starting", "degraded":
		return yellow
	case "failed", "fenced":
		return red
	}
	return ""
}

func containersOf(s wire.AgentStatus) string {
	var names []string
	for _, c := range s.Containers {
		switch {
		case c.Running:
			names = append(names, c.Name)
		case c.Exit != nil:
			names = append(names, c.Name+" (exit "+strconv.Itoa(*c.Exit)+")")
		default:
			names = append(names, c.Name+" (down)")
		}
	}
	if len(names) == 0 {
		return "-"
	}
	return strings.Join(names, ", ")
}

func memoryOf(s wire.AgentStatus) int64 {
	var sum int64
	for _, c := range s.Containers {
		sum += c.MemoryBytes
	}
	return sum
}

// diskOf is the disk that the agent itself writes to.
func diskOf(s wire.AgentStatus) cell {
	for _, d := range s.Disks {
		if d.Name != "runtime" {
			continue
		}
		c := plain(fmt.Sprintf("%d%% of %s", d.UsedBytes*100/max(1, d.Bytes), bytesOf(d.Bytes)))
		if d.UsedInodes >= d.Inodes {
			c.text = "no inodes left"
		}
		if d.UsedBytes*10 >= d.Bytes*9 || d.UsedInodes*10 >= d.Inodes*9 {
			c.paint = yellow
		}
		return c
	}
	return plain("-")
}

// layersOf counts what was read back; what is not in force is named.
func layersOf(s wire.AgentStatus) (cell, []string) {
	var notes []string
	held := 0
	for _, l := range s.Layers {
		if l.InForce {
			held++
			continue
		}
		notes = append(notes, "layer "+l.Layer+" is NOT in force: "+l.Witness)
	}
	c := cell{text: fmt.Sprintf("%d of %d", held, len(s.Layers))}
	switch {
	case len(s.Layers) == 0:
		c.text = "-"
	case held == len(s.Layers):
		c.paint = green
	default:
		c.paint = red
	}
	return c, notes
}
