package preset

import (
	"context"
	"errors"
	"strings"
	"testing"

	"bulkhead/internal/team"
)

func answering(by map[string]string) Run {
	return func(_ context.Context, argv ...string) (string, error) {
		text, ok := by[strings.Join(argv, " ")]
		if !ok {
			return "", errors.New(argv[0] + " is not on this host")
		}
		return text, nil
	}
}

const askNPM, askPip, askGo, askApt = "npm config list --json", "python3 -m pip config list", "go env GOPROXY GOSUMDB", "apt-get indextargets --format $(REPO_URI)"

func TestPresetsStandForWhatTheirClientsSay(t *testing.T) {
	for _, c := range []struct {
		name, preset, ask, said, want string
	}{
		{"npm's default", "npm", askNPM, `{"registry":"https://registry.example/","omit":[]}`, "registry.example:443"},
		{"npm with a company's scope", "npm", askNPM, `{"registry":"http://npm.corp.example:4873/x/","@corp:registry":"https://Art.corp.example/npm/"}`, "art.corp.example:443 npm.corp.example:4873"},
		{"npm with nonsense", "npm", askNPM, `no json`, "error"},
		{"npm with a host that is none", "npm", askNPM, `{"registry":"https://*.example/"}`, "error"},
		{"npm with a loopback mirror", "npm", askNPM, `{"registry":"http://127.0.0.1:4873/"}`, "error"},
		{"npm without a host", "npm", askNPM, `{"registry":"file:///srv/npm"}`, "error"},
		{"pip with a mirror", "pypi", askPip, "global.index-url='https://user:secret@pypi.corp.example/simple'\nglobal.cert='/x'\n:env:.extra-index-url='https://a.example/s https://b.example:8443/s'\n", "a.example:443 b.example:8443 pypi.corp.example:443"},
		{"go with a company's proxy", "go", askGo, "https://goproxy.corp.example|https://proxy.example,direct\noff\n", "goproxy.corp.example:443 proxy.example:443"},
		{"go with a checksum database", "go", askGo, "https://proxy.example,direct\nsum.example+033de0ae+Ac4zctda0e5eza+HJyk https://sums.corp.example/x\n", "proxy.example:443 sum.example:443 sums.corp.example:443"},
		{"go without a proxy", "go", askGo, "direct\noff\n", "error"},
		{"apt", "debian", askApt, "http://deb.example/debian/\nhttp://deb.example/debian/\nhttps://sec.example/\nmirror+http://list.example/m\ncdrom://x/\nfile:/srv/apt\n", "deb.example:80 list.example:80 sec.example:443"},
		{"a client that is not there", "npm", "other", "", "error"},
		{"a preset that is not known", "cargo", "", "", "error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Expand(t.Context(), []string{c.preset}, answering(map[string]string{c.ask: c.said}))
			text := strings.Join(got[c.preset], " ")
			if err != nil {
				text = "error"
				if !strings.Contains(err.Error(), "preset "+c.preset) {
					t.Errorf("the error does not name the preset: %v", err)
				}
			}
			if text != c.want {
				t.Errorf("%q, want %q (%v)", text, c.want, err)
			}
		})
	}
	got, err := Expand(t.Context(), []string{"pypi"}, answering(map[string]string{askPip: "global.cert='/x'\n", "python3 -c " + pipDefault: "https://pypi.example/simple https://files.example\n"}))
	if err != nil || strings.Join(got["pypi"], " ") != "files.example:443 pypi.example:443" {
		t.Errorf("pip's default: %v, %v", got, err)
	}
	if got, err := Expand(t.Context(), []string{"github"}, answering(nil)); err != nil || len(got["github"]) == 0 {
		t.Errorf("github: %v, %v", got, err)
	}
	for _, p := range team.Presets() {
		if _, err := Expand(t.Context(), []string{p}, answering(nil)); p != "github" && err == nil {
			t.Errorf("%s needs no client", p)
		}
	}
}

func FuzzTargets(f *testing.F) {
	f.Add("https://registry.example/")
	f.Add("http://[::1]:80/")
	f.Add("mirror+http://x")
	f.Fuzz(func(t *testing.T, s string) {
		list, err := targets([]string{s})
		if err != nil {
			return
		}
		for _, one := range list {
			if d, err := team.ParseDestination(one); err != nil || d.Wild() || d.Target() != one {
				t.Errorf("%q became %q", s, one)
			}
		}
	})
}
