package control

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"bulkhead/internal/control/admintoken"
	"bulkhead/internal/control/protocol"
	"bulkhead/internal/identity/token"
)

// FuzzRequests holds that whatever is asked of control is answered or refused, that a
// token is for whom it was asked for, and that what is kept can be read again. Rotations
// are left out: each makes keys.
func FuzzRequests(f *testing.F) {
	for verb, body := range map[string]string{
		protocol.VerbIssue:  `{"team":"pair","agent":"writer","domains":["example.com"],"ratePerMinute":5,"storageBytes":1,"memoryBytes":1,"for":3600000000000,"alg":"EdDSA","by":1}`,
		protocol.VerbList:   `{"team":"pair","agent":"writer","all":true}`,
		protocol.VerbRevoke: `{"team":"pair","agent":"writer"}`,
		protocol.VerbTrust:  `{"gateways":[{"team":"pair","agent":"writer"}]}`,
		protocol.VerbAdmin:  `{"teams":["pair"],"token":"P","method":"POST","body":"e30="}`,
	} {
		f.Add(verb, []byte(body))
	}
	f.Add(protocol.VerbIssue, []byte(`{"team":"p\u0000","agent":"\ufffd","for":-1}`))
	f.Add(protocol.VerbIssue, []byte(`{"team":"pair","agent":"writer","domains":[]}`))
	f.Add(protocol.VerbRevoke, []byte(`{"id":"x"`))
	f.Add("nothing", []byte(`null`))
	k := start()
	c := open(f, f.TempDir(), k)
	all := answers(c)
	f.Fuzz(func(t *testing.T, verb string, body []byte) {
		do := all[verb]
		if do == nil || verb == protocol.VerbRotate {
			return
		}
		out, err := do(t.Context(), body)
		if err != nil {
			return
		}
		if _, err := json.Marshal(out); err != nil {
			t.Fatalf("%s %q: the answer cannot be sent: %v", verb, body, err)
		}
		if one, ok := out.(*protocol.Issued); ok {
			isFor(t, c, k, body, one)
		}
		raw, err := os.ReadFile(c.book.path)
		if err != nil {
			t.Fatal(err)
		}
		b := &book{tokens: map[string]*protocol.Token{}}
		if _, good, err := b.replay(raw); err != nil || good != len(raw) || b.epoch != c.book.epoch || len(b.tokens) != len(c.book.tokens) {
			t.Fatalf("after %s %q: %d of %d bytes of the book are read again: %v", verb, body, good, len(raw), err)
		}
	})
}

// isFor holds that a token says what was asked for, and nothing wider, to who verifies it.
func isFor(t *testing.T, c *Control, k *clock, body []byte, one *protocol.Issued) {
	t.Helper()
	var q protocol.Issue
	if err := json.Unmarshal(body, &q); err != nil {
		t.Fatal(err)
	}
	trusts, err := c.Trust(protocol.TrustRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var trust token.Trust
	if err := json.Unmarshal(trusts.Front, &trust); err != nil {
		t.Fatal(err)
	}
	front := token.NewVerifier(token.Config{Now: k.now})
	if err := front.Refresh(trust); err != nil {
		t.Fatal(err)
	}
	got, reason := front.Verify(one.Token)
	if reason != nil {
		t.Fatalf("%q: nobody takes it: %v", body, reason)
	}
	limits := token.Quotas{StorageBytes: q.Storage, MemoryBytes: q.Memory, RatePerMinute: q.Rate}
	if got.Team != q.Team || got.Agent != q.Agent || got.ID != one.ID || got.Quotas != limits || (got.Domains == nil) != (q.Domains == nil) ||
		got.Expires > k.at.Add(token.MaxLife).Unix() {
		t.Fatalf("%q: %+v", body, got)
	}
}

// FuzzAdmin holds that control orders only what the team of the token may have done,
// and a guest within its ceiling alone.
func FuzzAdmin(f *testing.F) {
	f.Add("P", "POST", "", []byte(`{"name":"app","egress":["api.example.com:443"],"tools":{"allow":["mem"]}}`))
	f.Add("P", "GET", "app", []byte(nil))
	f.Add("P", "DELETE", "../writer", []byte(nil))
	f.Add("X", "POST", "", []byte(`{"name":"app"}`))
	f.Add("P", "POST", "", []byte(`{"name":"app","tools":{"memory":"2Mi","allow":["db"]},"name":"x"}`))
	ceiling := ceilingOf(f, "pair")
	k := start()
	c := open(f, f.TempDir(), k)
	f.Fuzz(func(t *testing.T, text, method, name string, body []byte) {
		var err error
		// Anew: wrong tokens of another input would keep this one out.
		if c.admins, err = newAdmins([]protocol.Admin{{Team: "pair", Token: admintoken.Of("P"), Ceiling: ceiling}}, k.now); err != nil {
			t.Fatal(err)
		}
		o, err := c.Admin(protocol.AdminAsk{Teams: []string{"pair"}, Token: text, Method: method, Name: name, Body: bytes.Clone(body)})
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case o.Reason != nil:
			if o.Do != "" || o.Guest != nil {
				t.Fatalf("refused and ordered: %+v", o)
			}
		case text != "P" || o.Team != "pair":
			t.Fatalf("%q orders for %q", text, o.Team)
		case o.Do == protocol.DoMake:
			if o.Guest == nil || o.Guest.Agent.Name != o.Name || !o.Guest.Agent.PlainGuest() {
				t.Fatalf("%q: %+v", body, o)
			}
		case o.Do != protocol.DoList && o.Do != protocol.DoDelete || o.Name != name || o.Guest != nil:
			t.Fatalf("%s %q: %+v", method, name, o)
		}
		if _, err := json.Marshal(o); err != nil {
			t.Fatal(err)
		}
	})
}
