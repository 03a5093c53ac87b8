package team

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/adapter"
)

// Bounds of an agent's messages. A quota takes one message of the largest size
// at least, or that agent could send none.
const (
	maxPeers      = MaxAgents
	minQuota      = 2 * adapter.MaxBody
	maxQuota      = 64 << 30
	maxPushPath   = 1024
	defaultHook   = "/hooks/agent"
	messagesUsage = "{to: [engineering], critical: [escalation]}"
)

// criticalTypes are the message types that need the manifest's word.
var criticalTypes = []string{string(adapter.Escalation), string(adapter.PolicyUpdate), string(adapter.GovernanceDirective)}

// Messages is what an agent may say to others, beside the channels that it joins.
type Messages struct {
	To       []string // agents that it may write to directly
	Critical []string // critical types that it may send
	MaxBytes int64    // of it in queues and dead letters; 0: adapter.DefaultBytes
	Push     *Push    `json:",omitempty"`
}

// Push delivers by POST into the runtime instead of waiting to be asked.
type Push struct {
	Port      uint16 // on the runtime's loopback
	Path      string
	TokenFile string // absolute, inside the runtime; empty: no token is sent
}

// messages reads what an agent may say to others.
func (r *reader) messages(agent string, p place) *Messages {
	if p.node == nil {
		return nil
	}
	m := &Messages{}
	f := r.fields(p, messagesUsage, messageKeys...)
	m.To = r.peers(agent, f["to"])
	m.Critical = r.critical(f["critical"])
	m.MaxBytes = r.quantity(f["maxBytes"], "bytes like 64Mi", "2Mi to 64Gi", bytesOf, minQuota, maxQuota)
	m.Push = r.push(f["push"])
	return m
}

// peers reads names of agents. Whether they exist is checked when all are
// known ([reader.checkMessages]).
func (r *reader) peers(agent string, p place) []string {
	var out []string
	for _, item := range r.list(p, maxPeers, "one agent per entry, like [engineering]") {
		s, ok := r.text(item, "an agent's name, like engineering")
		switch {
		case !ok:
		case contains(out, s):
			r.fault(item, "remove one of the two", "%s is listed twice", clip(s))
		default:
			out = append(out, s)
			r.peered = append(r.peered, peered{agent, s, item})
		}
	}
	return out
}

// peered is one agent that another named, and where.
type peered struct {
	agent, name string
	at          place
}

func (r *reader) critical(p place) []string {
	var out []string
	for _, item := range r.list(p, len(criticalTypes), "one type per entry: "+strings.Join(criticalTypes, ", ")) {
		s := r.choice(item, criticalTypes...)
		switch {
		case s == "":
		case contains(out, s):
			r.fault(item, "remove one of the two", "%s is listed twice", s)
		default:
			out = append(out, s)
		}
	}
	return out
}

func (r *reader) push(p place) *Push {
	if p.node == nil {
		return nil
	}
	const usage = "{port: 18789, path: " + defaultHook + ", tokenFile: /home/agent/.hook-token}"
	f := r.fields(p, usage, pushKeys...)
	out := &Push{Path: defaultHook}
	r.need(p, f, "port", "name the port on which the agent takes deliveries, like "+usage)
	if s, ok := r.text(f["port"], "a port, like 18789"); ok {
		port, problem, mend := portOf(s)
		if problem != "" {
			r.fault(f["port"], mend, "%s", problem)
		}
		out.Port = port
	}
	if s, ok := r.text(f["path"], "a path, like "+defaultHook); ok {
		if !hookPath(s) {
			r.fault(f["path"], "write a plain path from /, like "+defaultHook, "%q is not a path of a request", clip(s))
		}
		out.Path = s
	}
	if s, ok := r.absolute(f["tokenFile"]); ok {
		out.TokenFile = s
	}
	return out
}

// hookPath takes the unreserved characters of a path (RFC 3986, 3.3) in its
// shortest form: no query, no escapes, nothing that a server reads otherwise.
func hookPath(s string) bool {
	foreign := strings.IndexFunc(s, func(c rune) bool {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		return !letter && !strings.ContainsRune("/-._~", c)
	})
	return foreign < 0 && strings.HasPrefix(s, "/") && path.Clean(s) == s && len(s) <= maxPushPath
}

// checkMessages checks what names other agents, once all are known. top is the
// first level of the file.
func (r *reader) checkMessages(m *Manifest, top map[string]place) {
	names := m.names()
	known := func(p place, s string) bool {
		if contains(names, s) {
			return true
		}
		r.fault(p, meant(names, s), "%q is no agent of this team", clip(s))
		return false
	}
	if s, ok := r.text(top["orchestrator"], "the name of the agent that is alerted"); ok && known(top["orchestrator"], s) {
		m.Orchestrator = s
	} else if top["orchestrator"].node == nil && contains(names, "orchestrator") {
		m.Orchestrator = "orchestrator"
	}
	for _, n := range r.peered {
		if n.name == n.agent {
			r.fault(n.at, "remove it", "%s cannot write to itself", clip(n.name))
			continue
		}
		known(n.at, n.name)
	}
}

// HasMessages says whether the team has an adapter: any agent with channels or
// messages asks for one.
func (m *Manifest) HasMessages() bool {
	return m != nil && slices.ContainsFunc(m.Agents, func(a *Agent) bool { return a.Messages != nil || len(a.Channels) > 0 })
}

// Policy is what the team's adapter enforces. Every agent is in it: one without
// rules of its own may still be written to.
func (m *Manifest) Policy() adapter.Policy {
	p := adapter.Policy{Team: m.Team, Agents: map[string]adapter.AgentPolicy{}, Orchestrator: m.Orchestrator}
	for _, a := range m.Agents {
		var one adapter.AgentPolicy
		if a.Messages != nil {
			one.To, one.MaxBytes = slices.Clone(a.Messages.To), a.Messages.MaxBytes
			for _, c := range a.Messages.Critical {
				one.Critical = append(one.Critical, adapter.Type(c))
			}
		}
		p.Agents[a.Name] = one
		for _, c := range a.Channels {
			if p.Channels == nil {
				p.Channels = map[string][]string{}
			}
			p.Channels[c] = append(p.Channels[c], a.Name)
		}
	}
	for _, members := range p.Channels {
		slices.Sort(members)
	}
	return p
}

// spoken lists what an agent may say, in the words of a plan. None of it is a
// part of a container: the adapter learns it while it runs.
func spoken(old, new *Agent) []string {
	why := setDiff("channels", old.Channels, new.Channels)
	a, b := old.Messages, new.Messages
	if a == nil {
		a = &Messages{}
	}
	if b == nil {
		b = &Messages{}
	}
	why = append(why, setDiff("messages.to", a.To, b.To)...)
	why = append(why, setDiff("messages.critical", a.Critical, b.Critical)...)
	if a.MaxBytes != b.MaxBytes {
		why = append(why, "messages.maxBytes: "+size(a.MaxBytes)+" -> "+size(b.MaxBytes))
	}
	return why
}

// pushed is where an agent gets deliveries, in the words of a plan.
func (a *Agent) pushed() string {
	if a.Messages == nil || a.Messages.Push == nil {
		return ""
	}
	p := a.Messages.Push
	s := strconv.Itoa(int(p.Port)) + p.Path
	if p.TokenFile != "" {
		s += " with the token in " + p.TokenFile
	}
	return s
}
