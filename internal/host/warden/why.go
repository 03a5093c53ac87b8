package warden

import (
	"context"
	"fmt"
	"net"
	"path"
	"strconv"
	"strings"

	"bulkhead/internal/confine"
	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/engine"
	"bulkhead/internal/tool/toolname"
	"bulkhead/internal/wire"
)

// why answers from what decides: the policy that the pin server serves, the
// Spec and profile of the runtime, the rules of its seccomp filter. It tries
// nothing, so that asking changes nothing; verify is for trying.
func (w *Warden) why(ctx context.Context, req wire.WhyRequest) (*wire.WhyResult, error) {
	a, err := w.anyAgent(req.Team, req.Agent)
	if err != nil {
		return nil, err
	}
	if a.Want.Guest {
		return w.whyGuest(ctx, a, req.What)
	}
	res := &wire.WhyResult{SchemaVersion: 1, Team: a.Place.Team, Agent: a.Place.Name, What: req.What}
	if strings.HasPrefix(req.What, "/") {
		a.whyPath(res)
		return res, nil
	}
	if word, rest, ok := worded(req.What); ok {
		return res, a.whyOther(res, word, rest)
	}
	if host, port, err := net.SplitHostPort(req.What); err == nil {
		return res, a.whyDestination(ctx, res, host, port)
	}
	if name := strings.TrimPrefix(req.What, toolname.Prefix); toolname.GroupOf(name) != "" {
		return res, a.whyTool(res, name)
	}
	v, ok := confine.ExplainCall(engine.RoleRuntime, strings.ToLower(req.What))
	if !ok {
		return nil, badInput(fmt.Sprintf("%.100q is neither host:port, nor a path, nor a system call, nor a tool, nor one of message:, topic:, tool:, secret: and limit:", req.What),
			"ask for api.example.com:443, /etc/shadow, ptrace, message:AGENT, topic:NAME, tool:NAME, secret:NAME or limit:memory")
	}
	res.Kind, res.Layer, res.Rule = wire.WhySyscall, deny.LayerPod, v.Rule
	switch {
	case v.Depends:
		res.Verdict = wire.WhyDepends
	case v.Allowed:
		res.Verdict = wire.WhyAllowed
	default:
		res.Verdict = wire.WhyDenied
		res.Mend = "nothing in bulkhead.yaml allows it: the filter is the same for every agent; use a program that does without, or a host of its own"
	}
	return res, nil
}

func (a *agentRun) whyDestination(ctx context.Context, res *wire.WhyResult, host, port string) error {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return badInput(fmt.Sprintf("%.20q is not a port", port), "ask for host:port, like api.example.com:443")
	}
	res.Kind, res.Layer = wire.WhyDestination, deny.LayerEgress
	d, addrs, reason, err := a.w.pins.Explain(ctx, a.Place.Account, host, uint16(n))
	if err != nil { // stopped: the manifest decides all the same
		if d, reason = dial.NewPolicy(a.Want).Check(host, uint16(n)); reason == nil {
			res.Rule = d.Target() + " is listed, but the agent does not run"
		}
	}
	if reason != nil {
		res.Verdict, res.Code, res.Rule, res.Mend = wire.WhyDenied, reason.Code, reason.Why, reason.Mend
		return nil //nolint:nilerr // a stopped agent is answered from its manifest
	}
	res.Verdict, res.Addresses = wire.WhyAllowed, addrs
	if res.Rule == "" {
		res.Rule = d.Target() + " is listed"
		if d.Position != "" {
			res.Rule += " at " + d.Position
		}
	}
	if h, err := dial.Normalise(host); err == nil && a.Want.Ask.Reaches(h.String(), uint16(n)) {
		res.Rule += "; a person approves it first (ask.egress): `bulkhead approvals`, `bulkhead grants`"
	}
	if u := dial.NewPolicy(a.Want).Upstream(host, d); u != nil {
		res.Via = u.URL()
	}
	return nil
}

// whyPath looks for the mount that holds a path, as the runtime's processes
// see it.
func (a *agentRun) whyPath(res *wire.WhyResult) {
	p := path.Clean(res.What)
	spec := runtimeSpec(a.w.host, &a.Agent, a.programs())
	res.Kind, res.Layer = wire.WhyPath, deny.LayerPod
	var at *engine.Mount
	for i, m := range spec.Mounts {
		if within(p, m.Target) && (at == nil || len(m.Target) > len(at.Target)) {
			at = &spec.Mounts[i]
		}
	}
	places := "/workspace, /home/agent and /tmp"
	switch {
	case at != nil && at.Writable:
		res.Verdict = wire.WhyAllowed
		res.Rule = at.Target + " is mounted writable; files there have their usual owners and modes"
		if at.Kind == engine.MountTmpfs {
			res.Rule += "; it is memory, and empty after a restart"
		}
	case at != nil:
		res.Verdict = wire.WhyDepends
		res.Rule = "it may be read, not written: " + at.Target + " is mounted read-only, and Landlock allows writing only below " + strings.Join(confine.For(&spec).Writable, ", ")
		res.Mend = "write below " + places
	case within(p, "/proc") || within(p, "/sys") || within(p, "/dev"):
		res.Verdict = wire.WhyDepends
		res.Rule = "the kernel's own files are those of the container's namespaces, without what changes the host"
		res.Mend = "nothing in bulkhead.yaml changes this"
	default:
		res.Verdict = wire.WhyDepends
		res.Rule = "it may be read when the image has it, not written: the image is mounted read-only, and no other file of the host is mounted there"
		res.Mend = fmt.Sprintf("write below %s; to show a host folder inside, add {host: %s, path: %s} to agents.%s.mounts in bulkhead.yaml", places, p, p, a.Place.Name)
	}
}

func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}
