package control

import (
	"encoding/json"
	"strings"
	"testing"

	"bulkhead/internal/control/admintoken"
	"bulkhead/internal/control/protocol"
	"bulkhead/internal/deny"
	"bulkhead/internal/team"
)

// ceilingOf is as control is told it: through JSON.
func ceilingOf(t testing.TB, name string) *team.Guests {
	t.Helper()
	m, err := team.Parse("bulkhead.yaml", []byte(`apiVersion: bulkhead/v1
team: `+name+`
front: {listen: "127.0.0.1:1", guests: {adminTokenFile: /t, max: 5, egress: ["api.example.com:443"], tools: {allow: [mem], memory: 1Mi, storage: 1Mi}}}
agents: {writer: {image: pi, mode: session}}
`))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(m.Guests())
	if err != nil {
		t.Fatal(err)
	}
	var out team.Guests
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	return &out
}

func TestControlDecidesWhoMakesGuests(t *testing.T) {
	k := start()
	c, err := Open(t.TempDir(), k.now, protocol.Admin{Team: "pair", Token: admintoken.Of("P"), Ceiling: ceilingOf(t, "pair")}, protocol.Admin{Team: "other", Token: admintoken.Of("O"), Ceiling: ceilingOf(t, "other")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	both := []string{"pair", "other"}
	for name, x := range map[string]struct {
		ask  protocol.AdminAsk
		code deny.Code
		want protocol.AdminOrder
	}{
		"make":                     {protocol.AdminAsk{Teams: both, Token: "P", Method: "POST", Body: []byte(`{"name":"app"}`)}, "", protocol.AdminOrder{Do: protocol.DoMake, Team: "pair", Name: "app"}},
		"make, by the other team":  {protocol.AdminAsk{Teams: both, Token: "O", Method: "POST", Body: []byte(`{"name":"app"}`)}, "", protocol.AdminOrder{Do: protocol.DoMake, Team: "other", Name: "app"}},
		"remove":                   {protocol.AdminAsk{Teams: both, Token: "P", Method: "DELETE", Name: "app"}, "", protocol.AdminOrder{Do: protocol.DoDelete, Team: "pair", Name: "app"}},
		"list":                     {protocol.AdminAsk{Teams: both, Token: "P", Method: "GET"}, "", protocol.AdminOrder{Do: protocol.DoList, Team: "pair"}},
		"a token of another place": {protocol.AdminAsk{Teams: []string{"other"}, Token: "P", Method: "GET"}, deny.BadToken, protocol.AdminOrder{}},
		"nobody's token":           {protocol.AdminAsk{Teams: both, Token: "X", Method: "GET"}, deny.BadToken, protocol.AdminOrder{}},
		"no token":                 {protocol.AdminAsk{Teams: both, Method: "GET"}, deny.BadToken, protocol.AdminOrder{}},
		"above the ceiling":        {protocol.AdminAsk{Teams: both, Token: "P", Method: "POST", Body: []byte(`{"name":"app","egress":["evil.example:443"]}`)}, deny.ToolInvalid, protocol.AdminOrder{}},
		"not JSON":                 {protocol.AdminAsk{Teams: both, Token: "P", Method: "POST", Body: []byte(`name: app`)}, deny.ToolInvalid, protocol.AdminOrder{}},
		"another method":           {protocol.AdminAsk{Teams: both, Token: "P", Method: "PATCH"}, deny.ToolInvalid, protocol.AdminOrder{}},
	} {
		o, err := c.Admin(x.ask)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if x.code != "" {
			if o.Reason == nil || o.Reason.Code != x.code || o.Do != "" || o.Guest != nil {
				t.Errorf("%s: %+v", name, o)
			}
			continue
		}
		if o.Reason != nil || o.Do != x.want.Do || o.Team != x.want.Team || o.Name != x.want.Name || (o.Guest != nil) != (o.Do == protocol.DoMake) {
			t.Errorf("%s: %+v", name, o)
		}
		if o.Guest != nil && !o.Guest.Agent.PlainGuest() {
			t.Errorf("%s: %+v", name, o.Guest.Agent)
		}
	}
	o, err := c.Admin(protocol.AdminAsk{Teams: both, Token: "P", Method: "POST", Body: []byte(`{"name":"APP","tools":{"memory":"2Mi","allow":["db"]},"x":1}`)})
	if err != nil || o.Reason == nil || len(o.Reason.Fields) < 4 {
		t.Errorf("not every failing field is listed: %+v, %v", o.Reason, err)
	}
	for range 5 {
		if _, err := c.Admin(protocol.AdminAsk{Teams: both, Token: "X", Method: "GET"}); err != nil {
			t.Fatal(err)
		}
	}
	if o, err = c.Admin(protocol.AdminAsk{Teams: both, Token: "P", Method: "GET"}); err != nil || o.Reason == nil || o.Reason.Code != deny.Locked || o.Reason.RetryAfter != 60 {
		t.Errorf("after guessing: %+v, %v", o, err)
	}
}

func TestControlDoesNotStartWithoutACeiling(t *testing.T) {
	for name, a := range map[string]protocol.Admin{
		"no ceiling": {Team: "pair", Token: admintoken.Of("P")},
		"no token":   {Team: "pair", Ceiling: ceilingOf(t, "pair")},
		"no tools":   {Team: "pair", Token: admintoken.Of("P"), Ceiling: &team.Guests{Max: 1}},
	} {
		if c, err := Open(t.TempDir(), nil, a); err == nil || !strings.Contains(err.Error(), "team pair") {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
}
