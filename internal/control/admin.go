package control

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"time"

	"bulkhead/internal/control/admintoken"
	"bulkhead/internal/control/protocol"
	"bulkhead/internal/deny"
	"bulkhead/internal/team"
)

// admins decides who may make agents over front, and which. It has a guard of
// its own: a captured front may not guess either.
type admins struct {
	list  []protocol.Admin
	guard *admintoken.Guard
}

func newAdmins(list []protocol.Admin, now func() time.Time) (*admins, error) {
	for _, a := range list {
		if len(a.Token) != len(admintoken.Of("")) || a.Ceiling == nil || a.Ceiling.Tools == nil {
			return nil, fmt.Errorf("control: team %s lets agents be made without a token or a ceiling", a.Team)
		}
	}
	return &admins{list, admintoken.NewGuard(now)}, nil
}

// Admin decides a request to /admin/agents.
func (c *Control) Admin(q protocol.AdminAsk) (*protocol.AdminOrder, error) {
	no := func(code deny.Code, why, mend string) (*protocol.AdminOrder, error) {
		return &protocol.AdminOrder{Reason: &deny.Reason{Layer: deny.LayerTools, Code: code, Why: why, Mend: mend}}, nil
	}
	var known []admintoken.Hash
	var at []protocol.Admin
	for _, a := range c.admins.list {
		if slices.Contains(q.Teams, a.Team) {
			known, at = append(known, a.Token), append(at, a)
		}
	}
	i, wait := c.admins.guard.Check(known, q.Token)
	switch {
	case wait > 0:
		o, err := no(deny.Locked, "too many wrong admin tokens came in a row", "wait")
		o.Reason.RetryAfter = max(1, int(math.Ceil(wait.Seconds())))
		return o, err
	case i < 0:
		return no(deny.BadToken, "it is not the admin token of a team at this address", "send what front.guests.adminTokenFile holds as `Authorization: Bearer`")
	}
	o := &protocol.AdminOrder{Team: at[i].Team, Name: q.Name}
	switch q.Method {
	case http.MethodGet:
		o.Do = protocol.DoList
	case http.MethodDelete:
		o.Do = protocol.DoDelete
	case http.MethodPost:
		g, err := at[i].Ceiling.ParseGuest(q.Body)
		if err != nil {
			return &protocol.AdminOrder{Reason: invalid(err)}, nil
		}
		o.Do, o.Name, o.Guest = protocol.DoMake, g.Agent.Name, g
	default:
		return no(deny.ToolInvalid, "there is no such method", "POST, GET or DELETE")
	}
	return o, nil
}

// invalid lists every failing field.
func invalid(err error) *deny.Reason {
	r := &deny.Reason{Layer: deny.LayerTools, Code: deny.ToolInvalid, Why: "the request is not one for a guest: see fields", Mend: "mend each field"}
	var faults team.Faults
	if !errors.As(err, &faults) {
		r.Why = err.Error()
	}
	for _, f := range faults {
		name := f.Path
		if name == "" {
			name = "(body)"
		}
		r.Fields = append(r.Fields, deny.Field{Name: name, Why: f.Problem + "; to mend: " + f.Mend})
	}
	return r
}
