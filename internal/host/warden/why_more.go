package warden

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/allowed"
	"bulkhead/internal/deny"
	"bulkhead/internal/engine"
	"bulkhead/internal/tool/toolname"
	"bulkhead/internal/wire"
)

// whyOther answers what has a word before it: message:TO or message:TO/TYPE,
// topic:NAME or topic:NAME/publish, tool:NAME, secret:NAME, limit:NAME.
func (a *agentRun) whyOther(res *wire.WhyResult, word, rest string) error {
	switch word {
	case "message":
		return a.whyMessage(res, rest)
	case "topic":
		return a.whyTopic(res, rest)
	case "tool":
		return a.whyTool(res, rest)
	case "secret":
		a.whySecret(res, rest)
		return nil
	}
	return a.whyLimit(res, rest)
}

// whyMessage asks what the adapter asks for each message.
func (a *agentRun) whyMessage(res *wire.WhyResult, rest string) error {
	to, kind, _ := strings.Cut(rest, "/")
	if to == "" {
		return badInput("message: names nobody", "ask for message:AGENT, message:CHANNEL, or message:AGENT/escalation")
	}
	t, err := a.w.team(a.Place.Team)
	if err != nil {
		return err
	}
	res.Kind, res.Layer = wire.WhyMessage, deny.LayerMessages
	if kind == "" {
		kind = "message"
	}
	d := &adapter.Draft{Type: adapter.Type(kind), To: to}
	if t.manifest.Agent(to) == nil {
		d.To, d.Channel = "", to
	}
	policy, beside := t.policyNow(a.w.ctx, a.Place.Name, d.Channel)
	if r := allowed.Refusal(&policy, a.Place.Name, d); r != nil {
		res.Verdict, res.Code, res.Rule, res.Mend = wire.WhyDenied, r.Code, r.Why+beside, r.Mend
		if beside != "" {
			res.Mend = "have the orchestrator ask for another change, and approve it; or change the members of " + d.Channel + " in the manifest"
		}
		return nil
	}
	res.Verdict = wire.WhyAllowed
	res.Rule = fmt.Sprintf("agents.%s.messages.to names %s", a.Place.Name, to)
	if d.Channel != "" {
		res.Rule = fmt.Sprintf("%s is a member of the channel %s%s", a.Place.Name, to, beside)
	}
	if allowed.Critical(d.Type) {
		res.Rule += fmt.Sprintf(", and agents.%s.messages.critical names %s", a.Place.Name, kind)
	}
	most := policy.Agents[a.Place.Name].MaxBytes
	if most == 0 {
		most = adapter.DefaultBytes
	}
	res.Rule += fmt.Sprintf("; what waits of it is bounded by %d bytes (messages.maxBytes)", most)
	return nil
}

// whyTool says whether the agent's gateway serves it a tool, or a group of them.
func (a *agentRun) whyTool(res *wire.WhyResult, name string) error {
	name = strings.TrimPrefix(name, toolname.Prefix)
	group := toolname.GroupOf(name)
	if group == "" && toolname.Of(toolname.Group(name)) != nil {
		group = toolname.Group(name)
	}
	if group == "" {
		return badInput(fmt.Sprintf("there is no tool %.60q", name), "ask for tool:mem_get, or for a group like tool:mem; docs/contracts/tools.md has them all")
	}
	res.Kind, res.Layer = wire.WhyTool, deny.LayerTools
	if group == toolname.Talk {
		if !a.Messages {
			res.Verdict, res.Code = wire.WhyDenied, deny.ToolNotAllowed
			res.Rule, res.Mend = "the agent has no messages", toolname.Mend(group, a.Place.Name)
			return nil
		}
		res.Verdict = wire.WhyAllowed
		res.Rule = "agents." + a.Place.Name + " has messages; who may be written to is asked by message:AGENT"
		return nil
	}
	var served, waiting []string
	for _, one := range toolname.Of(group) {
		if a.Want.Ask.Asks(one) {
			waiting = append(waiting, one)
		}
		if allowed := a.Want.Tools.Allowed(); group == toolname.Executions && a.Want.Ask != nil || slices.Contains(allowed, string(group)) || slices.Contains(allowed, one) {
			served = append(served, one)
		}
	}
	switch {
	case slices.Contains(served, name) || len(served) == len(toolname.Of(group)):
		res.Verdict = wire.WhyAllowed
		res.Rule = fmt.Sprintf("agents.%s.tools gives it %s; at most %d calls a minute over all tools", a.Place.Name, name, a.Want.Tools.WithDefaults().RatePerMinute)
	case name == string(group) && len(served) > 0:
		res.Verdict, res.Mend = wire.WhyDepends, toolname.Mend(group, a.Place.Name)
		res.Rule = fmt.Sprintf("agents.%s.tools.allow gives it only %s of them", a.Place.Name, strings.Join(served, ", "))
	default:
		res.Verdict, res.Code, res.Mend = wire.WhyDenied, deny.ToolNotAllowed, toolname.Mend(group, a.Place.Name)
		res.Rule = fmt.Sprintf("agents.%s.tools does not give it %s", a.Place.Name, name)
		if a.Want.Tools == nil {
			res.Rule = "agents." + a.Place.Name + " has no tools"
		}
	}
	if res.Verdict == wire.WhyDenied {
		return nil
	}
	if a.Want.Ask.Asks(name) || name == string(group) && len(waiting) > 0 {
		a.whyAsked(res, group, waiting)
	}
	return nil
}

// whyAsked says that a person decides about each call.
func (a *agentRun) whyAsked(res *wire.WhyResult, group toolname.Group, waiting []string) {
	ask := a.Want.Ask.WithDefaults()
	res.Verdict = wire.WhyDepends
	res.Rule += fmt.Sprintf("; agents.%s.ask.tools has each call of %s wait for a person (%s, %d at a time), unless a grant covers it (`bulkhead grants %s`)",
		a.Place.Name, strings.Join(waiting, ", "), ask.Expire, ask.Waiting, a.Place.Name)
	if group == toolname.Network {
		res.Rule += "; its proxy reaches the destinations of egress without asking"
	}
	res.Mend = fmt.Sprintf("`sudo bulkhead approve %s ID --for 1h` once a call waits; or take it from agents.%s.ask.tools in bulkhead.yaml", a.Place.Name, a.Place.Name)
}

// whySecret says that there are none, and what is instead.
func (a *agentRun) whySecret(res *wire.WhyResult, name string) {
	res.Kind, res.Layer, res.Verdict, res.Code = wire.WhySecret, deny.LayerVault, wire.WhyDenied, deny.MissingFeature
	res.Rule = "this build delivers no secrets: " + name + " is not in the agent's environment, arguments or files unless you put it there"
	if _, ok := a.Want.Env[name]; ok {
		res.Layer, res.Verdict, res.Code = deny.LayerPod, wire.WhyAllowed, ""
		res.Rule = "agents." + a.Place.Name + ".env names it: it is a plain variable, which the agent and everything that it starts can read"
		res.Mend = "if it is secret, take it out of env"
		return
	}
	res.Mend = "give the agent a file in its workspace (bulkhead ws push " + a.Place.Name + "): it can read it, so it can lose it"
}

// whyLimit says what bounds the agent's runtime.
func (a *agentRun) whyLimit(res *wire.WhyResult, name string) error {
	l := a.Want.Limits.WithDefaults()
	e := engine.Limits{MemoryBytes: l.MemoryBytes, MilliCPU: l.MilliCPU, PIDs: l.PIDs, NoFile: l.NoFile, CoreBytes: l.CoreBytes}.WithDefaults()
	rules := map[string]struct {
		value, rule string
		layer       deny.Layer
	}{
		"memory":      {fmt.Sprintf("%d bytes", e.MemoryBytes), "the cgroup's memory bound; what wants more is killed by the kernel", deny.LayerPod},
		"cpu":         {fmt.Sprintf("%d thousandths of a core", e.MilliCPU), "the cgroup's processor bound; what wants more waits", deny.LayerPod},
		"pids":        {fmt.Sprint(e.PIDs), "the cgroup's bound of processes and threads; fork fails with EAGAIN", deny.LayerPod},
		"noFile":      {fmt.Sprint(e.NoFile), "RLIMIT_NOFILE; open fails with EMFILE", deny.LayerPod},
		"core":        {fmt.Sprintf("%d bytes", e.CoreBytes), "RLIMIT_CORE; a longer core file is cut", deny.LayerPod},
		"disk":        {fmt.Sprintf("%d bytes", l.DiskBytes), "the size of the agent's own file system; writes fail with ENOSPC", deny.LayerQuota},
		"inodes":      {fmt.Sprint(l.Inodes), "the number of files on the agent's own file system; making one fails with ENOSPC", deny.LayerQuota},
		"logs":        {fmt.Sprintf("%d bytes", l.LogBytes), "what is kept of what it prints; the oldest is dropped", deny.LayerQuota},
		"connections": {fmt.Sprint(l.Connections), "what its dialer holds open at a time; more are refused with " + string(deny.TooMany), deny.LayerEgress},
	}
	r, ok := rules[name]
	if !ok {
		return badInput(fmt.Sprintf("there is no limit %.50q", name), "the limits are "+strings.Join(slices.Sorted(maps.Keys(rules)), ", "))
	}
	res.Kind, res.Layer, res.Verdict = wire.WhyLimit, r.layer, wire.WhyDepends
	res.Rule = "up to " + r.value + ": " + r.rule
	res.Mend = fmt.Sprintf("write another value under agents.%s.limits.%s in bulkhead.yaml", a.Place.Name, name)
	return nil
}

// whyWords are the words before a colon that [agentRun.whyOther] answers.
var whyWords = []string{"message", "topic", "tool", "secret", "limit"}

// worded says whether a question begins with one of the words. A port is a number,
// so that message:443 asks for a host of that name.
func worded(what string) (word, rest string, ok bool) {
	word, rest, ok = strings.Cut(what, ":")
	return word, rest, ok && slices.Contains(whyWords, word) && strings.Trim(rest, "0123456789") != ""
}
