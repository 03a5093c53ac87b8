// Package stage2 is the small program that runs between clone and the
// container's own first process.
//
// It finds itself in fresh namespaces, on the container's own root, which the
// starter put together, with every capability of its user namespace. It reads
// a [Plan] from a descriptor, mounts procfs (only a process of the PID
// namespace can), confines itself (internal/confine) and execs. Its way out is
// a status pipe: one [Report] before exec, and an error text when anything
// failed; the pipe closes at exec.
//
// It must stay small: its start is part of every container's start.
package stage2

import (
	"encoding/json"
	"fmt"

	"bulkhead/internal/confine"
)

// Plan is what to do.
type Plan struct {
	Argv     []string `json:"argv"`
	Env      []string `json:"env,omitempty"`
	Dir      string   `json:"dir"`
	Hostname string   `json:"hostname,omitempty"`

	// Proc mounts a fresh procfs of this PID namespace over the starter's and
	// covers what it should not show.
	Proc bool `json:"proc,omitempty"`

	// Wait says that the command comes later, as an [Order] with the command's
	// descriptors, three or more, on the status socket, once everything else is
	// in force.
	Wait bool `json:"wait,omitempty"`

	CgroupNamespace bool              `json:"cgroupNamespace,omitempty"`
	Become          *confine.Identity `json:"become,omitempty"`
	Profile         confine.Profile   `json:"profile"`
}

// Order is the command of a container that was prepared ahead of it.
type Order struct {
	Argv []string `json:"argv"`
	Env  []string `json:"env,omitempty"`
	Dir  string   `json:"dir"`
}

// Report travels back over the status pipe.
type Report struct {
	Result confine.Result `json:"result"`
	Error  string         `json:"error,omitempty"`
}

// parsePlan reads a plan and refuses one that cannot work.
func parsePlan(raw []byte) (Plan, error) {
	var p Plan
	if err := json.Unmarshal(raw, &p); err != nil {
		return Plan{}, fmt.Errorf("stage 2: plan: %w", err)
	}
	if len(p.Argv) == 0 && !p.Wait {
		return Plan{}, fmt.Errorf("stage 2: plan names no command")
	}
	return p, nil
}
