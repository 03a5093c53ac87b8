package govern

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

func destinations(t *testing.T, b *Book) *Destinations {
	t.Helper()
	d := &Destinations{Book: b, Expire: 24 * time.Hour, Waiting: 2, Tell: func(record.Record) {}}
	if err := OpenDestinations(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	return d
}

func reach(d *Destinations, name string) (net.Conn, deny.Code, bool) {
	dialled := false
	c, err := d.Dial(context.Background(), dial.Host{Name: name}, 443, func() (net.Conn, error) {
		dialled = true
		a, _ := net.Pipe()
		return a, nil
	})
	var r *deny.Reason
	if errors.As(err, &r) {
		return nil, r.Code, dialled
	}
	return c, "", dialled
}

func TestADestinationIsAskedForOnceAndDialledOnlyWhenGranted(t *testing.T) {
	now := time.Now()
	b, _ := open(t, &now)
	d := destinations(t, b)
	for range 3 {
		if _, code, dialled := reach(d, "a.example"); code != deny.EgressApproval || dialled {
			t.Fatal(code, dialled)
		}
	}
	d = destinations(t, b) // a gateway that starts anew
	list, err := d.Approvals(t.Context(), "")
	if err != nil || len(list) != 1 || list[0].Scope != "a.example:443" {
		t.Fatal(list, err)
	}
	id := list[0].ID
	for _, q := range []wire.DecideRequest{{ID: id, Approve: true}, {ID: id, Approve: true, Kind: wire.PermitAlways, Wide: true}, {ID: "enonesuch", Approve: true, Kind: wire.PermitAlways}} {
		if _, err := d.Decide(t.Context(), q); err == nil {
			t.Errorf("%+v was taken", q)
		}
	}
	res, err := d.Decide(t.Context(), wire.DecideRequest{ID: id, Approve: true, Kind: wire.PermitAlways})
	if err != nil || res.Grant == nil {
		t.Fatal(res, err)
	}
	again, err := d.Decide(t.Context(), wire.DecideRequest{ID: id, Approve: true, Kind: wire.PermitAlways})
	if err != nil || again.Grant == nil || again.Grant.ID != res.Grant.ID || len(b.List()) != 1 {
		t.Errorf("the same word again: %+v, %v", again, err)
	}
	c, code, _ := reach(d, "a.example")
	if code != "" {
		t.Fatal(code)
	}
	if _, code, dialled := reach(d, "b.example"); code != deny.EgressApproval || dialled {
		t.Error("a grant covers another destination", code)
	}
	if err := b.Revoke(t.Context(), res.Grant.ID, record.Record{Kind: record.Approval}); err != nil {
		t.Fatal(err)
	}
	d.Sweep()
	if _, err := c.Write([]byte("x")); err == nil {
		t.Error("the connection outlived its grant")
	}
	if _, code, dialled := reach(d, "a.example"); code != deny.EgressApproval || dialled {
		t.Error(code, dialled)
	}
	if _, code, _ := reach(d, "c.example"); code != deny.EgressApproval {
		t.Error(code)
	}
	if list, _ := d.Approvals(t.Context(), ""); len(list) != 2 {
		t.Errorf("%d wait, of 2", len(list))
	}
}

func TestADenialOfADestinationLastsAnHour(t *testing.T) {
	now := time.Now()
	b, _ := open(t, &now)
	d := destinations(t, b)
	_, _, _ = reach(d, "a.example")
	list, _ := d.Approvals(t.Context(), "")
	for range 2 { // the same word again
		if res, err := d.Decide(t.Context(), wire.DecideRequest{ID: list[0].ID, Reason: "not now"}); err != nil || res.State != "disapproved" {
			t.Fatal(res, err)
		}
	}
	if _, err := d.Decide(t.Context(), wire.DecideRequest{ID: list[0].ID, Approve: true, Kind: wire.PermitAlways}); err == nil {
		t.Error("what was denied is approved")
	}
	_, err := d.Dial(t.Context(), dial.Host{Name: "a.example"}, 443, nil)
	if r := (*deny.Reason)(nil); !errors.As(err, &r) || r.Code != deny.EgressDisapproved || !strings.Contains(r.Why, "not now") {
		t.Error(err)
	}
	now = now.Add(denied + time.Second)
	if _, code, _ := reach(d, "a.example"); code != deny.EgressApproval {
		t.Error(code)
	}
}

func TestAConnectionEndsWithTheTimeOfItsGrant(t *testing.T) {
	now := time.Now()
	b, _ := open(t, &now)
	d := destinations(t, b)
	_, _, _ = reach(d, "a.example")
	list, _ := d.Approvals(t.Context(), "")
	if _, err := d.Decide(t.Context(), wire.DecideRequest{ID: list[0].ID, Approve: true, Kind: wire.PermitFor, For: time.Minute}); err != nil {
		t.Fatal(err)
	}
	c, code, _ := reach(d, "a.example")
	if code != "" {
		t.Fatal(code)
	}
	now = now.Add(2 * time.Minute)
	d.look(c.(*granted)) // as its timer does
	if _, err := c.Write([]byte("x")); err == nil {
		t.Error("it goes on")
	}
}
