package layout

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "rewrite golden files")

// names gives what the manifest takes as a team's or agent's name.
func names() *rapid.Generator[string] { return rapid.StringMatching(`[a-z][a-z0-9_-]{0,30}`) }

// useradd's own rule for names (shadow 4.13, with the 32 characters of utmp).
var useraddName = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)

func TestNoTwoAgentsShareAnAccount(t *testing.T) {
	seen := map[string][2]string{}
	rapid.Check(t, func(t *rapid.T) {
		team, agent := names().Draw(t, "team"), names().Draw(t, "agent")
		account := Account(team, agent)
		if !useraddName.MatchString(account) {
			t.Fatalf("%s is no account name", account)
		}
		if other, ok := seen[account]; ok && other != [2]string{team, agent} {
			t.Fatalf("%s/%s and %s/%s share %s", team, agent, other[0], other[1], account)
		}
		seen[account] = [2]string{team, agent}
		// Neighbours that a careless join would confuse.
		for _, o := range [][2]string{{team + "-" + agent, "x"}, {team, agent + "-x"}, {team + "_" + agent, "x"}, {agent, team}} {
			if o != [2]string{team, agent} && Account(o[0], o[1]) == account {
				t.Fatalf("%s/%s and %s/%s share %s", team, agent, o[0], o[1], account)
			}
		}
	})
}

// A hashed name must not be reachable as a plain one: the hash of a long
// team's agent is visible to everybody, and an agent could be called like it.
func TestAnAgentCannotBeNamedLikeAnothersHash(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		team := rapid.StringMatching(`[a-z][a-z0-9_]{17,30}`).Draw(t, "team")
		agent := rapid.StringMatching(`[a-z][a-z0-9_]{15,30}`).Draw(t, "agent")
		hashed := Account(team, agent)
		rest := strings.TrimPrefix(hashed, "bh-")
		for i, c := range rest {
			if c != '-' {
				continue
			}
			if forged := Account(rest[:i], strings.TrimLeft(rest[i:], "-")); forged == hashed {
				t.Fatalf("%q/%q takes the account %s of %s/%s", rest[:i], rest[i+1:], hashed, team, agent)
			}
		}
	})
}

func TestIDsOfOneAgentStayInsideItsRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		i := IDs{Base: rapid.Uint32Range(100000, 4_000_000_000).Draw(t, "base")}
		for _, id := range []uint32{i.Runtime(), i.Gateway(), i.Proc(), i.Host(1), i.Host(RangeSize)} {
			if id < i.Base || id > i.Last() {
				t.Fatalf("%d is outside %d-%d", id, i.Base, i.Last())
			}
		}
		if i.Runtime() == i.Gateway() || i.Gateway() == i.Proc() || i.Runtime() == i.Proc() {
			t.Fatal("two roles share an id")
		}
	})
}

func TestOverlapsSeesEveryMeeting(t *testing.T) {
	ids := func(t *rapid.T, label string) IDs {
		small := rapid.Uint32Range(1000, 400_000)
		return IDs{Account: small.Draw(t, label+" account"), Base: small.Draw(t, label+" base"), Dialer: small.Draw(t, label+" dialer")}
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := ids(t, "a"), ids(t, "b")
		in := func(id uint32, x IDs) bool {
			return id == x.Account || id == x.Dialer || uint64(id) >= uint64(x.Base) && uint64(id) < uint64(x.Base)+RangeSize
		}
		want := in(a.Account, b) || in(a.Dialer, b) || in(b.Account, a) || in(b.Dialer, a) ||
			in(a.Base, b) || in(a.Last(), b) || in(b.Base, a) || in(b.Last(), a)
		if a.Overlaps(b) != want || b.Overlaps(a) != want {
			t.Fatalf("%v and %v: Overlaps %t and %t, want %t", a, b, a.Overlaps(b), b.Overlaps(a), want)
		}
		if !a.Overlaps(a) {
			t.Fatal("an agent does not overlap itself")
		}
	})
}

// The plan is a contract: files on disk carry these ids and names.
func TestIdentityContract(t *testing.T) {
	type agent struct {
		Team    string            `json:"team"`
		Agent   string            `json:"agent"`
		Account string            `json:"account"`
		IDs     IDs               `json:"ids"`
		HostIDs map[string]uint32 `json:"hostIds"`
		Paths   map[string]string `json:"paths"`
	}
	h := Default()
	var out []agent
	for n, names := range [][2]string{{"pair", "writer"}, {"pair", "code-reviewer"}, {"a-b", "c"}, {"a", "b-c"}, {"averyveryveryverylongteam", "averyveryverylongagent"}} {
		i := IDs{Account: uint32(2000 + n), Base: uint32(1000000 + n*RangeSize), Dialer: uint32(900000 + n)} // #nosec G115 -- a handful
		p := h.Agent(names[0], names[1])
		out = append(out, agent{
			names[0], names[1], p.Account, i,
			map[string]uint32{"runtime": i.Runtime(), "gateway": i.Gateway(), "proc": i.Proc()},
			map[string]string{
				"home": p.Home(), "workspace": p.Workspace(), "data": p.Data(), "logs": p.Logs(), "conf": p.Conf(),
				"launcher": p.LauncherSocket(), "runtimeShim": p.ShimSocket("runtime"), "gateway": p.GatewaySocket(),
				"dialer": p.DialerSocket(), "pin": p.PinSocket(),
			},
		})
	}
	got, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("..", "..", "docs", "contracts", "golden", "identity.json")
	got = append(got, '\n')
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil { // #nosec G306 -- a golden file
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file) // #nosec G304 -- a golden file
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("the contract changed (-golden +now):\n%s", diff)
	}
}

func TestEveryPathOfAnAgentLiesBelowItsFolders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		team, name := names().Draw(t, "team"), names().Draw(t, "agent")
		h := Default()
		a := h.Agent(team, name)
		for _, p := range []string{a.Home(), a.Workspace(), a.Data(), a.Logs()} {
			if !strings.HasPrefix(p, h.State+"/teams/"+team+"/agents/"+name+"/") {
				t.Fatalf("%s is outside the agent's state", p)
			}
		}
		for _, p := range []string{a.Conf(), a.Control(), a.GatewaySocket(), a.DialerSocket(), a.PinSocket(), a.LauncherSocket(), a.ShimSocket("gateway")} {
			if !strings.HasPrefix(p, h.Run+"/teams/"+team+"/"+name+"/") {
				t.Fatalf("%s is outside the agent's run folder", p)
			}
			// sun_path holds 108 bytes with its end (unix(7)).
			if len(p) > 107 {
				t.Fatalf("%s is longer than a socket's path may be", p)
			}
		}
	})
}
