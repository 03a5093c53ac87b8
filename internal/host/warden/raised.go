package warden

import (
	"cmp"
	"fmt"

	"bulkhead/internal/engine"
	"bulkhead/internal/prove"
	"bulkhead/internal/wire"
)

// resources are the limits of the runtime's processes that no cgroup keeps, as
// the manifest says them.
func (a *agentRun) resources() prove.Resources {
	return prove.Resources{NoFile: cmp.Or(a.Want.Limits.NoFile, engine.DefaultLimits().NoFile), CoreBytes: a.Want.Limits.CoreBytes}
}

// raised reads them back from the runtime; nil when it does not run, and when
// they are not above the defaults.
func (a *agentRun) raised(containers []wire.ContainerStatus) *wire.Raised {
	d := engine.DefaultLimits()
	if a.relayed(runtimeName) { // processes of gVisor's on the host are not the agent's
		want := a.resources()
		if want.NoFile <= d.NoFile && want.CoreBytes <= d.CoreBytes {
			return nil
		}
		return &wire.Raised{NoFile: want.NoFile, CoreBytes: want.CoreBytes, Witness: "the manifest; inside, gVisor's kernel keeps them"}
	}
	for _, c := range containers {
		if c.Name != runtimeName || !c.Running {
			continue
		}
		r, err := prove.ReadResources(c.PID)
		if err != nil || r.NoFile <= d.NoFile && r.CoreBytes <= d.CoreBytes {
			return nil
		}
		return &wire.Raised{NoFile: r.NoFile, CoreBytes: r.CoreBytes, Witness: fmt.Sprintf("/proc/%d/limits", c.PID)}
	}
	return nil
}
