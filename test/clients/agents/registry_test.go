package agents

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/engine"
	"bulkhead/internal/image"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// builder is an agent whose one way out is what the preset npm stands for.
const builder = `apiVersion: bulkhead/v1
team: builds
agents:
  builder:
    role: "Builds a package with native code."
    image: toolchain
    engine: %s
    mode: session
    workspace: ./native
    env: {NPM_CONFIG_REGISTRY: "http://registry.example:4873/"}
    egress: [npm]
    hosts: {registry.example: 203.0.113.10}
    limits: {memory: 1Gi, cpu: 2, pids: 256}
`

// tarball is a package of the registry, as npm pack names its file.
type tarball struct{ Name, Version, File string }

// locked fetches the packages of a lock file from the registry that this
// machine is configured with, as their publishers uploaded them. Inside, npm
// ci compares them with the lock's digests.
func locked(t *testing.T, lock, dir string) (out []tarball) {
	t.Helper()
	text, err := os.ReadFile(lock)
	if err != nil {
		t.Fatal(err)
	}
	var l struct {
		Packages map[string]struct{ Version string }
	}
	if err := json.Unmarshal(text, &l); err != nil {
		t.Fatal(err)
	}
	for at, p := range l.Packages {
		name := strings.TrimPrefix(at, "node_modules/")
		if at == "" {
			continue
		}
		b := tarball{name, p.Version, filepath.Join(dir, fmt.Sprintf("%s-%s.tgz", name, p.Version))}
		if _, err := os.Stat(b.File); err != nil {
			part := t.TempDir()
			cmd := exec.CommandContext(t.Context(), "npm", "pack", name+"@"+p.Version, "--pack-destination", part)
			if said, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("npm pack %s: %v\n%s", name, err, said)
			}
			data, err := os.ReadFile(filepath.Join(part, filepath.Base(b.File)))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(b.File+".part", data, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(b.File+".part", b.File); err != nil {
				t.Fatal(err)
			}
		}
		out = append(out, b)
	}
	return out
}

// serveRegistry answers npm as a registry does, at address, with the tarballs.
// It gives the paths that were asked for.
func serveRegistry(t *testing.T, address string, tarballs []tarball) (asked func() []string) {
	t.Helper()
	mu, paths := sync.Mutex{}, []string{} // mu guards paths
	mux := http.NewServeMux()
	for _, b := range tarballs {
		mux.HandleFunc("GET /"+b.Name, func(w http.ResponseWriter, r *http.Request) {
			dist := map[string]any{"tarball": "http://" + r.Host + "/-/" + filepath.Base(b.File)}
			_ = json.NewEncoder(w).Encode(map[string]any{
				"name": b.Name, "dist-tags": map[string]any{"latest": b.Version},
				"versions": map[string]any{b.Version: map[string]any{"name": b.Name, "version": b.Version, "dist": dist}},
			})
		})
		file := func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, b.File) }
		mux.HandleFunc("GET /-/"+filepath.Base(b.File), file)
		mux.HandleFunc("GET /"+b.Name+"/-/"+filepath.Base(b.File), file)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		paths = append(paths, r.URL.Path)
		mu.Unlock()
		mux.ServeHTTP(w, r)
	})}
	done := make(chan struct{})
	go func() { _ = s.Serve(l); close(done) }() // ends by Close below
	t.Cleanup(func() { _ = s.Close(); <-done })
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return paths
	}
}

func TestAnAgentInstallsAndCompilesThroughAPreset(t *testing.T) {
	bin, option := prepare(t, "toolchain")
	images, err := image.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	tarballs := locked(t, "testdata/native/package-lock.json", filepath.Join(filepath.Dir(images), "registry"))
	throwaway.Run(t, func(t *testing.T, h *throwaway.Host) {
		importImages(t, bin, "toolchain")
		// The host's own npm says where the preset leads, as in a company with a mirror.
		t.Setenv("npm_config_registry", "http://registry.example:4873/")
		paths := serveRegistry(t, h.Listed.String()+":4873", tarballs)
		for _, kind := range []engine.Kind{engine.Cell, engine.Podman} {
			t.Run(string(kind), func(t *testing.T) {
				needEngine(t, kind)
				c := stage.CLI{Bin: bin, Dir: filepath.Join("/srv", string(kind))}
				if err := os.CopyFS(filepath.Join(c.Dir, "native"), os.DirFS("testdata/native")); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(c.Dir, "bulkhead.yaml"), fmt.Appendf(nil, builder, kind), 0o644); err != nil {
					t.Fatal(err)
				}
				before := len(paths())
				c.Run(t, "up")
				defer c.Run(t, "down", "--purge")
				out := execIn(t, c, "builder", "sh", "/workspace/build.sh")
				if !strings.Contains(out, "compiled code says: bulkhead") {
					t.Errorf("%s", out)
				}
				if n := len(paths()) - before; n < len(tarballs) {
					t.Errorf("the registry was asked %d times", n)
				}
				if targets := refused(t, c, "builder"); len(targets) != 0 {
					t.Errorf("refused on the way: %v", targets)
				}
				// The preset is one host, not the way out of the walls.
				if r := c.Try(t, "exec", "builder", "-t=false", "--", "curl", "-fsS", "--max-time", "5", "http://203.0.113.11:4873/"); r.Exit == 0 {
					t.Errorf("something unlisted answered: %s", r)
				}
			})
		}
	}, option)
}
