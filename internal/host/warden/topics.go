package warden

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/deny"
	"bulkhead/internal/host/ledger"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/layout"
	"bulkhead/internal/tool/toolname"
	"bulkhead/internal/topic"
	topics "bulkhead/internal/topic/protocol"
	"bulkhead/internal/wire"
)

// purgeTopics removes the messages that a team, which is down, left in its
// public topics. The caller holds w.change.
func (w *Warden) purgeTopics(ctx context.Context, team string) (gone []string, err error) {
	place := w.host.Service(layout.TopicsName)
	if !w.ledger.Has(ledger.StateDir, place.State) {
		return nil, nil
	}
	gone = []string{"public topics of team " + team}
	if s := w.service(layout.TopicsName); s != nil {
		ctx, cancel := context.WithTimeout(ctx, serviceAsk)
		defer cancel()
		if err := s.ask(ctx, topics.VerbForget, topics.Forget{Team: team}, nil); err != nil {
			return nil, fmt.Errorf("the public topics of team %s are kept: %w; run the same command again when `bulkhead status` shows that %s runs", team, err, layout.TopicsName)
		}
		return gone, nil
	}
	if len(w.running()) == 0 {
		return nil, nil // purgeServices removes all of it
	}
	// Nothing of the server's account runs; its next start gives the folder back.
	switch _, there, err := tree.Owner(place.Data()); {
	case err != nil:
		return nil, err
	case !there:
		return nil, nil
	}
	if err := tree.Chown(place.Data(), 0, 0); err != nil {
		return nil, err
	}
	for _, name := range topic.Files(team) {
		if err := tree.Remove(filepath.Join(place.Data(), name)); err != nil {
			return nil, err
		}
	}
	return gone, nil
}

// toolOf is the tool by which an agent uses a right to a topic.
var toolOf = map[topic.Right]string{topic.Publish: "events_publish", topic.Read: "events_poll"}

// whyTopic asks what the server of public topics asks for each request.
func (a *agentRun) whyTopic(res *wire.WhyResult, rest string) error {
	name, right, single := strings.Cut(strings.TrimPrefix(rest, topic.Prefix), "/")
	rights := []topic.Right{topic.Publish, topic.Read}
	if single {
		rights = []topic.Right{topic.Right(right)}
	}
	if !topic.Named(name) || toolOf[rights[0]] == "" {
		return badInput(fmt.Sprintf("topic:%.80s names no public topic and right", rest), "ask for topic:NAME, topic:NAME/publish or topic:NAME/read")
	}
	t, err := a.w.team(a.Place.Team)
	if err != nil {
		return err
	}
	res.Kind, res.Layer = wire.WhyTopic, deny.LayerTools
	var may, not []string
	for _, right := range rights {
		r := a.topicRefusal(t.manifest.Topics, right, name)
		if r == nil {
			may = append(may, fmt.Sprintf("topics.%s.%s names %s", name, right, a.Place.Name))
			continue
		}
		not, res.Code, res.Mend = append(not, r.Why), r.Code, r.Mend
	}
	switch res.Rule = strings.Join(append(may, not...), "; "); {
	case len(not) == 0:
		res.Verdict = wire.WhyAllowed
		res.Rule += fmt.Sprintf("; what is kept of each publisher is bounded by %d messages, %d bytes (topics.%s.storage) and a day", topic.Keep, t.manifest.Topics[name].Storage, name)
	case len(may) == 0:
		res.Verdict = wire.WhyDenied
	default:
		res.Verdict = wire.WhyDepends
	}
	return nil
}

// topicRefusal is the policy's, or that of the tool which the right needs.
func (a *agentRun) topicRefusal(p topic.Policy, right topic.Right, name string) *deny.Reason {
	if r := p.Refusal(a.Place.Name, right, name); r != nil {
		return r
	}
	need := toolOf[right]
	if slices.ContainsFunc(a.Want.Tools.Allowed(), func(s string) bool { return s == need || s == string(toolname.GroupOf(need)) }) {
		return nil
	}
	return &deny.Reason{
		Layer: deny.LayerTools, Code: deny.ToolNotAllowed, What: need, Why: "agents." + a.Place.Name + ".tools.allow does not name " + need,
		Mend: "add " + need + " to agents." + a.Place.Name + ".tools.allow in bulkhead.yaml",
	}
}
