package team

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"bulkhead/internal/wire"
)

func parsed(t *testing.T, text string) *Manifest {
	t.Helper()
	m, err := Parse("/srv/team/bulkhead.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

const base = `apiVersion: bulkhead/v1
team: pair
agents:
  writer: {image: pi, command: [pi], egress: [api.example.com:443, b.example.com:443], limits: {memory: 256Mi}}
  reviewer: {image: pi, mode: session}
`

func TestDiffSaysWhatAnAgentNeeds(t *testing.T) {
	for _, c := range []struct {
		name    string
		replace []string
		want    []wire.Change
	}{
		{"nothing changed", nil, []wire.Change{{Agent: "writer", Action: wire.ActionKeep}, {Agent: "reviewer", Action: wire.ActionKeep}}},
		{"a comment and other places in the file", []string{"agents:\n", "# x\n\n\nagents:\n"}, []wire.Change{{Agent: "writer", Action: wire.ActionKeep}, {Agent: "reviewer", Action: wire.ActionKeep}}},
		{"a destination more, one less", []string{"b.example.com", "c.example.com"}, []wire.Change{
			{Agent: "writer", Action: wire.ActionRestart, Why: []string{"egress: + c.example.com:443", "egress: - b.example.com:443"}},
			{Agent: "reviewer", Action: wire.ActionKeep},
		}},
		{"a looser destination", []string{"b.example.com:443", "{to: b.example.com:443, sni: any}"}, []wire.Change{
			{Agent: "writer", Action: wire.ActionRestart, Why: []string{"egress: + b.example.com:443 (sni: any)", "egress: - b.example.com:443"}},
			{Agent: "reviewer", Action: wire.ActionKeep},
		}},
		{"another limit", []string{"256Mi", "512Mi"}, []wire.Change{
			{Agent: "writer", Action: wire.ActionRestart, Why: []string{"limits.memory: 256Mi -> 512Mi"}},
			{Agent: "reviewer", Action: wire.ActionKeep},
		}},
		{"another name", []string{"reviewer", "critic"}, []wire.Change{
			{Agent: "writer", Action: wire.ActionKeep},
			{Agent: "critic", Action: wire.ActionCreate},
			{Agent: "reviewer", Action: wire.ActionRemove, Why: []string{"no longer in the manifest"}},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Diff(parsed(t, base), parsed(t, strings.NewReplacer(c.replace...).Replace(base)))
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got := Diff(nil, parsed(t, base)); len(got) != 2 || got[0].Action != wire.ActionCreate {
		t.Errorf("from nothing: %v", got)
	}
	if got := Diff(parsed(t, base), nil); len(got) != 2 || got[1].Action != wire.ActionRemove {
		t.Errorf("to nothing: %v", got)
	}
}

func TestDigestIsStableAndSeesEveryField(t *testing.T) {
	a := parsed(t, base).Agents[0]
	const want = "a2547614d54db92b8f0be6e0a27aca2b39665e76d429bffcf42f91414c75d180"
	if got := a.Digest(); got != want {
		t.Errorf("digest %s, want %s: a new digest restarts every agent on upgrade, so it changes only with apiVersion", got, want)
	}
	if a.Digest() == parsed(t, base).Agents[1].Digest() {
		t.Error("two agents share a digest")
	}
}

func TestValuesOfVariablesAreNotShownInAPlan(t *testing.T) {
	with := func(v string) *Manifest {
		return parsed(t, "apiVersion: bulkhead/v1\nteam: pair\nagents:\n  writer: {image: pi, command: [pi], env: {PIN: "+v+"}}\n")
	}
	got := Diff(with("one"), with("two"))
	if len(got) != 1 || got[0].Action != wire.ActionRestart || len(got[0].Why) != 1 || got[0].Why[0] != "env: changed PIN" {
		t.Errorf("got %+v", got)
	}
}
