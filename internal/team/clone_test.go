package team

import (
	"strings"
	"testing"
)

func TestAWorkspaceMayBeARepository(t *testing.T) {
	for in, want := range map[string][2]string{
		"https://git.example.com/x/y.git":                   {"https://git.example.com/x/y.git", ""},
		"https://git.example.com:8443/y#v1.2+b/c_d":         {"https://git.example.com:8443/y", "v1.2+b/c_d"},
		"https://[2001:db8::1]/a.git#main":                  {"https://[2001:db8::1]/a.git", "main"},
		"https://git.example.com/" + strings.Repeat("a", 9): {"https://git.example.com/aaaaaaaaa", ""},
	} {
		m, err := Parse("bulkhead.yaml", []byte("apiVersion: bulkhead/v1\nteam: a\nagents:\n  x: {rootfs: /srv, mode: session, workspace: '"+in+"'}\n"))
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if url, ref, ok := m.Agents[0].Clone(); !ok || url != want[0] || ref != want[1] {
			t.Errorf("%s: %q %q %v", in, url, ref, ok)
		}
	}
	if _, _, ok := (&Agent{Workspace: "/srv/x"}).Clone(); ok {
		t.Error("a folder is a repository")
	}
}

// Whatever is taken begins with https and holds nothing that git or a shell reads
// as something else.
func FuzzClone(f *testing.F) {
	for _, s := range []string{"https://a/b", "https://a/b#c", "ext::sh://x", "https://a/-u#--x", "https://a\n/b", "https://a/b#c#d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if badClone(s) != "" {
			return
		}
		url, ref, ok := (&Agent{Workspace: s}).Clone()
		if !ok || !strings.HasPrefix(strings.ToLower(url), "https://") || strings.ContainsAny(s, " \t\r\n\"'`\\$;|<>") || strings.HasPrefix(ref, "-") || strings.Contains(ref, "..") || strings.Contains(ref, "#") {
			t.Errorf("%q is taken: %q %q", s, url, ref)
		}
	})
}
