// Package redis_test measures an agent's tools beside go-redis to a local Redis
// with appendfsync always, and what memory their gateway takes in a team of
// seven. It is a module of its own, so that no program of Bulkhead comes near
// that client.
package redis_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/redis/go-redis/v9"

	"bulkhead/internal/gateway"
	"bulkhead/internal/team"
)

const (
	token  = "the token of the runtime, long enough"
	rounds = 1250 // of 4 calls of the gateway each
	gwEnv  = "BULKHEAD_BENCH_GATEWAY"
	echEnv = "BULKHEAD_BENCH_ECHO"
)

// TestMain lets the test program be the gateway, a process of its own, or what
// gives back what it is sent.
func TestMain(m *testing.M) {
	var err error
	switch dir, at := os.Getenv(gwEnv), os.Getenv(echEnv); {
	case dir != "":
		err = serve(dir)
	case at != "":
		err = echo(at)
	default:
		os.Exit(m.Run())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func serve(dir string) error {
	gateway.Tune(&gateway.Config{Tools: &team.Tools{}})
	at := filepath.Join(dir, "gateway.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"})
	if err != nil {
		return err
	}
	if err := os.Chmod(at, 0o777); err != nil {
		return err
	}
	return gateway.Serve(context.Background(), ln, gateway.Config{
		Team: "t", Agent: "a", Token: token, DialerSocket: "/none", Data: dir, Tools: &team.Tools{RatePerMinute: 100_000_000},
	}, io.Discard)
}

func echo(at string) error {
	ln, err := net.Listen("unix", at)
	if err != nil {
		return err
	}
	c, err := ln.Accept()
	if err != nil {
		return err
	}
	for b := make([]byte, 4096); ; {
		n, err := c.Read(b)
		if err != nil {
			return err
		}
		if _, err := c.Write(b[:n]); err != nil {
			return err
		}
	}
}

// proc starts a program that ends with the test.
func proc(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

// self starts this program as something else.
func self(t *testing.T, env string) int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), env)
	return proc(t, cmd)
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

// cpu is the processor time of a process so far, which the kernel counts in
// hundredths of a second here.
func cpu(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var user, system int64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		t.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

// memory is a field of a process's smaps_rollup, in MB.
func memory(t *testing.T, pid int, fields ...string) (mb float64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		for _, f := range fields {
			if rest, ok := strings.CutPrefix(line, f+":"); ok {
				var kib float64
				_, _ = fmt.Sscan(rest, &kib)
				mb += kib / 1024
			}
		}
	}
	return mb
}

func dir(t *testing.T) string {
	t.Helper()
	if os.Getenv("BULKHEAD_BENCH") != "1" || os.Getuid() != 0 {
		t.Skip("numbers are taken by root: set BULKHEAD_BENCH=1")
	}
	dir, err := os.MkdirTemp(os.Getenv("BULKHEAD_BENCH_DIR"), "bench")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil { //nolint:gosec // the runtime's id goes through it
		t.Fatal(err)
	}
	return dir
}

// launch starts a gateway and waits until its tools are open.
func launch(t *testing.T, dir string) (pid int, socket string) {
	t.Helper()
	pid, socket = self(t, gwEnv+"="+dir), filepath.Join(dir, "gateway.sock")
	waitFor(t, socket)
	if err := connect(t, socket).rest("mem_get", []byte(`{"key":"k"}`)); err != nil {
		t.Fatal(err)
	}
	return pid, socket
}

func TestToolsBesideRedis(t *testing.T) {
	dir := dir(t)
	ctx := t.Context()
	gw, socket := launch(t, dir)
	rs, ech := filepath.Join(dir, "redis.sock"), filepath.Join(dir, "echo.sock")
	redisPid := proc(t, exec.CommandContext(ctx, "redis-server", "--port", "0", "--unixsocket", rs, "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir", dir))
	echoPid := self(t, echEnv+"="+ech)
	waitFor(t, rs)
	waitFor(t, ech)

	r := redis.NewClient(&redis.Options{Network: "unix", Addr: rs, PoolSize: 64})
	defer func() { _ = r.Close() }()
	bounce, err := (&net.Dialer{}).DialContext(ctx, "unix", ech)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = bounce.Close() }()
	value := strings.Repeat("x", 100)
	set, get := []byte(`{"key":"k","value":"`+value+`"}`), []byte(`{"key":"k"}`)
	back := bufio.NewReader(bounce)
	line := []byte(strings.Repeat("x", 300) + "\n")
	callers := make([]*caller, 64)
	for i := range callers {
		callers[i] = connect(t, socket)
		if i < 32 { // a gateway has 64 sessions at the most
			if err := callers[i].open(); err != nil {
				t.Fatal(err)
			}
		} else {
			callers[i].session = callers[i-32].session
			callers[i].id = 1 << 20
			if err := callers[i].mcp("mem_get", []byte(`{"key":"k"}`)); err != nil { // a connection that says nothing is closed soon
				t.Fatal(err)
			}
		}
	}
	contenders := []struct {
		name   string
		server int
		do     func(i int) error
	}{
		{"300 bytes there and back", echoPid, func(int) error {
			if _, err := bounce.Write(line); err != nil {
				return err
			}
			_, err := back.ReadSlice('\n')
			return err
		}},
		{"go-redis GET", redisPid, func(int) error { return r.Get(ctx, "k").Err() }},
		{"mem_get, REST", gw, func(i int) error { return callers[i].rest("mem_get", get) }},
		{"mem_get, MCP session", gw, func(i int) error { return callers[i].mcp("mem_get", get) }},
		{"go-redis SET, appendfsync always", redisPid, func(int) error { return r.Set(ctx, "k", value, 0).Err() }},
		{"mem_set with its record, REST", gw, func(i int) error { return callers[i].rest("mem_set", set) }},
		{"mem_set with its record, MCP session", gw, func(i int) error { return callers[i].mcp("mem_set", set) }},
	}
	if err := r.Set(ctx, "k", value, 0).Err(); err != nil {
		t.Fatal(err)
	}
	times := make([][]time.Duration, len(contenders))
	for range rounds {
		for i, c := range contenders {
			at := time.Now()
			if err := c.do(0); err != nil {
				t.Fatal(c.name, err)
			}
			times[i] = append(times[i], time.Since(at))
		}
	}
	var out bytes.Buffer
	fmt.Fprintln(&out, "| one at a time, 100 bytes | p50 ms | p90 ms |\n|---|---|---|")
	for i, c := range contenders {
		fmt.Fprintf(&out, "| %s | %.3f | %.3f |\n", c.name, p50(times[i]).Seconds()*1000, times[i][len(times[i])*9/10].Seconds()*1000)
	}
	fmt.Fprintln(&out, "\n| calls/s (processor time of the server, µs for a call), callers at once | 1 | 8 | 64 |\n|---|---|---|---|")
	for _, c := range contenders {
		fmt.Fprintf(&out, "| %s |", c.name)
		for _, n := range []int{1, 8, 64} {
			if c.server == echoPid && n > 1 {
				fmt.Fprint(&out, " |")
				continue
			}
			const all = 8000
			var wg sync.WaitGroup
			used, at := cpu(t, c.server), time.Now()
			for i := range n {
				wg.Go(func() {
					for range all / n {
						if err := c.do(i); err != nil {
							t.Error(c.name, err)
							return
						}
					}
				})
			}
			wg.Wait()
			took := time.Since(at)
			fmt.Fprintf(&out, " %.0f (%.0f) |", all/took.Seconds(), float64((cpu(t, c.server)-used).Microseconds())/all)
		}
		fmt.Fprintln(&out)
	}
	t.Log("\n" + out.String())
	official(t, socket, gw)
}

// official says what the official SDK's client sees and takes, for who uses it.
func official(t *testing.T, socket string, gw int) {
	t.Helper()
	ctx := t.Context()
	web := sdkClient(t, socket)
	session, err := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil).Connect(ctx, &mcp.StreamableClientTransport{Endpoint: "http://localhost/mcp", HTTPClient: web, DisableStandaloneSSE: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	const n = 3000
	times := make([]time.Duration, n)
	server, client := cpu(t, gw), cpu(t, os.Getpid())
	for i := range times {
		at := time.Now()
		if out, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "mem_get", Arguments: map[string]any{"key": "k"}}); err != nil || out.IsError {
			t.Fatal(out, err)
		}
		times[i] = time.Since(at)
	}
	t.Logf("mem_get by the official Go SDK's client: p50 %.3f ms; processor time of a call: %.0f µs of the gateway, %.0f of the client",
		p50(times).Seconds()*1000, float64((cpu(t, gw)-server).Microseconds())/n, float64((cpu(t, os.Getpid())-client).Microseconds())/n)
}

// TestMemory measures one of seven gateways with every group but proc: their
// program's pages are shared, as on a host.
func TestMemory(t *testing.T) {
	top := dir(t)
	var pids []int
	var sockets []string
	for i := range 7 {
		d := filepath.Join(top, fmt.Sprint(i))
		if err := os.Mkdir(d, 0o777); err != nil { //nolint:gosec // as above
			t.Fatal(err)
		}
		pid := self(t, gwEnv+"="+d)
		waitFor(t, filepath.Join(d, "system.db-wal"))
		pids, sockets = append(pids, pid), append(sockets, filepath.Join(d, "gateway.sock"))
	}
	runtime.GC()
	time.Sleep(time.Second) // what a start leaves running
	show := func(what string, pid int) {
		t.Logf("%s: PSS %.1f MB, private %.1f, of it dirty %.1f", what, memory(t, pid, "Pss"), memory(t, pid, "Private_Dirty", "Private_Clean"), memory(t, pid, "Private_Dirty"))
	}
	show("fresh", pids[0])
	c := connect(t, sockets[0])
	if err := c.open(); err != nil {
		t.Fatal(err)
	}
	value := strings.Repeat("x", 100)
	for i := range rounds {
		for _, err := range []error{
			c.rest("mem_get", []byte(`{"key":"k"}`)), c.mcp("mem_get", []byte(`{"key":"k"}`)),
			c.rest("mem_set", fmt.Appendf(nil, `{"key":"k","value":"%s%d"}`, value, i)), c.mcp("mem_set", []byte(`{"key":"k","value":"`+value+`"}`)),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	show(fmt.Sprintf("after %d calls", 4*rounds), pids[0])
	time.Sleep(30 * time.Second)
	show("30 s later", pids[0])
}
