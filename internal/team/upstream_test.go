package team

import (
	"strings"
	"testing"
)

func upstreamManifest(url string) []byte {
	return []byte("apiVersion: bulkhead/v1\nteam: pair\nupstreamProxy: {url: '" + url + "'}\nagents:\n  writer: {image: base, mode: session}\n")
}

func TestOnlyAPlainProxyWithAPortIsTaken(t *testing.T) {
	for url, want := range map[string]string{
		"http://proxy.corp.example:3128":  "proxy.corp.example:3128",
		"http://PROXY.corp.example:8080/": "proxy.corp.example:8080",
		"http://10.1.2.3:3128":            "10.1.2.3:3128",
		"http://127.0.0.1:3128":           "127.0.0.1:3128",
		"http://[2001:db8::1]:3128":       "[2001:db8::1]:3128",
		"https://proxy.corp.example:3128": "",
		"socks5://proxy.corp.example:1":   "",
		"http://proxy.corp.example":       "",
		"http://proxy.corp.example:0":     "",
		"http://proxy.corp.example:53":    "",
		"http://proxy.corp.example:1/x":   "",
		"http://proxy.corp.example:1?x":   "",
		"http://proxy.corp.example:1#x":   "",
		"http://localhost:3128":           "",
		"http://127.1:3128":               "",
		"http://0.0.0.0:3128":             "",
		"http://[fe80::1%25eth0]:3128":    "",
		"http://:3128":                    "",
		"proxy.corp.example:3128":         "",
		"":                                "",
	} {
		m, err := Parse("bulkhead.yaml", upstreamManifest(url))
		switch {
		case err != nil && want != "":
			t.Errorf("%s: %v", url, err)
		case err == nil && m.Agents[0].Upstream.Target() != want:
			t.Errorf("%s: %s, want %q", url, m.Agents[0].Upstream.Target(), want)
		}
	}
}

func TestAPasswordInTheURLIsRefusedAndNotShown(t *testing.T) {
	_, err := Parse("bulkhead.yaml", upstreamManifest("http://jo:hunter2@proxy.corp.example:3128"))
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Fatal(err)
	}
}

func TestExceptionsCoverNamesAndWhatLiesBelowASuffix(t *testing.T) {
	u := &Upstream{Except: []string{"git.corp.example", "*.lab.example"}}
	for name, want := range map[string]bool{
		"git.corp.example": true, "a.lab.example": true, "b.a.lab.example": true,
		"corp.example": false, "x.git.corp.example": false, "lab.example": false, "xlab.example": false,
	} {
		if u.Excepts(name) != want {
			t.Errorf("%s: %t", name, !want)
		}
	}
}

func TestTheTeamsNetworkIsPartOfEachAgentsDigestAndPlan(t *testing.T) {
	parse := func(top string) *Manifest {
		m, err := Parse("bulkhead.yaml", []byte("apiVersion: bulkhead/v1\nteam: pair\n"+top+"agents:\n  writer: {image: base, mode: session}\n"))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	plain := parse("")
	seen := map[string]string{plain.Agents[0].Digest(): "plain"}
	for top, why := range map[string]string{
		"upstreamProxy: {url: 'http://p.example:1'}\n":                                 "upstreamProxy: (none) -> http://p.example:1",
		"upstreamProxy: {url: 'http://p.example:1', credentialsFile: /etc/cred}\n":     "upstreamProxy: (none) -> http://p.example:1, credentials /etc/cred",
		"upstreamProxy: {url: 'http://p.example:1', except: [a.example, b.example]}\n": "upstreamProxy: (none) -> http://p.example:1, except a.example b.example",
		"caFiles: [/etc/ca.pem]\n":                                                     "caFiles: + /etc/ca.pem",
	} {
		m := parse(top)
		if other, dup := seen[m.Agents[0].Digest()]; dup {
			t.Errorf("%q has the digest of %q", top, other)
		}
		seen[m.Agents[0].Digest()] = top
		if c := Diff(plain, m)[0]; c.Action != "restart" || strings.Join(c.Why, "; ") != why {
			t.Errorf("%q: %s %q", top, c.Action, c.Why)
		}
	}
	// Where it stands in the file restarts nobody.
	a, b := parse("caFiles: [/etc/ca.pem]\n"), parse("\n\ncaFiles: [/etc/ca.pem]\n")
	if a.Agents[0].Digest() != b.Agents[0].Digest() {
		t.Error("a comment above caFiles would restart the agent")
	}
}
