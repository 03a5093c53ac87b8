package team

import (
	"maps"
	"slices"

	"bulkhead/internal/tool/toolname"
	"bulkhead/internal/topic"
)

// Bounds of what one publisher's messages may take in a topic. A message of the
// largest size may be kept out by it, and is refused then.
const (
	minTopicStorage, maxTopicStorage = 64 << 10, 1 << 30
	topicUsage                       = "{publish: [builder], read: [lead]}"
)

// topics reads the public topics, once all agents are known.
func (r *reader) topics(m *Manifest, p place) topic.Policy {
	if p.node == nil {
		return nil
	}
	entries, ok := r.mapping(p, "public topics by name, like builds: "+topicUsage)
	switch {
	case ok && len(entries) == 0:
		r.fault(p, "remove the line, or write one like builds: "+topicUsage, "no topic is listed")
	case len(entries) > topic.MaxTopics:
		r.fault(p, "share some of them", "the team has %d public topics, more than %d", len(entries), topic.MaxTopics)
		return nil
	}
	out := topic.Policy{}
	for _, e := range entries {
		if !topic.Named(e.name) {
			r.fault(e.key, "use 1 to 31 of a-z, 0-9, _ and -, beginning with a letter; agents write "+topic.Prefix+" before it", "%q cannot be a public topic's name", clip(e.name))
		}
		f := r.fields(e.val, topicUsage, topicKeys...)
		rule := topic.Rule{
			Publish: r.parties(m, f["publish"], e.name, topic.Publish), Read: r.parties(m, f["read"], e.name, topic.Read),
			Storage: r.quantity(f["storage"], "a size like 16Mi", "64Ki to 1Gi", bytesOf, minTopicStorage, maxTopicStorage),
		}
		if rule.Storage == 0 {
			rule.Storage = topic.DefaultStorage
		}
		if f != nil && (f["publish"].node == nil || f["read"].node == nil) {
			r.fault(e.key, "write it like "+e.name+": "+topicUsage, "a topic needs who may publish to it and who may read it")
		}
		out[e.name] = rule
	}
	return out
}

// parties reads the agents that have one right to a topic.
func (r *reader) parties(m *Manifest, p place, name string, right topic.Right) []string {
	var out []string
	items := r.list(p, MaxAgents, "one agent per entry, like [lead]")
	if at, ok := r.resolve(p); ok && isSequence(at.node) && len(items) == 0 {
		r.fault(p, "name an agent of this team", "no agent is listed")
	}
	for _, item := range items {
		s, ok := r.text(item, "an agent's name, like lead")
		if !ok {
			continue
		}
		a := m.Agent(s)
		switch {
		case contains(out, s):
			r.fault(item, "remove one of the two", "%s is listed twice", clip(s))
		case a == nil:
			r.fault(item, meant(m.names(), s), "%q is no agent of this team", clip(s))
		case !a.Tools.has(toolname.Events):
			r.fault(item, "add "+string(toolname.Events)+" to agents."+s+".tools.allow, or take "+s+" out of topics."+clip(name)+"."+string(right),
				"%s has no tools of the group %s, by which alone it could", s, toolname.Events)
		default:
			out = append(out, s)
		}
	}
	return out
}

// meant is the mend of a name that no agent has.
func meant(names []string, s string) string {
	if near := nearest(s, names); near != "" {
		return "did you mean " + near + "?"
	}
	return "name an agent of this team"
}

// has says whether any tool of a group is allowed.
func (t *Tools) has(g toolname.Group) bool {
	return slices.ContainsFunc(t.Allowed(), func(s string) bool { return s == string(g) || toolname.GroupOf(s) == g })
}

// topicsDiff lists what an agent may do with public topics that it could not
// before, and the other way round, in the words of a plan.
func topicsDiff(old, new *Manifest, agent string) []string {
	if old == nil || new == nil {
		return nil
	}
	var why []string
	for _, right := range []topic.Right{topic.Publish, topic.Read} {
		why = append(why, setDiff("topics."+string(right), old.Topics.Of(agent, right), new.Topics.Of(agent, right))...)
	}
	for _, name := range slices.Sorted(maps.Keys(new.Topics)) {
		before, ok := old.Topics[name]
		if now := new.Topics[name]; ok && before.Storage != now.Storage && new.Topics.May(agent, topic.Publish, name) {
			why = append(why, "topics."+name+".storage: "+size(before.Storage)+" -> "+size(now.Storage))
		}
	}
	return why
}

func (m *Manifest) names() []string {
	out := make([]string, len(m.Agents))
	for i, a := range m.Agents {
		out[i] = a.Name
	}
	return out
}
