// Package host is what only root does on a host: accounts, cells, rules,
// cgroups, the ledger and the supervision of agents.
package host

import (
	"context"

	"bulkhead/internal/deny"
	"bulkhead/internal/engine"
)

// Layer is one layer of the onion for one agent. Every layer answers the same
// five verbs; none assumes that another is in force.
type Layer interface {
	// Name says which layer.
	Name() deny.Layer
	// Plan says what Apply would change, in words; nothing when it is in place.
	Plan(ctx context.Context, a *Agent) ([]string, error)
	// Apply puts the layer in force, from any earlier state, and is safe to
	// repeat. It reads back what it did before it returns.
	Apply(ctx context.Context, a *Agent) error
	// Inspect says what the kernel or server has now.
	Inspect(ctx context.Context, a *Agent) (Inspection, error)
	// Remove takes away everything that Apply made. Safe to repeat.
	Remove(ctx context.Context, a *Agent) error
	// Without gives the same container with exactly this layer off, for
	// controls in decoys.
	Without(s engine.Spec) engine.Spec
}

// Inspection is what was read back.
type Inspection struct {
	InForce bool
	Witness string // what was read, and where
}
