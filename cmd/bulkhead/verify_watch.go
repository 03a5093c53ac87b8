package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

// verifyWatch shows each check of a team until it is interrupted.
func (a *app) verifyWatch(ctx context.Context, every time.Duration) error {
	team, err := a.theTeam(ctx)
	if err != nil {
		return err
	}
	err = a.client().WatchChecks(ctx, wire.CheckRequest{Team: team, Every: every}, func(raw json.RawMessage) error {
		if a.json {
			return a.encode(raw, "")
		}
		var c wire.Check
		if err := json.Unmarshal(raw, &c); err != nil {
			return err
		}
		a.showCheck(&c)
		return nil
	})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // asked to end
	}
	return err
}

func (a *app) showCheck(c *wire.Check) {
	paint := func(text, colour string) string {
		if !a.colour {
			return text
		}
		return "\x1b[" + colour + "m" + text + "\x1b[0m"
	}
	at := c.Time.Local().Format("15:04:05")
	line := fmt.Sprintf("%d statements hold", c.Held)
	if c.Attacks > 0 {
		line += fmt.Sprintf(", %d attacks were denied", c.Attacks)
	}
	if n := len(c.Broken); n > 0 {
		line += paint(fmt.Sprintf(", %d things do not hold", n), red)
	}
	fmt.Fprintf(a.out, "%s  %s (%s)\n", at, line, terminal.Line(c.Why))
	if c.Problem != "" {
		fmt.Fprintf(a.out, "%s  %s %s\n", at, paint("problem", red), terminal.Line(c.Problem))
	}
	for _, b := range c.Broken {
		fmt.Fprintf(a.out, "%s  %s %s %s: %s\n", at, paint("drift", red), terminal.Line(b.Agent), terminal.Line(b.Statement), terminal.Line(b.Detail))
	}
	for _, b := range c.Mended {
		fmt.Fprintf(a.out, "%s  %s %s %s\n", at, paint("over", green), terminal.Line(b.Agent), terminal.Line(b.Statement))
	}
	for _, name := range c.Fenced {
		fmt.Fprintf(a.out, "%s  %s %s was cut off and frozen; bulkhead release ends it\n", at, paint("fence", yellow), terminal.Line(name))
	}
}
