package net_test

import (
	"fmt"
	"strings"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/primitive/net"
	"bulkhead/internal/tool"
)

const good = "https://api.example.com/"

func get(t *testing.T, input map[string]any) *deny.Reason {
	t.Helper()
	w := &noWay{}
	d, _ := serve(t, w.config())
	_, reason := d.Call(t.Context(), tool.Caller{Team: "pair", Agent: "writer"}, "net_http_post", object(t, input))
	if reason == nil {
		t.Fatal("it was answered")
	}
	if (reason.Code == deny.ToolInvalid) != (len(w.to) == 0) {
		t.Errorf("%v, but %v was dialled", reason, w.to)
	}
	return reason
}

func TestAHeaderHoldsWhatIsTheCallersAndNothingElse(t *testing.T) {
	seen := 0
	for _, l := range lines(t, "testdata/headers.txt") {
		f := strings.Split(l, " | ")
		name, value, want := escapes.Replace(f[0]), escapes.Replace(f[1]), f[2]
		reason := get(t, map[string]any{"url": good, "headers": map[string]string{name: value}})
		got := "ok"
		if reason.Code == deny.ToolInvalid {
			if len(reason.Fields) != 1 || !strings.HasPrefix(reason.Fields[0].Name, "headers.") {
				t.Errorf("%q: %+v", l, reason.Fields)
				continue
			}
			got = reason.Fields[0].Why
		}
		if got != want && (want == "ok" || !strings.Contains(got, want)) {
			t.Errorf("%q: %q, want %q", l, got, want)
		}
		seen++
	}
	if seen < 50 {
		t.Fatalf("%d cases", seen)
	}
}

func TestEveryFaultOfARequestIsNamed(t *testing.T) {
	many := map[string]string{}
	for i := range 65 {
		many[fmt.Sprint("x-", i)] = "v"
	}
	for _, c := range []struct {
		name  string
		input map[string]any
		want  []string
	}{
		{"three faults", map[string]any{"url": "ftp://x", "headers": map[string]any{"Host": "x", "n": 1}}, []string{"url", "headers.Host", "headers.n"}},
		{"another case", map[string]any{"url": good, "headers": map[string]string{"accept": "a", "Accept": "b"}}, []string{"headers.accept"}},
		{"too many", map[string]any{"url": good, "headers": many}, []string{"headers"}},
		{"too long", map[string]any{"url": good, "headers": map[string]string{"x": strings.Repeat("v", 16<<10)}}, []string{"headers"}},
		{"two bodies", map[string]any{"url": good, "body": "x", "bodyBase64": "eA=="}, []string{"bodyBase64"}},
		{"a long body", map[string]any{"url": good, "body": strings.Repeat("v", 10<<20+1)}, []string{"body"}},
		{"a long URL", map[string]any{"url": good + strings.Repeat("ä", 1020)}, []string{"url"}},
		{"not an object", map[string]any{"url": good, "headers": []string{"a"}}, []string{"headers"}},
	} {
		reason := get(t, c.input)
		var got []string
		for _, f := range reason.Fields {
			got = append(got, f.Name)
		}
		if strings.Join(got, " ") != strings.Join(c.want, " ") || reason.Code != deny.ToolInvalid {
			t.Errorf("%s: %v names %v, want %v", c.name, reason, got, c.want)
		}
	}
}

func TestATokenOnlyNarrows(t *testing.T) {
	for _, c := range []struct {
		domains []string
		url     string
		ok      bool
	}{
		{nil, good, true},
		{[]string{}, good, false},
		{[]string{"*"}, good, true},
		{[]string{"*"}, "https://evil.example/", false},
		{[]string{"evil.example"}, "https://evil.example/", false},
		{[]string{"API.example.com."}, good, true},
		{[]string{"other.example.com"}, good, false},
		{[]string{"*.example.com"}, good, true},
		{[]string{"*.example.com"}, "https://a.cdn.example.com/", true},
		{[]string{"*.api.example.com"}, good, false},
		{[]string{"*.com"}, good, true},
		{[]string{"pi.example.com"}, good, false},
		{[]string{"*pi.example.com"}, good, false},
		{[]string{"*."}, good, false},
		{[]string{""}, good, false},
		{[]string{"*.*"}, good, false},
		{[]string{"bücher.example"}, "https://xn--bcher-kva.example/", true},
		{[]string{"192.0.2.7"}, "https://192.0.2.7:5432/", true},
		{[]string{"*.0.2.7"}, "https://192.0.2.7:5432/", false},
		{[]string{"::ffff:192.0.2.7"}, "https://192.0.2.7:5432/", true},
		{[]string{"2001:db8:0::7"}, "https://[2001:db8::7]/", true},
	} {
		w := &noWay{}
		d, _ := serve(t, w.config())
		who := tool.Caller{Team: "pair", Agent: "writer", Domains: c.domains}
		_, reason := d.Call(t.Context(), who, "net_http_get", object(t, map[string]any{"url": c.url}))
		if dialled := len(w.to) == 1; dialled != c.ok {
			t.Errorf("%v for %s: %v", c.domains, c.url, reason)
		}
	}
}

func FuzzHeaders(f *testing.F) {
	f.Add([]byte(`{"Host":"x"}`))
	f.Add([]byte(`{"x":"a\r\nb","X":"c"}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		h, faults := net.ParseHeader(raw)
		if len(faults) > 0 {
			return
		}
		for name, values := range h {
			for _, bad := range []string{"Host", "Connection", "Transfer-Encoding", "Content-Length", "Te", "Upgrade"} {
				if strings.EqualFold(name, bad) {
					t.Fatalf("%q passed", name)
				}
			}
			if strings.ContainsAny(name+strings.Join(values, ""), "\r\n\x00") || len(values) != 1 {
				t.Fatalf("%q: %q passed", name, values)
			}
		}
	})
}
