// Package doctor reads what a host offers to Bulkhead and says, line by line,
// what was found, where, why it matters and how to mend it. It is layer 0: the
// floor that the other layers stand on.
//
// It only reads. Nothing is tried out: no namespace is made, no rule loaded, no
// sysctl written, so that it may be run on a host at work and before anything
// is installed. It works without root and then says of each line that it could
// not read that it is unknown, never that it is well.
//
// The same checks serve two callers. The warden asks [Features] before every
// up: those without which a layer could not be kept. `bulkhead doctor` asks
// [Examine]: all of them.
//
// Bulkhead was run on Debian 12 and 13. Where a line depends on the
// distribution and nobody tried it there, its state is [NotSupported] instead
// of a guess.
//
// What a [Host] is made of can be replaced by a folder of files and written
// answers; that is how the tests examine hosts that are not at hand.
package doctor

import (
	"context"
	"slices"

	"bulkhead/internal/deny"
)

// State is the verdict of one line.
type State string

// The states. Only Missing means that `up` would refuse or an agent not run.
const (
	OK           State = "ok"
	Weak         State = "weak"          // works, but protects or lasts less than it could
	Missing      State = "missing"       // a layer needs it
	NotSupported State = "not supported" // untested here: neither good nor bad is known
	Unknown      State = "unknown"       // could not be read; the line says why
)

// Need says what the warden does when a check fails.
type Need int

// The needs.
const (
	Advice   Need = iota // only doctor tells
	Required             // up refuses
	Optional             // up refuses unless the operator accepts to lose the second mechanism
)

// LayerWarden groups the lines about Bulkhead itself, which is no layer of the
// onion.
const LayerWarden deny.Layer = "warden"

// Check is one question about a host.
type Check struct {
	Layer deny.Layer
	Name  string
	Why   string // why it matters
	Mend  string // how to mend it, unless the answer knows better
	Need  Need
	Look  func(context.Context, Host) Answer
}

// Answer is what a check found.
type Answer struct {
	State State
	Found string // what was read, in short
	Where string // the file or system call
	Mend  string // replaces the check's, when not empty
}

// Line is one check with its answer. It is part of the contract
// docs/contracts/json/doctor.json.
type Line struct {
	Layer deny.Layer `json:"layer"`
	Name  string     `json:"name"`
	State State      `json:"state"`
	Found string     `json:"found"`
	Where string     `json:"where"`
	Why   string     `json:"why"`
	Mend  string     `json:"mend,omitempty"` // only where the state is not ok
}

// Report is the result of [Examine], grouped by layer, from the floor up.
type Report struct {
	SchemaVersion int    `json:"schemaVersion"`
	Missing       int    `json:"missing"` // lines in this state
	Lines         []Line `json:"lines"`
}

// Checks are all checks in the order in which they are shown.
func Checks() []Check {
	return slices.Concat(hostChecks(), accountChecks(), quotaChecks(), podChecks(), cgroupChecks(), podmanChecks(), egressChecks(), wardenChecks())
}

// Features are the checks that decide whether agents can be started.
func Features() []Check {
	return slices.DeleteFunc(Checks(), func(c Check) bool { return c.Need == Advice })
}

// Examine asks every check.
func Examine(ctx context.Context, h Host) Report {
	r := Report{SchemaVersion: 1}
	for _, c := range Checks() {
		a := c.Look(ctx, h)
		l := Line{Layer: c.Layer, Name: c.Name, State: a.State, Found: a.Found, Where: a.Where, Why: c.Why}
		if a.State != OK {
			if l.Mend = a.Mend; l.Mend == "" {
				l.Mend = c.Mend
			}
			if c.Need == Optional {
				l.Mend += "; or go on with a weaker layer: bulkhead up --accept-missing " + string(c.Layer)
			}
		}
		if a.State == Missing {
			r.Missing++
		}
		r.Lines = append(r.Lines, l)
	}
	return r
}
