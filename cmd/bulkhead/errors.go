package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"bulkhead/internal/client"
	"bulkhead/internal/deny"
	"bulkhead/internal/team"
	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

// exitCode ends the program silently with a code: what is to be said was said.
type exitCode int

func (e exitCode) Error() string { return "exit code " + strconv.Itoa(int(e)) }

// badInput is a mistake of the command line: nothing was changed.
func badInput(what, mend string) error {
	return &client.Error{What: what, Mend: mend, Exit: wire.ExitBadInput}
}

// failure is the JSON form of a failed command (docs/contracts/json/error.json).
type failure struct {
	SchemaVersion int           `json:"schemaVersion"`
	Error         failureDetail `json:"error"`
}

type failureDetail struct {
	Message string       `json:"message"`
	Mend    string       `json:"mend,omitempty"`
	Exit    int          `json:"exit"`
	Faults  []team.Fault `json:"faults,omitempty"` // of the manifest
}

func detailOf(err error) failureDetail {
	var faults team.Faults
	if errors.As(err, &faults) {
		n := fmt.Sprintf("%d faults", len(faults))
		if len(faults) == 1 {
			n = "1 fault"
		}
		return failureDetail{
			Message: "the manifest has " + n + "; nothing was changed",
			Mend:    "correct each line above and run the command again", Exit: wire.ExitBadInput, Faults: faults,
		}
	}
	var known *client.Error
	if errors.As(err, &known) {
		return failureDetail{Message: known.What, Mend: known.Mend, Exit: known.Exit}
	}
	d := failureDetail{Message: err.Error(), Exit: wire.ExitFailed}
	return d
}

// report tells a person, or a program, what failed, and gives the exit code.
func (a *app) report(err error) int {
	d := detailOf(err)
	if a.json {
		if a.printJSON(failure{SchemaVersion: 1, Error: d}) != nil {
			return wire.ExitFailed
		}
		return d.Exit
	}
	for _, f := range d.Faults {
		fmt.Fprintln(a.err, terminal.Line(f.String()))
	}
	// What the warden says can quote what an agent or a file says.
	fmt.Fprintln(a.err, "error: "+strings.TrimRight(terminal.Text(deny.WithoutMend(d.Message, d.Mend)), "\n"))
	if d.Mend != "" {
		fmt.Fprintln(a.err, "  to mend: "+terminal.Line(d.Mend))
	}
	return d.Exit
}
