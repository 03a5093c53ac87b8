package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"bulkhead/internal/team"
	"bulkhead/internal/tooltoken"
)

const (
	crashEnv    = "BULKHEAD_GATEWAY_CRASH"
	crashAskEnv = "BULKHEAD_GATEWAY_ASK" // tools that are asked for
)

// TestMain lets the test program be a gateway that is killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv(crashEnv); dir != "" {
		if err := crashGateway(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func crashGateway(dir string) error {
	socket := filepath.Join(dir, "gateway.sock")
	_ = os.Remove(socket) // of the one before, which was killed
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	if err := os.Chmod(socket, 0o777); err != nil { // #nosec G302 -- the runtime's id connects
		return err
	}
	path := filepath.Join(dir, "grants.sock")
	_ = os.Remove(path)
	operators, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	var ask *team.Ask
	if names := strings.Fields(os.Getenv(crashAskEnv)); len(names) > 0 {
		ask = &team.Ask{Tools: names, Waiting: 64}
	}
	fmt.Println("ready")
	return Serve(context.Background(), ln, Config{
		Team: "t", Agent: "a", Token: runtimeToken, DialerSocket: filepath.Join(dir, "none"), Data: dir, Tools: &team.Tools{RatePerMinute: 100_000},
		Ask: ask, GrantsListener: operators,
	}, io.Discard)
}

// startKillable starts a gateway as a process of its own.
func startKillable(t *testing.T, dir string, ask ...string) (*exec.Cmd, *http.Client) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0]) // #nosec G204 -- this very program
	cmd.Env = append(os.Environ(), crashEnv+"="+dir, crashAskEnv+"="+strings.Join(ask, " "))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	socket := filepath.Join(dir, "gateway.sock")
	return cmd, &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 16,
		// Not asRuntime: a dial that ends its goroutine would leave the caller waiting for ever.
		DialContext: func(context.Context, string, string) (net.Conn, error) { return dialAsRuntime(socket) },
	}}
}

// post gives the answer of a tool; ok is false when the gateway died meanwhile.
func post(c *http.Client, name, input string) (text string, ok bool) {
	q, err := http.NewRequest(http.MethodPost, "http://gateway/v1/tools/"+name, strings.NewReader(input))
	if err != nil {
		return "", false
	}
	q.Header.Set("Authorization", "Bearer "+tooltoken.Of(runtimeToken))
	a, err := c.Do(q)
	if err != nil {
		return "", false
	}
	defer func() { _ = a.Body.Close() }()
	body, err := io.ReadAll(a.Body)
	return string(body), err == nil && a.StatusCode == http.StatusOK
}

// TestAKilledGatewayLosesNothingThatItAnswered kills it with SIGKILL in the middle
// of writes of every kind: a value that was answered is there whole, a counter
// and a topic are at what was answered or a call further, and never in between.
func TestAKilledGatewayLosesNothingThatItAnswered(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to connect under the runtime's id")
	}
	dir, err := os.MkdirTemp("/tmp", "gateway") //nolint:usetesting // others get in, and the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil { // #nosec G302 -- the runtime's id connects
		t.Fatal(err)
	}
	const writers, rounds = 6, 3
	answered := make([][]int, writers) // the numbers of each whose every write was answered
	tried := make([]int, writers)
	for round := range rounds {
		cmd, client := startKillable(t, dir)
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for {
					n := tried[w]
					tried[w]++
					for _, c := range [][2]string{
						{"mem_set", fmt.Sprintf(`{"key":"w%d:%d","value":"%s"}`, w, n, strings.Repeat("x", 50+n*37%4000))},
						{"mem_incr", fmt.Sprintf(`{"key":"n%d"}`, w)},
						{"events_publish", fmt.Sprintf(`{"topic":"t%d","message":%d}`, w, n)},
						{"vec_upsert", fmt.Sprintf(`{"id":"v%d:%d","vector":[1,%d,2]}`, w, n, n)},
						{"mem_remember", fmt.Sprintf(`{"key":"m%d","content":"the word%d"}`, w, n)},
					} {
						if _, ok := post(client, c[0], c[1]); !ok {
							return
						}
					}
					answered[w] = append(answered[w], n)
					if w == 0 && n == 20*(round+1) {
						_ = cmd.Process.Kill()
					}
				}
			})
		}
		wg.Wait()
		_ = cmd.Wait() // it was killed
		client.CloseIdleConnections()
		cmd, client = startKillable(t, dir)
		for w := range writers {
			for _, n := range answered[w] {
				got, ok := post(client, "mem_get", fmt.Sprintf(`{"key":"w%d:%d"}`, w, n))
				if want := strings.Repeat("x", 50+n*37%4000); !ok || !strings.Contains(got, `"`+want+`"`) {
					t.Fatalf("round %d: w%d:%d is %.80s, %v", round, w, n, got, ok)
				}
			}
			if len(answered[w]) == 0 {
				continue
			}
			last := answered[w][len(answered[w])-1]
			for _, c := range [][2]string{
				{"vec_delete", fmt.Sprintf(`{"id":"v%d:%d"}`, w, last)},
				{"mem_history", fmt.Sprintf(`{"key":"m%d","limit":100}`, w)},
				{"events_poll", fmt.Sprintf(`{"topic":"t%d","after":%d,"limit":100}`, w, max(0, len(answered[w])-50))},
			} {
				got, ok := post(client, c[0], c[1])
				if c[0] != "vec_delete" && !strings.Contains(got, fmt.Sprintf("word%d\"", last)) && !strings.Contains(got, fmt.Sprintf(`"message":%d}`, last)) {
					t.Fatalf("round %d: %d is not in %v: %s", round, last, c, got)
				}
				if !ok || strings.Contains(got, `"deleted":false`) {
					t.Fatalf("round %d: what was answered is gone: %v: %s, %v", round, c, got, ok)
				}
			}
			var counter struct{ Value int }
			got, ok := post(client, "mem_get", fmt.Sprintf(`{"key":"n%d"}`, w))
			if err := json.Unmarshal([]byte(got), &counter); err != nil || !ok {
				t.Fatalf("%s, %v", got, err)
			}
			if counter.Value < len(answered[w]) || counter.Value > tried[w] {
				t.Fatalf("round %d: the counter of %d is at %d; %d were answered and %d tried", round, w, counter.Value, len(answered[w]), tried[w])
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		client.CloseIdleConnections()
	}
}
