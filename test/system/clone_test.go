package system

import (
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
)

// A repository with what must arrive, and with what must not work.
const makeRepository = `
export GIT_CONFIG_GLOBAL=/dev/null HOME=/srv
mkdir -p /srv/git && cd /srv/git && git init -q -b main work && cd work
git config user.name a; git config user.email a@example.com
echo one > file; printf '#!/bin/sh\necho ran\n' > tool; chmod 755 tool; ln -s file link; ln -s /etc/shadow out
printf '* filter=evil\n' > .gitattributes
git add -A; git commit -qm first; git tag v1; echo two > file; git commit -qam second
cd .. && git clone -q --bare work repo.git && rm -rf work
git init -q -b main big && cd big && git config user.name a && git config user.email a@example.com
head -c 40M /dev/zero > zeros; git add -A; git commit -qm big; cd .. && git clone -q --bare big big.git && rm -rf big
mkdir -p repo.git/hooks; printf '#!/bin/sh\ntouch /srv/hooked\n' > repo.git/hooks/post-checkout; chmod 755 repo.git/hooks/post-checkout
`

func TestAWorkspaceBeginsWithAClone(t *testing.T) {
	eachEngine(t, func(t *testing.T, _ engine.Kind, c stage.CLI) {
		stage.Sh(t, "echo 203.0.113.10 git.example >> /etc/hosts"+makeRepository)
		backend := strings.TrimSpace(stage.Sh(t, "git --exec-path")) + "/git-http-backend"
		mux := http.NewServeMux()
		mux.HandleFunc("/evil.git/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, "\x1b[2Japprove this\n")
		})
		mux.Handle("/", &cgi.Handler{Path: backend, Env: []string{"GIT_PROJECT_ROOT=/srv/git", "GIT_HTTP_EXPORT_ALL=1"}})
		authorities, _ := authority(t, "Somebody", "git.example", "203.0.113.10:8443", mux)
		ca := "/srv/ca.pem"
		if err := os.WriteFile(ca, authorities, 0o644); err != nil {
			t.Fatal(err)
		}
		at := func(url string) string {
			return strings.Replace(pair, "    role: writes\n", "    role: writes\n    workspace: "+url+"\n", 1)
		}
		before := stage.Picture(t)
		write(t, c.Dir, at("https://git.example:8443/repo.git#v1"))
		t.Run("a certificate that nobody vouches for is refused, and nothing is made", func(t *testing.T) {
			r := c.Try(t, "up")
			if r.Exit != wire.ExitFailed || !strings.Contains(r.Stderr, "agents.writer.workspace") || !strings.Contains(r.Stderr, "certificate") {
				t.Errorf("%s", r)
			}
			c.Run(t, "down")
			stage.Leaves(t, before)
		})
		t.Setenv("SSL_CERT_FILE", ca)
		t.Run("what there is not is refused", func(t *testing.T) {
			for url, want := range map[string]string{
				"https://git.example:8443/repo.git#nothing": "nothing", "https://git.example:8443/other.git": "not found", "https://git.example:8444/repo.git": "git.example",
				"https://git.example:8443/big.git": "larger than the agent's disk", "https://git.example:8443/evil.git": "approve this",
			} {
				write(t, c.Dir, strings.Replace(at(url), "    workspace:", "    limits: {disk: 16Mi, inodes: 512}\n    workspace:", 1))
				if r := c.Try(t, "up"); r.Exit != wire.ExitFailed || !strings.Contains(r.Stderr, want) || strings.Contains(r.Stderr, "\x1b") {
					t.Errorf("%s: %s", url, r)
				}
			}
			c.Run(t, "down")
		})
		write(t, c.Dir, at("https://git.example:8443/repo.git#v1"))
		if out := c.Run(t, "plan"); !strings.Contains(out, "clone https://git.example:8443/repo.git#v1") {
			t.Error(out)
		}
		r := c.Try(t, "up")
		if r.Exit != 0 || !strings.Contains(r.Stderr, "can reach [git.example:8443], and nothing else") {
			t.Fatalf("%s", r)
		}
		got := c.Run(t, "exec", "writer", "--", "sh", "-c", "cd /workspace; cat file; ./tool; readlink link; readlink out; stat -c '%u %a %n' tool .git; cat .git/config | grep url; ls .git/hooks 2>/dev/null; echo changed > file")
		if want := "one\nran\nfile\n/etc/shadow\n1000 755 tool\n1000 755 .git\n\turl = https://git.example:8443/repo.git\n"; got != want {
			t.Errorf("inside:\n%s\nwant:\n%s", got, want)
		}
		if _, err := os.Lstat("/srv/hooked"); err == nil {
			t.Error("a hook of the repository ran")
		}
		if left, _ := filepath.Glob("/var/lib/bulkhead/clones*"); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
		t.Run("it is cloned once", func(t *testing.T) {
			write(t, c.Dir, at("https://git.example:8443/gone.git"))
			c.Run(t, "up")
			c.Run(t, "down")
			c.Run(t, "up")
			if got := c.Run(t, "exec", "writer", "--", "cat", "/workspace/file"); got != "changed\n" {
				t.Errorf("the workspace now says %q", got)
			}
		})
		t.Run("one that is gone is cloned again", func(t *testing.T) {
			write(t, c.Dir, at("https://git.example:8443/repo.git"))
			c.Run(t, "stop", "writer")
			stage.Sh(t, "rm -r $(find /var/lib/bulkhead/teams -path '*/writer/*' -name workspace -type d)")
			if r := c.Try(t, "up"); r.Exit == 0 || !strings.Contains(r.Stderr, "up` clones it") {
				t.Errorf("%s", r)
			}
			c.Run(t, "up")
			if got := c.Run(t, "exec", "writer", "--", "cat", "/workspace/file"); got != "two\n" {
				t.Errorf("the workspace now says %q", got)
			}
		})
		c.Run(t, "down", "--purge")
		stage.Leaves(t, before)
	})
}
