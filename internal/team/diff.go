package team

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
)

// Digest identifies everything that the agent's containers are made from. Two
// agents with one digest need no change; where in the file they stand does not
// count. It stays the same across processes and builds of one manifest version.
func (a *Agent) Digest() string {
	c := *a
	c.Egress = slices.Clone(a.Egress)
	for i := range c.Egress {
		c.Egress[i].Line, c.Egress[i].Position = 0, ""
	}
	// Who may say what is the adapter's, which learns it while all run.
	c.Channels = nil
	if c.Messages != nil {
		if c.Messages.Push == nil {
			c.Messages = nil
		} else {
			c.Messages = &Messages{Push: c.Messages.Push}
		}
	}
	// encoding/json sorts the keys of maps, and struct fields keep their order.
	raw, err := json.Marshal(struct {
		Version string
		Agent   Agent
	}{APIVersion, c})
	if err != nil {
		panic("team: an agent that is only text and numbers does not encode: " + err.Error())
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// Diff says, agent by agent and in words, what would change from old to new.
// Either may be nil. Every change restarts that agent's containers, and no other
// agent's (docs/decisions/0010), but for who may say what to whom, which the
// adapter learns while all run. The adapter comes first, then the agents in the
// order of new, then what is removed.
func Diff(old, new *Manifest) []wire.Change {
	out := adapterChange(old, new)
	joined := old != nil && new != nil && old.HasMessages() != new.HasMessages()
	if new != nil {
		for _, a := range new.Agents {
			var before *Agent
			if old != nil {
				before = old.Agent(a.Name)
			}
			c := change(before, a)
			if why := topicsDiff(old, new, a.Name); before != nil && len(why) > 0 {
				// The server of topics learns it while all run.
				if c.Why = append(c.Why, why...); c.Action == wire.ActionKeep {
					c.Action = wire.ActionUpdate
				}
			}
			if joined && before != nil {
				// Its gateway gets the adapter's socket, or loses it.
				c.Action, c.Why = wire.ActionRestart, append(c.Why, "messages: "+map[bool]string{true: "the team gets an adapter", false: "the team has no adapter any more"}[new.HasMessages()])
			}
			if before != nil {
				if why := servicesDiff(old, new); len(why) > 0 {
					c.Action, c.Why = wire.ActionRestart, append(c.Why, why...)
				}
			}
			out = append(out, c)
		}
	}
	if old != nil {
		for _, a := range old.Agents {
			if new == nil || new.Agent(a.Name) == nil {
				out = append(out, wire.Change{Agent: a.Name, Action: wire.ActionRemove, Why: []string{"no longer in the manifest"}})
			}
		}
	}
	return out
}

func change(old, new *Agent) wire.Change {
	c := wire.Change{Agent: new.Name, Action: wire.ActionCreate}
	if old == nil {
		return c
	}
	live := append(setDiff("egress", destinations(old), destinations(new)), setDiff("hosts", fixed(old.Hosts), fixed(new.Hosts))...)
	restart := restarts(old, new)
	said := spoken(old, new)
	c.Why = slices.Concat(restart, live, said)
	switch {
	case len(c.Why) > len(said):
		c.Action = wire.ActionRestart
	case old.Digest() != new.Digest():
		c.Action = wire.ActionRestart
		c.Why = append(c.Why, "egress: other order")
	case len(said) > 0:
		c.Action = wire.ActionUpdate
	default:
		c.Action = wire.ActionKeep
	}
	return c
}

// adapterChange is the adapter's line of a plan, when there is something to say.
func adapterChange(old, new *Manifest) []wire.Change {
	had, has := old.HasMessages(), new.HasMessages()
	c := wire.Change{Agent: layout.AdapterName, Action: wire.ActionKeep}
	switch {
	case !had && !has:
		return nil
	case !had:
		c.Action = wire.ActionCreate
	case !has:
		c.Action, c.Why = wire.ActionRemove, []string{"no agent has channels or messages any more"}
	case old.Orchestrator != new.Orchestrator:
		c.Action, c.Why = wire.ActionUpdate, []string{"orchestrator: " + dash(old.Orchestrator) + " -> " + dash(new.Orchestrator)}
	}
	return []wire.Change{c}
}

// restarts lists what differs in fields that containers are made from.
func restarts(old, new *Agent) []string {
	var why []string
	one := func(field, a, b string) {
		if a != b {
			why = append(why, fmt.Sprintf("%s: %s -> %s", field, dash(a), dash(b)))
		}
	}
	if old.Role != new.Role {
		why = append(why, "role: changed")
	}
	one("image", old.Image, new.Image)
	one("rootfs", old.Rootfs, new.Rootfs)
	one("command", words(old.Command), words(new.Command))
	// Values of variables may be private: names only.
	why = append(why, mapDiff("env", old.Env, new.Env)...)
	one("mode", string(old.Mode), string(new.Mode))
	one("terminal", strconv.FormatBool(old.Terminal), strconv.FormatBool(new.Terminal))
	one("workspace", old.Workspace, new.Workspace)
	why = append(why, setDiff("mounts", mounted(old.Mounts), mounted(new.Mounts))...)
	why = append(why, setDiff("ports", numbers(old.Ports), numbers(new.Ports))...)
	one("messages.push", old.pushed(), new.pushed())
	why = append(why, toolDiff(old.Tools, new.Tools)...)
	why = append(why, askDiff(old.Ask, new.Ask)...)
	why = append(why, mapDiff("secrets", old.Secrets, new.Secrets)...)
	one("knowledge", old.Knowledge, new.Knowledge)
	one("upstreamProxy", old.Upstream.describe(), new.Upstream.describe())
	why = append(why, setDiff("caFiles", paths(old.CAFiles), paths(new.CAFiles))...)
	one("engine", old.Engine, new.Engine)
	one("ociRuntime", old.OCI, new.OCI)
	a, b := old.Limits, new.Limits
	one("limits.memory", size(a.MemoryBytes), size(b.MemoryBytes))
	one("limits.cpu", number(a.MilliCPU, "m"), number(b.MilliCPU, "m"))
	one("limits.pids", number(a.PIDs, ""), number(b.PIDs, ""))
	one("limits.noFile", number(int64(a.NoFile), ""), number(int64(b.NoFile), "")) // #nosec G115 -- bounded by Parse
	one("limits.core", size(int64(a.CoreBytes)), size(int64(b.CoreBytes)))         // #nosec G115 -- bounded by Parse
	one("limits.disk", size(a.DiskBytes), size(b.DiskBytes))
	one("limits.inodes", number(a.Inodes, ""), number(b.Inodes, ""))
	one("limits.logs", size(a.LogBytes), size(b.LogBytes))
	one("limits.connections", number(a.Connections, ""), number(b.Connections, ""))
	one("limits.stopGrace", grace(a.StopGrace), grace(b.StopGrace))
	return why
}

// setDiff lists what was added to and taken from a set.
func setDiff(field string, old, new []string) []string {
	var out []string
	for _, x := range new {
		if !contains(old, x) {
			out = append(out, field+": + "+x)
		}
	}
	for _, x := range old {
		if !contains(new, x) {
			out = append(out, field+": - "+x)
		}
	}
	return out
}

func mapDiff(field string, old, new map[string]string) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(new)) {
		if before, ok := old[k]; !ok {
			out = append(out, field+": + "+k)
		} else if before != new[k] {
			out = append(out, field+": changed "+k)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(old)) {
		if _, ok := new[k]; !ok {
			out = append(out, field+": - "+k)
		}
	}
	return out
}

func destinations(a *Agent) []string {
	out := make([]string, len(a.Egress))
	for i, d := range a.Egress {
		out[i] = d.Target()
		if d.SNI == SNIAny && d.Host != "" && d.Host != "host" {
			out[i] += " (sni: any)"
		}
	}
	return out
}

func fixed(hosts map[string][]netip.Addr) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		for _, a := range hosts[name] {
			out = append(out, name+" = "+a.String())
		}
	}
	return out
}

func mounted(list []Mount) []string {
	out := make([]string, len(list))
	for i, m := range list {
		out[i] = m.Host + " at " + m.Target
	}
	return out
}

func paths(list []HostFile) []string {
	out := make([]string, len(list))
	for i, f := range list {
		out[i] = f.Path
	}
	return out
}

func numbers(list []uint16) []string {
	out := make([]string, len(list))
	for i, n := range list {
		out[i] = strconv.Itoa(int(n))
	}
	return out
}

// words shows a command so that two different ones never look alike.
func words(list []string) string {
	out := make([]string, len(list))
	for i, w := range list {
		out[i] = w
		if w == "" || strings.ContainsAny(w, " \t\n\"'\\") {
			out[i] = strconv.Quote(w)
		}
	}
	return strings.Join(out, " ")
}

func dash(s string) string {
	if s == "" {
		return "(none)"
	}
	return s
}

func number(n int64, unit string) string {
	if n == 0 {
		return "(default)"
	}
	return strconv.FormatInt(n, 10) + unit
}

func size(n int64) string {
	switch {
	case n == 0:
		return "(default)"
	case n%(1<<20) == 0:
		return strconv.FormatInt(n>>20, 10) + "Mi"
	}
	return strconv.FormatInt(n, 10)
}

func grace(d time.Duration) string {
	if d == 0 {
		return "(default)"
	}
	return d.String()
}
