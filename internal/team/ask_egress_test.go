package team

import (
	"slices"
	"testing"
)

func TestAskedDestinationsAreCoveredByEgress(t *testing.T) {
	var egress []Destination
	for _, s := range []string{"api.example.com:443", "api.example.com:8443", "*.wild.example.com:443", "192.0.2.1:25", "host:5432"} {
		d, err := ParseDestination(s)
		if err != nil {
			t.Fatal(err)
		}
		egress = append(egress, d)
	}
	for in, want := range map[string][]string{
		"api.example.com:443":      {"api.example.com:443"},
		"API.example.com":          {"api.example.com:443", "api.example.com:8443"},
		"a.wild.example.com":       {"a.wild.example.com:443"},
		"*.wild.example.com:443":   {"*.wild.example.com:443"},
		"*.b.wild.example.com:443": {"*.b.wild.example.com:443"},
		"*.wild.example.com":       {"*.wild.example.com:443"},
		"192.0.2.1":                {"192.0.2.1:25"},
		"host:5432":                {"host:5432"},
		"api.example.com:80":       nil,
		"*.example.com:443":        nil,
		"wild.example.com:443":     nil,
		"192.0.2.2:25":             nil,
	} {
		got, fault := askedOf(in, egress)
		if fault != nil || !slices.Equal(targets(got), want) {
			t.Errorf("%s: %v, %v; want %v", in, targets(got), fault, want)
		}
	}
	for _, in := range []string{"", "*", "https://api.example.com", "api.example.com:53", "10.0.0.0/8:443", "a b"} {
		if _, fault := askedOf(in, egress); fault == nil {
			t.Errorf("%q was taken", in)
		}
	}
}

// FuzzAskedDestinations: what is asked for is always within egress.
func FuzzAskedDestinations(f *testing.F) {
	f.Add("api.example.com", "api.example.com:443")
	f.Add("*.a.example.com:443", "*.example.com:443")
	f.Add("192.0.2.1", "192.0.2.1:25")
	f.Fuzz(func(t *testing.T, asked, listed string) {
		e, err := ParseDestination(listed)
		if err != nil {
			return
		}
		got, _ := askedOf(asked, []Destination{e})
		for _, d := range got {
			host := d.Host
			switch {
			case d.Wild():
				host = "x" + host[1:]
			case host == "":
				host = d.Address.String()
			}
			if !d.Covers(host, d.Port) || !e.Covers(host, d.Port) {
				t.Errorf("%q within %q gives %s", asked, listed, d.Target())
			}
		}
	})
}

func TestAManifestThatAsksForDestinations(t *testing.T) {
	const head = "apiVersion: bulkhead/v1\nteam: t\nagents:\n  a:\n    image: pi\n    mode: session\n    tools: {allow: [mem]}\n    egress: [api.example.com:443]\n    ask: "
	m, err := Parse("bulkhead.yaml", []byte(head+"{egress: [api.example.com]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if a := m.Agents[0].Ask; !a.Reaches("api.example.com", 443) || a.Reaches("api.example.com", 80) {
		t.Errorf("%+v", a)
	}
	for _, in := range []string{"{egress: []}", "{egress: [other.example.com:443]}", "{egress: [api.example.com, api.example.com:443]}", "{}"} {
		if _, err := Parse("bulkhead.yaml", []byte(head+in+"\n")); err == nil {
			t.Errorf("%s was taken", in)
		}
	}
}
