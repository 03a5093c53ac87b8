package doctor

import (
	"context"
	"strings"
	"testing"
	"testing/fstest"

	"bulkhead/internal/layout"
)

func TestTheWayOutIsThatOfTheManifestsInForce(t *testing.T) {
	const agents = "agents:\n  writer: {image: base, mode: session}\n"
	const manifest = "var/lib/bulkhead/teams/pair/bulkhead.yaml"
	straight := "apiVersion: bulkhead/v1\nteam: pair\n" + agents
	behind := "apiVersion: bulkhead/v1\nteam: pair\nupstreamProxy: {url: 'http://10.1.2.3:3128'}\n" + agents
	for name, c := range map[string]struct {
		files map[string]string
		state State
		found string
	}{
		"nothing":                         {nil, OK, "straight"},
		"a team":                          {map[string]string{manifest: straight}, OK, "straight"},
		"a team behind a proxy":           {map[string]string{manifest: behind}, OK, "team pair through http://10.1.2.3:3128"},
		"a host behind one, without team": {map[string]string{"etc/environment": "https_proxy=http://p:1\n"}, OK, "upstreamProxy"},
		"a host behind one, a team not":   {map[string]string{"etc/environment": "export HTTPS_PROXY=\"http://p:1\"\n", manifest: straight}, Weak, "no team does"},
		"a proxy that is set to nothing":  {map[string]string{"etc/environment": "https_proxy=\nPATH=/bin\n", manifest: straight}, OK, "straight"},
	} {
		files := fstest.MapFS{}
		for f, text := range c.files {
			files[f] = &fstest.MapFile{Data: []byte(text)}
		}
		a := wayOut(context.Background(), Host{Files: files, Layout: layout.Default()})
		if a.State != c.state || !strings.Contains(a.Found, c.found) {
			t.Errorf("%s: %+v", name, a)
		}
	}
}
