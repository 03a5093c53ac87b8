// Package agents drives real agents (Claude Code, Codex, OpenClaw, pi) behind
// the walls, against a model server whose answers are scripted. The agents, the
// images, the examples and the programs are those that users get; only the
// model is not.
package agents

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/podman"
	"bulkhead/internal/image"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

const modelAddress = "127.0.0.1:18080" // what the examples list as host:18080

// top is the module's folder.
func top(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// prepare builds the programs and fetches the images, on the machine: a
// throwaway host reaches no registry. What was fetched is kept beside the
// module, by the recipe's digest, so that only the first run takes minutes.
func prepare(t *testing.T, images ...string) (bin string, host throwaway.Option) {
	t.Helper()
	bin = stage.Build(t)
	cache, err := image.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	if throwaway.Inside() {
		return bin, nil
	}
	run(t, "go", "build", "-trimpath", "-o", bin+"/", "./test/clients/scripted-model")
	for _, name := range images {
		run(t, filepath.Join(bin, "bulkhead"), "image", "build", "--fetch-only", "images/"+name+"/image.yaml")
	}
	return bin, throwaway.Bind(cache)
}

// importImages puts images into the host's store.
func importImages(t *testing.T, bin string, images ...string) {
	t.Helper()
	for _, name := range images {
		run(t, filepath.Join(bin, "bulkhead"), "image", "build", "images/"+name+"/image.yaml")
	}
}

func needEngine(t *testing.T, kind engine.Kind) {
	t.Helper()
	if kind != engine.Podman {
		return
	}
	if err := podman.Installed(""); err != nil {
		t.Skipf("needs rootless Podman: apt-get install podman crun runc: %v", err)
	}
}

func run(t *testing.T, argv ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Dir = top(t)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", argv, err, out)
	}
}

// example copies an example to a folder of its own, with every agent on the
// engine.
func example(t *testing.T, bin, name string, kind engine.Kind) stage.CLI {
	t.Helper()
	dir := filepath.Join("/srv", string(kind), name)
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(top(t), "examples", name))); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "bulkhead.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.ReplaceAll(string(text), "    image:", "    engine: "+string(kind)+"\n    image:")
	if changed == string(text) {
		t.Fatalf("%s lists no image", file)
	}
	if err := os.WriteFile(file, []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
	return stage.CLI{Bin: bin, Dir: dir}
}

// request is a line of the model server's log.
type request struct {
	Time                    time.Time
	Path, Agent, Tool, Text string
	Messages                int
}

// serveModel runs the model server until the test ends; log gives what it was
// asked since the last call of log.
func serveModel(t *testing.T, bin string) (log func() []request) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "model.jsonl")
	var said bytes.Buffer
	cmd := exec.Command(filepath.Join(bin, "scripted-model"), "-listen", modelAddress, "-log", file) // not t.Context: it ends before Cleanup
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the model server: %v\n%s", err, &said)
		}
	})
	stage.Until(t, "the model server listens", func() bool {
		c, err := net.DialTimeout("tcp", modelAddress, time.Second)
		if err != nil {
			return false
		}
		_ = c.Close()
		return true
	})
	seen := 0
	return func() (out []request) {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for n := 0; lines.Scan(); n++ {
			var r request
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				t.Fatalf("%v: %s", err, lines.Text())
			}
			if n >= seen {
				out = append(out, r)
			}
		}
		seen += len(out)
		return out
	}
}

// execIn runs a command inside an agent, which may take minutes on a busy machine.
func execIn(t *testing.T, c stage.CLI, agent string, argv ...string) string {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), filepath.Join(c.Bin, "bulkhead"), append([]string{"exec", agent, "-t=false", "--"}, argv...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.Dir, &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if err != nil {
		t.Errorf("%v in %s: %v", argv, agent, err)
	}
	return out.String()
}

// refused are the destinations that an agent was refused, as denials shows them.
func refused(t *testing.T, c stage.CLI, agent string) []string {
	t.Helper()
	var r wire.DenialsResult
	out := c.Run(t, "denials", agent, "--json")
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var targets []string
	for _, a := range r.Agents {
		for _, d := range a.Denials {
			targets = append(targets, d.Target)
		}
	}
	return targets
}
