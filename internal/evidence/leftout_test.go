package evidence

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/evidence/attempt"
	"bulkhead/internal/layout"
)

// refused runs against a team in which everything is refused.
func refused(t *testing.T, q Request) *Report {
	t.Helper()
	q.Team = "pair"
	r, err := Run(t.Context(), answering(func(q attempt.Request, _ Position) ([]byte, error) { return answer(refusing(q)) }), q)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestWhatATeamHasNothingOfIsLeftOutAndSaid(t *testing.T) {
	agents := twoAgents(t)
	agents[0].Audit, agents[0].Fetches = "/audit.sock", true
	r := refused(t, Request{Agents: agents})
	if !r.OK() || r.NotRun != 0 {
		t.Fatalf("%d not run:\n%s", r.NotRun, r.Text())
	}
	said := map[string]LeftOut{}
	for _, l := range r.LeftOut {
		said[l.Why] = l
		if !strings.Contains(r.Text(), "NOT COVERED: "+l.String()) {
			t.Errorf("the text does not say %s", l)
		}
	}
	for why, want := range map[string]LeftOut{
		"it has no front":         {Of: []string{"editor", "writer"}, Attacks: []string{"front.port", "front.dialer", "front.proxy", "front.socket", "front.token"}},
		"it has no net_http_get":  {Of: []string{"editor"}, Attacks: []string{"tool.fetch"}, Rows: 1},
		"it has no audit":         {Of: []string{"editor", "writer"}, Attacks: []string{"audit.log", "audit.socket", "audit.token", "audit.forge", "audit.operator"}},
		"it has no code run":      {Of: []string{"editor", "writer"}, Attacks: []string{"code.files", "code.sockets", "code.socket_of", "code.see", "code.signal", "code.ptrace", "code.memory"}},
		"it has no messages":      {Of: []string{"editor", "writer"}, Attacks: []string{"message.socket", "message.token", "message.forge", "message.foreign"}},
		"there is no other agent": {},
	} {
		got, ok := said[why]
		if ok != (len(want.Of) > 0) || !slices.Equal(got.Of, want.Of) || !slices.Equal(got.Attacks, want.Attacks) || want.Rows > 0 && got.Rows != want.Rows {
			t.Errorf("%s: %+v, want %+v", why, got, want)
		}
	}
	// Each attack has a row, or is named among those that have none.
	for _, a := range Attacks() {
		has := slices.ContainsFunc(r.Rows, func(x Row) bool { return x.Attack == a.ID })
		named := slices.ContainsFunc(r.LeftOut, func(l LeftOut) bool { return slices.Contains(l.Attacks, a.ID) })
		if !has && !named {
			t.Errorf("nothing is said of %s", a.ID)
		}
	}
	alone := refused(t, Request{Agents: agents[:1]})
	i := slices.IndexFunc(alone.LeftOut, func(l LeftOut) bool { return l.Why == "there is no other agent" })
	if i < 0 || !slices.Contains(alone.LeftOut[i].Attacks, "file.other") {
		t.Errorf("an agent alone: %v", alone.LeftOut)
	}
}

func TestWhatTheManifestGivesAndIsNotThereFails(t *testing.T) {
	for name, kill := range map[string]func(q *Request){
		"an agent's socket of a server": func(q *Request) {
			q.Agents[1].Expected = []string{q.Agents[1].Place.ServiceSocket(layout.FrontName)}
		},
		"a server's own socket": func(q *Request) {
			q.Expected = []string{q.Agents[0].host().Service(layout.ControlName).OperatorSocket()}
		},
		"what every agent has": func(q *Request) {
			for _, a := range q.Agents {
				if err := os.RemoveAll(a.Place.Data()); err != nil {
					t.Fatal(err)
				}
			}
		},
		"an agent":                   func(q *Request) { q.Dead = map[string]string{"third": "it was restarted too often"} },
		"the warden's socket itself": func(q *Request) { _ = os.RemoveAll(q.Agents[0].host().WardenSocket()) },
	} {
		t.Run(name, func(t *testing.T) {
			q := Request{Agents: twoAgents(t)}
			kill(&q)
			if r := refused(t, q); r.OK() || r.Unproven == 0 {
				t.Errorf("it is missing, and the report is good:\n%s", r.Text())
			}
		})
	}
	q := Request{Agents: twoAgents(t)}
	q.Agents[1].Expected = []string{q.Agents[1].Place.GatewaySocket()}
	if r := refused(t, q); !r.OK() {
		t.Errorf("all is there:\n%s", r.Text())
	}
}

func TestGuestsAreAttackedFromWhereTheyRunAndAreTargets(t *testing.T) {
	agents := twoAgents(t)
	for i := range 7 {
		g := agents[0]
		g.Name, g.Guest = fmt.Sprintf("app%d", i), true
		agents = append(agents, g)
	}
	r := refused(t, Request{Agents: agents})
	if !r.OK() {
		t.Fatal(r.Text())
	}
	aims, aimed := map[string]map[string]bool{}, map[string]int{}
	for _, row := range r.Rows {
		guest := strings.HasPrefix(row.Agent, "app")
		if guest && row.Position != FromGateway && row.Position != FromAccount {
			t.Errorf("%+v", row)
		}
		if row.Attack == "file.other" {
			if aims[row.Agent] == nil {
				aims[row.Agent] = map[string]bool{}
			}
			aims[row.Agent][row.Target] = true
			aimed[row.Target]++
		}
	}
	for who, at := range aims {
		guests := 0
		for target := range maps.Keys(at) {
			if strings.HasPrefix(target, "app") {
				guests++
			}
		}
		if guests != aimedAt || !at["writer"] && who != "writer" || !at["editor"] && who != "editor" || at[who] {
			t.Errorf("%s aims at %v", who, at)
		}
	}
	for _, a := range agents {
		if aimed[a.Name] == 0 {
			t.Errorf("nobody aims at %s", a.Name)
		}
	}
}

// Agents of other teams are aimed at by what concerns the host's accounts, some
// by each attacker and each by somebody, and attacked from by nothing.
func TestAgentsOfOtherTeamsAreTargetsAlone(t *testing.T) {
	agents := twoAgents(t)
	var others []Agent
	for i := range 7 {
		o := agents[0]
		o.Name = fmt.Sprintf("other/a%d", i)
		others = append(others, o)
	}
	r := refused(t, Request{Agents: agents, Neighbours: others})
	if !r.OK() {
		t.Fatal(r.Text())
	}
	aims, aimed := map[string]map[string]bool{}, map[string]bool{}
	for _, row := range r.Rows {
		if strings.HasPrefix(row.Agent, "other/") {
			t.Errorf("attacked from: %+v", row)
		}
		if !strings.HasPrefix(row.Target, "other/") {
			continue
		}
		if row.Attack == "message.forge" || row.Attack == "front.forged" {
			t.Errorf("%s aims by a name that another team has not", row.Attack)
		}
		if aims[row.Agent] == nil {
			aims[row.Agent] = map[string]bool{}
		}
		aims[row.Agent][row.Target], aimed[row.Target] = true, true
	}
	for who, at := range aims {
		if len(at) != aimedAt {
			t.Errorf("%s aims at %d agents of other teams", who, len(at))
		}
	}
	if len(aimed) != len(others) || len(aims) != len(agents) {
		t.Errorf("%d of %d are aimed at, by %d", len(aimed), len(others), len(aims))
	}
}
