package cell

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"bulkhead/internal/confine"
	"bulkhead/internal/engine"
	"bulkhead/internal/layout"
)

// switchable are the mechanisms of this engine that a decoy may switch off.
// user-id is the choice of Spec.User, quota and gateway of Spec.Mounts; nftables and
// guard are not ours.
var switchable = []engine.Mechanism{
	engine.MechUser, engine.MechUserNS, engine.MechMountNS, engine.MechPIDNS, engine.MechNetNS, engine.MechReadOnly,
	engine.MechSeccomp, engine.MechLandlock, engine.MechCaps, engine.MechNoNewPrivs, engine.MechNftables, engine.MechGuard,
	engine.MechLimits, engine.MechQuota, engine.MechGateway,
}

// Check refuses a Spec that this engine cannot keep, with every fault at once.
func Check(s *engine.Spec) error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if s.Version != engine.SpecVersion {
		bad("spec version %d is not %d", s.Version, engine.SpecVersion)
	}
	switch s.Role {
	case engine.RoleRuntime, engine.RoleGateway, engine.RoleRun, engine.RoleDialer, engine.RoleResolver, engine.RoleAdapter, engine.RoleService, engine.RoleAccount:
	default:
		bad("role %q is not one", s.Role)
	}
	if len(s.Off) > 0 && !s.Decoy {
		bad("mechanisms %v are off: only a decoy may run without them", s.Off)
	}
	for _, m := range s.Off {
		if !slices.Contains(switchable, m) {
			bad("mechanism %q is not one", m)
		}
	}
	if len(s.Command) == 0 && len(s.Init) == 0 {
		bad("no command")
	}
	if !filepath.IsAbs(s.Dir) {
		bad("working folder %q is not absolute", s.Dir)
	}
	if s.User.ID == 0 {
		bad("user id 0: no container runs as root")
	}
	checkUser(s, bad)
	if s.Network.Host && s.Role != engine.RoleDialer && s.Role != engine.RoleResolver {
		bad("role %s may not stay in the host's network namespace: only dialer and resolver may", s.Role)
	}
	for _, m := range s.Mounts {
		checkMount(m, bad)
	}
	if s.Role != engine.RoleAccount {
		if err := confine.For(s).Check(); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("cell: container %s/%s/%s: %w", s.Team, s.Agent, s.Name, errors.Join(errs...))
	}
	return nil
}

// checkOurs refuses what another engine shall start.
func checkOurs(s *engine.Spec) error {
	if s.Engine != "" && s.Engine != engine.Cell {
		return fmt.Errorf("cell: container %s/%s/%s is for engine %q", s.Team, s.Agent, s.Name, s.Engine)
	}
	if s.OCIRuntime != "" {
		return fmt.Errorf("cell: container %s/%s/%s names OCI runtime %q: this engine uses none", s.Team, s.Agent, s.Name, s.OCIRuntime)
	}
	return nil
}

func checkUser(s *engine.Spec, bad func(string, ...any)) {
	confinedByMap := s.Role == engine.RoleRuntime || s.Role == engine.RoleGateway || s.Role == engine.RoleRun
	if len(s.User.Map) == 0 {
		if confinedByMap {
			bad("role %s needs a user id map", s.Role)
		}
		return
	}
	if !confinedByMap {
		bad("role %s lives in the initial user namespace and takes no user id map", s.Role)
	}
	found := false
	for i, m := range s.User.Map {
		if m.Inside == 0 || m.Host == 0 {
			bad("the user id map contains 0 (inside %d is host %d)", m.Inside, m.Host)
		}
		found = found || m.Inside == s.User.ID
		if m.Inside == layout.OwnerID || m.Host-m.Inside != s.User.Map[0].Host-s.User.Map[0].Inside {
			bad("the user id map (inside %d is host %d) does not follow one range, or maps the id %d that owns the namespace", m.Inside, m.Host, layout.OwnerID)
		}
		for _, o := range s.User.Map[:i] {
			if o.Inside == m.Inside || o.Host == m.Host {
				bad("the user id map names an id twice (inside %d, host %d)", m.Inside, m.Host)
			}
		}
	}
	if !found {
		bad("user id %d is not in the user id map", s.User.ID)
	}
}

func checkMount(m engine.Mount, bad func(string, ...any)) {
	if !filepath.IsAbs(m.Target) || filepath.Clean(m.Target) != m.Target || m.Target == "/" {
		bad("mount target %q: give an absolute path below / without '.', '..' or doubled slashes", m.Target)
	}
	for _, own := range []string{"/proc", "/sys", "/dev"} {
		if m.Target == own || len(m.Target) > len(own) && m.Target[:len(own)+1] == own+"/" {
			bad("mount target %s: %s is made by the engine", m.Target, own)
		}
	}
	switch m.Kind {
	case engine.MountBind:
		if m.Source == "" || m.Size != 0 || m.Mode != 0 {
			bad("mount %s: a bind mount needs a source and takes neither size nor mode", m.Target)
		}
	case engine.MountTmpfs:
		if m.Source != "" || m.Size <= 0 {
			bad("mount %s: a tmpfs needs a size in bytes and takes no source", m.Target)
		}
		if m.Mode&^0o1777 != 0 {
			bad("mount %s: mode %o has bits that nobody needs", m.Target, m.Mode)
		}
	default:
		bad("mount %s: kind %q is not one", m.Target, m.Kind)
	}
}

// hostID is the id that the container's user has on the host.
func hostID(s *engine.Spec) uint32 {
	for _, m := range s.User.Map {
		if m.Inside == s.User.ID {
			return m.Host
		}
	}
	return s.User.ID
}
