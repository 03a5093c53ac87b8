// Package mutations takes each hardening measure away in turn and demands that
// verify or prove notices: a measure that nobody would miss is either not one,
// or not watched. docs/mutations.md is the table that comes of it.
//
// # How a measure is taken away
//
// No program that is shipped has a switch for it. The test rewrites the source,
// in files that go with `go build -overlay` into one program and are thrown
// away: where a measure is taken, it puts a question before it, whether this
// run is the one without ([Mutant]). So one build serves for every mutant; which
// one a process is, it is told by the name that it was started under. When the
// source changes and a fragment is not found any more, the test fails: the list
// is the source's, and stays so.
//
// Rules of nftables are taken away in the kernel itself, after they were loaded.
//
// # Who notices
//
// cmd/judge, which is not mutated, starts for each mutant the decoy host of
// internal/evidence, and a container as an agent's, all in one throwaway host.
// "verify" means that a control does not bite any more that bites without the
// mutation, or that an attack succeeds from a decoy with nothing switched off;
// "prove" that a statement does not hold any more that holds otherwise.
package mutations

// Mutant is one measure that is taken away.
type Mutant struct {
	ID      string `json:"id"`
	Measure string `json:"measure"` // in words, for the table
	Place   string `json:"place"`   // where the measure is taken
	// Attacks are those by which verify is expected to notice; none, when only
	// prove can.
	Attacks []string `json:"attacks,omitempty"`
	// Also are further ones, which take long, where prove notices anyway: they
	// are made with -full alone.
	Also []string `json:"-"`
	// Role is that of the container that prove looks at.
	Role string `json:"role"`
}

// Plan is what the judge is told.
type Plan struct {
	Programs string   `json:"programs"` // with bulkhead-probe, bulkhead-shim and bulkhead-net
	Subject  string   `json:"subject"`  // the mutated program
	Mutants  []Mutant `json:"mutants"`
}

// Noticed is who noticed one mutant. The first of a judge's answers is for none
// at all: whoever notices there is no witness.
type Noticed struct {
	ID     string   `json:"id"`
	Verify []string `json:"verify"`
	Prove  []string `json:"prove"`
	// Start is why its container did not even start: a read-back noticed.
	Start string `json:"start,omitempty"`
	// Lacks are attacks that this kernel does not let one build.
	Lacks []string `json:"lacks,omitempty"`
}

// Whole is the mutant that is none.
const Whole = "whole"
