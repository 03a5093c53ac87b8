// Package topic is the public topics of a team: what agents publish for each
// other, where the manifest lets them. Its server is run by the host
// (`bulkhead-serve topics`, internal/topic/server); what it keeps is
// internal/topic/shelf.
//
// This package has what everybody agrees on who has to do with them: names,
// bounds, and who may do what.
package topic

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"bulkhead/internal/deny"
)

// Prefix is what a public topic begins with wherever a topic is named. What
// does not is the agent's own (internal/primitive/event).
const Prefix = "public/"

// Bounds.
const (
	Keep             = 1000           // messages of each publisher in one topic
	For              = 24 * time.Hour // that a message is kept
	MaxMessage       = 1 << 20        // bytes of its JSON
	MaxPolled        = 100            // messages that one read gives
	MaxTopics        = 256            // of a team
	MaxSubscriptions = 1000           // of one agent
	MaxSubscription  = 256            // bytes of one's name
	MaxKey           = 64             // bytes of a publish's key
	DefaultStorage   = 16 << 20       // bytes of one publisher's messages in one topic
	Cost             = 128            // bytes that a message counts beside its own
)

// Rule is one topic of the manifest.
type Rule struct {
	Publish []string `json:"publish,omitempty"` // agents
	Read    []string `json:"read,omitempty"`
	Storage int64    `json:"storage"` // bytes that the messages of each publisher may take
}

// Policy is the public topics of a team, by name without [Prefix].
type Policy map[string]Rule

// Right is what somebody wants to do with a topic.
type Right string

// The rights.
const (
	Publish Right = "publish"
	Read    Right = "read"
)

// nameOf is the form of a topic's name: that of agents and channels.
var nameOf = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z][a-z0-9_-]{0,30}$`) })

// Named says whether s can be a public topic's name, without [Prefix].
func Named(s string) bool { return nameOf().MatchString(s) }

// Cut gives the name of a public topic; ok is false when topic is an agent's own.
func Cut(topic string) (name string, ok bool) { return strings.CutPrefix(topic, Prefix) }

// May says whether an agent has a right to a topic.
func (p Policy) May(agent string, right Right, name string) bool {
	rule := p[name]
	if right == Publish {
		return slices.Contains(rule.Publish, agent)
	}
	return slices.Contains(rule.Read, agent)
}

// Refusal says why an agent has no right to a topic; nil: it has. Whether the
// manifest has a topic is not told to who has nothing to do with it.
func (p Policy) Refusal(agent string, right Right, name string) *deny.Reason {
	if p.May(agent, right, name) {
		return nil
	}
	if !Named(name) {
		return &deny.Reason{
			Layer: deny.LayerTools, Code: deny.ToolInvalid, What: fmt.Sprintf("%s%.64q", Prefix, name), Why: "a public topic's name is 1 to 31 of a-z, 0-9, _ and -, beginning with a letter",
			Mend: "events_list_topics shows those of this agent; topics of its own do not begin with " + Prefix,
		}
	}
	return &deny.Reason{
		Layer: deny.LayerTools, Code: deny.ToolNotAllowed, What: Prefix + name,
		Why:  fmt.Sprintf("topics.%s.%s of the manifest does not name %s", name, right, agent),
		Mend: fmt.Sprintf("add %s to topics.%s.%s in bulkhead.yaml", agent, name, right),
	}
}

// Of lists the topics to which an agent has a right, sorted.
func (p Policy) Of(agent string, right Right) []string {
	var out []string
	for name := range p {
		if p.May(agent, right, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Files are the names, in the server's folder, of what it keeps of a team: the
// log of its database first, which alone is nothing.
func Files(team string) []string { return []string{team + ".db-wal", team + ".db-shm", team + ".db"} }

// Check refuses a policy that is not as the manifest's reader makes it.
func (p Policy) Check() error {
	if len(p) > MaxTopics {
		return fmt.Errorf("topics: %d of them are more than %d", len(p), MaxTopics)
	}
	for name, rule := range p {
		if !Named(name) || rule.Storage <= 0 {
			return fmt.Errorf("topics: %.64q is no topic with room for messages", name)
		}
	}
	return nil
}
