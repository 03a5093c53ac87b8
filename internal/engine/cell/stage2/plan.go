// Package stage2 is the small program that an OCI runtime runs as a
// container's first process (internal/engine/podman). The cell engine needs
// none: see internal/forked.
//
// It finds itself in the container that the runtime made. It reads a [Plan]
// from a descriptor, confines itself (internal/confine), waits for its [Order]
// with the command and its descriptors, and execs. Its way out is the status
// socket: one [Report] when it is confined, one before exec, and an error text
// when anything failed; the socket closes at exec.
package stage2

import (
	"encoding/json"
	"fmt"

	"bulkhead/internal/confine"
)

// Plan is what to do.
type Plan struct {
	Profile confine.Profile `json:"profile"`
}

// Order is the command, which comes when the rest is in force.
type Order struct {
	Argv []string `json:"argv"`
	Env  []string `json:"env,omitempty"`
	Dir  string   `json:"dir"`
}

// Report travels back over the status socket.
type Report struct {
	Result confine.Result `json:"result"`
	Error  string         `json:"error,omitempty"`
}

// parsePlan reads a plan and refuses one without a profile.
func parsePlan(raw []byte) (Plan, error) {
	var p Plan
	if err := json.Unmarshal(raw, &p); err != nil {
		return Plan{}, fmt.Errorf("stage 2: plan: %w", err)
	}
	if p.Profile.Role == "" {
		return Plan{}, fmt.Errorf("stage 2: the plan names no role")
	}
	return p, nil
}
