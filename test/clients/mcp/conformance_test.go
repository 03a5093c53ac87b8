// Package mcp_test has other people's MCP clients and suites speak to a real
// gateway.
package mcp_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/gateway"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
	"bulkhead/internal/tooltoken"
)

const token = "the token of the runtime, long enough"

// scenarios are those of the suite for the features that a gateway offers:
// tools. The others want logging, prompts, resources, sampling and elicitation,
// or tools that exist in the suite's own server only.
var scenarios = []string{"server-initialize", "ping", "tools-list", "server-sse-multiple-streams", "dns-rebinding-protection"}

// TestThePublicConformanceSuite runs github.com/modelcontextprotocol/conformance
// against a gateway.
func TestThePublicConformanceSuite(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to connect under the runtime's id")
	}
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("needs npm: apt-get install npm")
	}
	node, suite := install(t)
	url := serve(t)
	for _, s := range scenarios {
		t.Run(s, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, node, suite, "server", "--url", url, "--scenario", s) // #nosec G204 -- installed above
			cmd.Dir = t.TempDir()
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// install gives the suite, as its lock file says, and the node that it needs.
func install(t *testing.T) (node, suite string) {
	t.Helper()
	dir := t.TempDir()
	for _, f := range []string{"package.json", "package-lock.json"} {
		data, err := os.ReadFile(filepath.Join("testdata", f))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, f), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "ci", "--no-audit", "--no-fund")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	nodes, err := filepath.Glob(filepath.Join(dir, "node_modules/node*/bin/node"))
	if err != nil || len(nodes) == 0 {
		t.Fatalf("the package node brought no node: %v", err)
	}
	return nodes[0], filepath.Join(dir, "node_modules/@modelcontextprotocol/conformance/dist/index.js")
}

// serve serves a gateway, and before it a port that shows the token: the suite
// knows none.
func serve(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mcp") //nolint:usetesting // others get in, and the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "gateway.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{dir, socket} {
		if err := os.Chmod(p, 0o777); err != nil { // #nosec G302 -- the runtime's id connects
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- gateway.Serve(ctx, ln, gateway.Config{
			Team: "t", Agent: "a", Token: token, DialerSocket: filepath.Join(dir, "none"), Data: dir, Tools: &team.Tools{RatePerMinute: 10_000},
		}, io.Discard)
	}()
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	front := &http.Server{ReadHeaderTimeout: time.Minute, Handler: &httputil.ReverseProxy{
		FlushInterval: -1,
		Transport:     &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return asRuntime(socket) }},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "gateway"
			r.Out.Header.Set("Authorization", "Bearer "+tooltoken.Of(token))
		},
	}}
	go func() { _ = front.Serve(port) }()
	t.Cleanup(func() {
		_ = front.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "http://" + strings.Replace(port.Addr().String(), "127.0.0.1", "localhost", 1) + "/mcp"
}

// asRuntime dials in a thread with the runtime's effective id, which is what the
// kernel tells of a peer.
func asRuntime(path string) (c net.Conn, err error) {
	var work sync.WaitGroup
	work.Go(func() {
		runtime.LockOSThread() // and never unlocked: the thread ends here
		if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), layout.RuntimeID, ^uintptr(0)); errno != 0 {
			err = errno
			return
		}
		c, err = net.Dial("unix", path)
	})
	work.Wait()
	return c, err
}
