// Package redis_test measures an agent's tools beside go-redis to a local Redis
// with appendfsync always. It is a module of its own, so that no program of
// Bulkhead comes near that client.
package redis_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"

	"bulkhead/internal/gateway"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
	"bulkhead/internal/tooltoken"
)

const (
	token  = "the token of the runtime, long enough"
	rounds = 1250 // of 4 calls of the gateway each
	gwEnv  = "BULKHEAD_BENCH_GATEWAY"
)

// TestMain lets the test program be the gateway, a process of its own.
func TestMain(m *testing.M) {
	if dir := os.Getenv(gwEnv); dir != "" {
		gateway.Tune(&gateway.Config{Tools: &team.Tools{}})
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "gateway.sock"), Net: "unix"})
		if err == nil {
			_ = os.Chmod(filepath.Join(dir, "gateway.sock"), 0o777)
			fmt.Println("ready")
			err = gateway.Serve(context.Background(), ln, gateway.Config{
				Team: "t", Agent: "a", Token: token, DialerSocket: "/none", Data: dir, Tools: &team.Tools{RatePerMinute: 100_000_000},
			}, io.Discard)
		}
		fmt.Fprintln(os.Stderr, err)
		return
	}
	os.Exit(m.Run())
}

type door struct{ tr *http.Transport }

func (d door) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("Authorization", "Bearer "+tooltoken.Of(token))
	return d.tr.RoundTrip(r)
}

func dial(socket string) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (c net.Conn, err error) {
		var work sync.WaitGroup
		work.Go(func() {
			runtime.LockOSThread()
			if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), layout.RuntimeID, ^uintptr(0)); errno != 0 {
				err = errno
				return
			}
			c, err = net.Dial("unix", socket)
		})
		work.Wait()
		return c, err
	}
}

// proc starts a program that ends with the test.
func proc(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

func waitFor(t *testing.T, path string) {
	t.Helper()
	for range 500 {
		if _, err := os.Stat(path); err == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("%s never came", path)
}

func p50(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

func smaps(t *testing.T, pid int, field string) (kib int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			_, _ = fmt.Sscan(rest, &kib)
		}
	}
	return kib
}

func TestToolsBesideRedis(t *testing.T) {
	if os.Getenv("BULKHEAD_BENCH") != "1" || os.Getuid() != 0 {
		t.Skip("numbers are taken by root with BULKHEAD_BENCH=1")
	}
	dir, err := os.MkdirTemp(os.Getenv("BULKHEAD_BENCH_DIR"), "bench")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	_ = os.Chmod(dir, 0o777)
	ctx := t.Context()
	gw := exec.CommandContext(ctx, os.Args[0])
	gw.Env = append(os.Environ(), gwEnv+"="+dir)
	proc(t, gw)
	rs := filepath.Join(dir, "redis.sock")
	proc(t, exec.CommandContext(ctx, "redis-server", "--port", "0", "--unixsocket", rs, "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir", dir))
	waitFor(t, rs)
	waitFor(t, filepath.Join(dir, "system.db-wal"))
	fresh, freshPrivate := smaps(t, gw.Process.Pid, "Pss"), smaps(t, gw.Process.Pid, "Private_Dirty")

	tr := &http.Transport{DialContext: dial(filepath.Join(dir, "gateway.sock")), MaxIdleConnsPerHost: 64}
	web := &http.Client{Transport: door{tr}}
	post := func(name, body string) {
		a, err := web.Post("http://localhost/v1/tools/"+name, "application/json", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.Copy(io.Discard, a.Body)
		_ = a.Body.Close()
		if a.StatusCode != 200 {
			t.Error(a.Status)
		}
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	session, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: "http://localhost/mcp", HTTPClient: web, DisableStandaloneSSE: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	call := func(name string, in any) {
		if out, err := session.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: in}); err != nil || out.IsError {
			t.Error(out, err)
		}
	}
	r := redis.NewClient(&redis.Options{Network: "unix", Addr: rs, PoolSize: 64})
	defer func() { _ = r.Close() }()
	value := strings.Repeat("x", 100)
	set, get := `{"key":"k","value":"`+value+`"}`, `{"key":"k"}`
	contenders := []struct {
		name string
		do   func()
	}{
		{"go-redis GET", func() { _, _ = r.Get(ctx, "k").Result() }},
		{"mem_get, REST", func() { post("mem_get", get) }},
		{"mem_get, MCP session", func() { call("mem_get", map[string]any{"key": "k"}) }},
		{"go-redis SET, appendfsync always", func() { r.Set(ctx, "k", value, 0) }},
		{"mem_set with its record, REST", func() { post("mem_set", set) }},
		{"mem_set with its record, MCP session", func() { call("mem_set", map[string]any{"key": "k", "value": value}) }},
	}
	times := make([][]time.Duration, len(contenders))
	for range rounds {
		for i, c := range contenders {
			at := time.Now()
			c.do()
			times[i] = append(times[i], time.Since(at))
		}
	}
	after, afterPrivate := smaps(t, gw.Process.Pid, "Pss"), smaps(t, gw.Process.Pid, "Private_Dirty")
	var out bytes.Buffer
	fmt.Fprintln(&out, "| one at a time, 100 bytes | p50 ms |\n|---|---|")
	for i, c := range contenders {
		fmt.Fprintf(&out, "| %s | %.3f |\n", c.name, float64(p50(times[i]).Microseconds())/1000)
	}
	fmt.Fprintln(&out, "\n| at once | 8 | 64 |\n|---|---|---|")
	for _, c := range contenders {
		fmt.Fprintf(&out, "| %s, calls/s |", c.name)
		for _, n := range []int{8, 64} {
			var wg sync.WaitGroup
			at := time.Now()
			for range n {
				wg.Go(func() {
					for range 4000 / n {
						c.do()
					}
				})
			}
			wg.Wait()
			fmt.Fprintf(&out, " %.0f |", float64(4000/n*n)/time.Since(at).Seconds())
		}
		fmt.Fprintln(&out)
	}
	fmt.Fprintf(&out, "\nA gateway with every group but proc: PSS %.1f MB fresh, %.1f of it private and dirty; after %d calls %.1f and %.1f.\n",
		float64(fresh)/1024, float64(freshPrivate)/1024, 4*rounds, float64(after)/1024, float64(afterPrivate)/1024)
	t.Log("\n" + out.String())
}
