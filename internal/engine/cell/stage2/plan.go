// Package stage2 is the small program that runs between clone and the
// container's own first process.
//
// It finds itself in fresh namespaces with every capability of its user
// namespace, reads a [Plan] from a descriptor, puts the mounts that root made
// in place, pivots, confines itself (internal/confine) and execs. It opens no
// path of the host: every mount source comes as a descriptor. Its way out is
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

// Plan is what to do, in descriptors of this process and paths inside.
type Plan struct {
	Argv     []string `json:"argv"`
	Env      []string `json:"env,omitempty"`
	Dir      string   `json:"dir"`
	Hostname string   `json:"hostname,omitempty"`

	// Root is the detached mount that becomes "/"; -1 stays in the caller's
	// tree (a decoy without a mount namespace).
	Root int `json:"root"`
	// Dev is the detached mount for /dev, which has device nodes and the empty
	// folders pts and shm; Proc is one for /proc, or -1 to mount a fresh one.
	Dev    int     `json:"dev"`
	Proc   int     `json:"proc"`
	Mounts []Mount `json:"mounts,omitempty"` // parents before children

	// Wait says that the command comes later, as an [Order] with three
	// descriptors on the status socket, once everything else is in force.
	Wait bool `json:"wait,omitempty"`

	CgroupNamespace bool              `json:"cgroupNamespace,omitempty"`
	Become          *confine.Identity `json:"become,omitempty"`
	Profile         confine.Profile   `json:"profile"`
}

// Mount puts a detached mount at a path inside the new root.
type Mount struct {
	FD     int    `json:"fd"`
	Target string `json:"target"`
	File   bool   `json:"file,omitempty"`
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
