package toolcmd

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"bulkhead/internal/gateway"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
	"bulkhead/internal/tooltoken"
	"bulkhead/internal/wire"
)

const asShim = "BULKHEAD_TEST_SHIM"

// TestMain lets the test program be the shim.
func TestMain(m *testing.M) {
	switch os.Getenv(asShim) {
	case "tool":
		os.Exit(Main(os.Args[1:]))
	case "mcp":
		os.Exit(MCP())
	}
	os.Exit(m.Run())
}

const token = "the token of the runtime, long enough"

// start serves a real gateway, and gives what makes commands of its runtime.
func start(t *testing.T) func(verb string, args ...string) *exec.Cmd {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to run under the runtime's id")
	}
	dir, err := os.MkdirTemp("/tmp", "toolcmd") //nolint:usetesting // others get in, and the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket, file, exe := filepath.Join(dir, "gateway.sock"), filepath.Join(dir, "token"), filepath.Join(dir, "shim")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	for path, data := range map[string][]byte{file: []byte(tooltoken.Of(token) + "\n"), exe: self} {
		if err := os.WriteFile(path, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{dir, socket} {
		if err := os.Chmod(p, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- gateway.Serve(ctx, ln, gateway.Config{
			Team: "t", Agent: "a", Token: token, DialerSocket: filepath.Join(dir, "none"), Data: dir, Tools: &team.Tools{Allow: []string{"mem"}},
		}, io.Discard)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return func(verb string, args ...string) *exec.Cmd {
		c := exec.CommandContext(t.Context(), exe, args...) // #nosec G204 -- this very program
		c.Env = []string{asShim + "=" + verb, wire.EnvGatewaySocket + "=" + socket, wire.EnvTokenFile + "=" + file}
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: layout.RuntimeID, Gid: layout.RuntimeID}}
		return c
	}
}

func TestToolsAreCalledFromTheRuntime(t *testing.T) {
	shim := start(t)
	for _, c := range []struct {
		args  []string
		stdin string
		code  int
		says  string
	}{
		{[]string{"call", "mem_set", `{"key":"a","value":{"n":1}}`}, "", 0, `{"key":"a"}`},
		{[]string{"call", "mem_set", "-"}, `{"key":"b","value":2}`, 0, `{"key":"b"}`},
		{[]string{"call", "agentos.mem_get", `{"key":"a"}`}, "", 0, `{"key":"a","value":{"n":1}}`},
		{[]string{"call", "mem_list"}, "", 0, `"keys":["a","b"]`},
		{[]string{"list"}, "", 0, `"name":"mem_recall"`},
		{[]string{"call", "mem_get", `{"kee":1}`}, "", wire.ExitBadInput, "kee: there is no such field"},
		{[]string{"call", "mem_get", `{`}, "", wire.ExitBadInput, "not JSON"},
		{[]string{"call", "fs_read", `{}`}, "", wire.ExitRefused, "agents.a.tools.allow"},
		{[]string{"call", "../../v1/outbox", `{}`}, "", wire.ExitFailed, "no such tool"},
		{[]string{"shred"}, "", wire.ExitBadInput, "not a command"},
		{[]string{"--help"}, "", 0, "usage"},
	} {
		cmd := shim("tool", c.args...)
		cmd.Stdin = strings.NewReader(c.stdin)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		_ = cmd.Run() // the code says how it went
		if cmd.ProcessState.ExitCode() != c.code || !strings.Contains(out.String(), c.says) {
			t.Errorf("%v: exit %d: %s", c.args, cmd.ProcessState.ExitCode(), out.String())
		}
	}
}

func TestAnMCPClientStartsTheShimAsItsServer(t *testing.T) {
	shim := start(t)
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	s, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: shim("mcp")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.ListTools(t.Context(), nil)
	if err != nil || len(list.Tools) != 10 {
		t.Fatalf("%v, %v", list, err)
	}
	out, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "mem_incr", Arguments: map[string]any{"key": "n", "by": 7}})
	if err != nil || out.IsError || out.Content[0].(*mcp.TextContent).Text != `{"key":"n","value":7}` {
		t.Errorf("%+v, %v", out, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestWhatTheGatewaySaysBeforeItUpgrades(t *testing.T) {
	for answer, ok := range map[string]bool{
		"HTTP/1.1 101 Switching Protocols\r\nUpgrade: mcp-stdio\r\n\r\nearly": true,
		"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n":              false,
		"nonsense":                            false,
		"HTTP/1.1 101 x\r\nno header\r\n\r\n": false,
		"HTTP/1.1 101 x\r\n" + strings.Repeat("A: b\r\n", 20_000): false,
	} {
		a, b := net.Pipe()
		go func() {
			lines := bufio.NewScanner(b)
			for lines.Scan() && lines.Text() != "" {
				continue
			}
			_, _ = io.WriteString(b, answer)
			_ = b.Close()
		}()
		r, err := upgrade(a, "token")
		if (err == nil) != ok {
			t.Errorf("%.40q: %v", answer, err)
		}
		if ok {
			if rest, _ := io.ReadAll(r); string(rest) != "early" {
				t.Errorf("%q came after it", rest)
			}
		}
		_ = a.Close()
	}
	if _, err := upgrade(nil, "a\r\nb"); err == nil {
		t.Error("a token with a line's end was sent")
	}
}
