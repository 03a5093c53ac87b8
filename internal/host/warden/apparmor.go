package warden

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"bulkhead/internal/deny"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/podman"
	"bulkhead/internal/prove"
)

// confined loads the AppArmor profile of a container where the kernel has
// AppArmor, and names it in the Spec. A runtime under gVisor gets none: stage 2
// runs on gVisor's kernel, which has no AppArmor.
func (a *agentRun) confined(ctx context.Context, s *engine.Spec) error {
	if podman.Relayed(s) {
		return nil
	}
	err := a.w.apparmor.Ensure(ctx, s)
	if err != nil && slices.Contains(a.accepted, string(deny.LayerPod)) {
		a.w.log.Warn("goes on without an AppArmor profile: --accept-missing pod", "team", a.Place.Team, "agent", a.Place.Name, "container", s.Name, "error", err)
		return nil
	}
	return err
}

// labels are the AppArmor profiles that the agent's containers were started
// under, by the Specs that root keeps.
func (a *agentRun) labels() (map[engine.Role]string, error) {
	out := map[engine.Role]string{}
	for _, name := range []string{gatewayName, runtimeName} {
		var s engine.Spec
		if ok, err := readJSON(filepath.Join(a.Place.Conf(), name+".spec.json"), &s); err != nil {
			return nil, err
		} else if !ok {
			continue
		}
		if s.AppArmor != "" {
			out[s.Role] = s.AppArmor
		}
	}
	return out, nil
}

// checkLabel compares what the kernel says of a process with the profile that
// was meant for it.
func checkLabel(pid int, want string) error {
	if want == "" {
		return nil
	}
	got, err := prove.LabelOf(pid)
	if err != nil {
		return fmt.Errorf("AppArmor's label: %w", err)
	}
	if !prove.Enforced(got, want) {
		return fmt.Errorf("its AppArmor label is %q, not %s in enforce mode", got, want)
	}
	return nil
}
