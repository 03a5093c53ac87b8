package team

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"bulkhead/internal/adapter"
	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
)

const talking = `apiVersion: bulkhead/v1
team: seven
agents:
  orchestrator: {image: pi, mode: session, channels: [all-agents], messages: {to: [pm], critical: [policy_update]}}
  pm: {image: pi, mode: session, channels: [all-agents], messages: {to: [orchestrator], maxBytes: 8Mi}}
  reader: {image: pi, mode: session}
`

func TestPolicyHoldsEveryAgentAndWhoMayWriteToWhom(t *testing.T) {
	want := adapter.Policy{
		Team: "seven", Orchestrator: "orchestrator",
		Agents: map[string]adapter.AgentPolicy{
			"orchestrator": {To: []string{"pm"}, Critical: []adapter.Type{adapter.PolicyUpdate}},
			"pm":           {To: []string{"orchestrator"}, MaxBytes: 8 << 20},
			"reader":       {},
		},
		Channels: map[string][]string{"all-agents": {"orchestrator", "pm"}},
	}
	m := parsed(t, talking)
	if diff := cmp.Diff(want, m.Policy()); diff != "" || !m.HasMessages() {
		t.Error(diff)
	}
	if parsed(t, base).HasMessages() {
		t.Error("a team without channels or messages asks for an adapter")
	}
}

func TestWhoMaySayWhatRestartsNobody(t *testing.T) {
	keep := func(agents ...string) (out []wire.Change) {
		for _, a := range agents {
			out = append(out, wire.Change{Agent: a, Action: wire.ActionKeep})
		}
		return out
	}
	for _, c := range []struct {
		name    string
		replace []string
		want    []wire.Change
	}{
		{"nothing changed", nil, keep(layout.AdapterName, "orchestrator", "pm", "reader")},
		{"another may be written to, another quota", []string{"to: [orchestrator], maxBytes: 8Mi", "to: [orchestrator, reader]"}, []wire.Change{
			{Agent: layout.AdapterName, Action: wire.ActionKeep},
			{Agent: "orchestrator", Action: wire.ActionKeep},
			{Agent: "pm", Action: wire.ActionUpdate, Why: []string{"messages.to: + reader", "messages.maxBytes: 8Mi -> (default)"}},
			{Agent: "reader", Action: wire.ActionKeep},
		}},
		{"another is alerted", []string{"agents:\n", "orchestrator: pm\nagents:\n"}, append([]wire.Change{
			{Agent: layout.AdapterName, Action: wire.ActionUpdate, Why: []string{"orchestrator: orchestrator -> pm"}},
		}, keep("orchestrator", "pm", "reader")...)},
		{"deliveries are pushed", []string{"maxBytes: 8Mi", "maxBytes: 8Mi, push: {port: 18789}"}, []wire.Change{
			{Agent: layout.AdapterName, Action: wire.ActionKeep},
			{Agent: "orchestrator", Action: wire.ActionKeep},
			{Agent: "pm", Action: wire.ActionRestart, Why: []string{"messages.push: (none) -> 18789/hooks/agent"}},
			{Agent: "reader", Action: wire.ActionKeep},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Diff(parsed(t, talking), parsed(t, strings.NewReplacer(c.replace...).Replace(talking)))
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTheFirstMessagesOfATeamGiveEveryAgentTheSocket(t *testing.T) {
	quiet := `apiVersion: bulkhead/v1
team: seven
agents:
  orchestrator: {image: pi, mode: session}
  pm: {image: pi, mode: session}
  reader: {image: pi, mode: session}
`
	there, back := Diff(parsed(t, quiet), parsed(t, talking)), Diff(parsed(t, talking), parsed(t, quiet))
	if there[0].Agent != layout.AdapterName || there[0].Action != wire.ActionCreate || back[0].Action != wire.ActionRemove {
		t.Errorf("the adapter: %v, %v", there[0], back[0])
	}
	for _, c := range append(there[1:], back[1:]...) {
		if c.Action != wire.ActionRestart || !strings.HasPrefix(c.Why[len(c.Why)-1], "messages: the team ") {
			t.Errorf("%v: want a restart that says why", c)
		}
	}
	for i, a := range parsed(t, quiet).Agents {
		if a.Digest() != parsed(t, talking).Agents[i].Digest() {
			t.Errorf("%s: what it may say changed what its containers are made from", a.Name)
		}
	}
}
