package bench

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/test/system/egress"
	"bulkhead/test/system/throwaway"
)

// Sizes of the comparison: bounded, so that it takes seconds.
const (
	clients  = 32
	span     = 2 * time.Second
	sides    = 3 // times that the contenders take turns
	bigBytes = 1 << 30
)

// contender is a proxy under test.
type contender struct {
	name  string
	proxy string       // where its client finds it
	in    func(func()) // runs a function where the client has its network
	pids  []int        // the processes whose time is counted as the proxy's
}

func TestProxyAgainstSquid(t *testing.T) {
	wanted(t)
	squid, err := exec.LookPath("squid")
	if err != nil {
		t.Skip("squid is not installed")
	}
	conf, err := os.ReadFile("squid.conf")
	if err != nil {
		t.Fatal(err)
	}
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		hosts, err := os.ReadFile("/etc/hosts")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(
			os.WriteFile("/etc/hosts", append(hosts, "\n203.0.113.10 api.example.com\n"...), 0o644), // #nosec G306 -- every id reads it
			os.WriteFile("/run/squid.conf", conf, 0o644),                                            // #nosec G306 -- squid's id reads it
		); err != nil {
			t.Fatal(err)
		}
		origin(t)
		s := egress.Start(t, agent())
		cmd := exec.Command(squid, "-N", "-f", "/run/squid.conf") // #nosec G204 -- found in PATH
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
		egress.Await(t, "squid listens", func() bool {
			c, err := net.Dial("tcp", squidAddress)
			if err == nil {
				_ = c.Close()
			}
			return err == nil
		})
		contenders := []contender{
			{"squid", squidAddress, func(f func()) { f() }, []int{cmd.Process.Pid}},
			{"bulkhead", s.Static.Proxy, s.Inside, []int{s.Gateway.PID(), s.Dialer.PID()}},
		}
		score := map[string]map[string][]float64{}
		note := func(what, who string, v float64) {
			if score[what] == nil {
				score[what] = map[string][]float64{}
			}
			score[what][who] = append(score[what][who], v)
		}
		for range sides { // taking turns, so that a busy moment hits both
			for _, c := range contenders {
				for _, w := range works {
					if only := os.Getenv("BULKHEAD_BENCH_WORK"); only != "" && only != w.name {
						continue // who profiles one kind of work wants no other
					}
					before := processorTime(t, c.pids)
					v := measure(t, c, w.name)
					spent := processorTime(t, c.pids) - before
					note(w.unit, c.name, v)
					if w.span {
						note("processor time of the proxy, us for each of "+w.unit, c.name, float64(spent.Microseconds())/(v*span.Seconds()))
					} else {
						note("processor time of the proxy, ms, "+w.unit, c.name, float64(spent.Milliseconds()))
					}
				}
			}
		}
		for _, what := range slices.Sorted(maps.Keys(score)) {
			line := fmt.Sprintf("%-24s", what)
			for _, c := range contenders {
				v := slices.Sorted(slices.Values(score[what][c.name]))
				line += fmt.Sprintf("  %s: median %.2f (%.2f to %.2f)", c.name, v[len(v)/2], v[0], v[len(v)-1])
			}
			t.Log(line)
		}
		conn, err := s.Dial(s.Address("api.example.com", 9000))
		if err != nil {
			t.Fatal(err)
		}
		speed, err := drain(conn)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("static host, 1 GiB: %.2f GB/s", speed)
	})
}

// squidAddress is what squid.conf says.
const squidAddress = "203.0.113.10:3129"

// origin is the far side: small answers on 8080, one byte on 9001, a GiB on 80 (HTTP) and 9000.
func origin(t *testing.T) {
	t.Helper()
	block := make([]byte, 1<<20)
	body := strings.Repeat("x", 1024)
	answer := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nContent-Type: text/plain\r\n\r\n%s", len(body), body)
	egress.Serve(t, "203.0.113.10:8080", func(c net.Conn) { // a fixed answer, so that the proxies are measured and not the origin
		r := bufio.NewReader(c)
		for {
			for {
				line, err := r.ReadSlice('\n')
				if err != nil {
					return
				}
				if len(line) <= 2 {
					break
				}
			}
			if _, err := c.Write(answer); err != nil {
				return
			}
		}
	})
	egress.Serve(t, "203.0.113.10:80", func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return
		}
		_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", bigBytes)
		for n := 0; n < bigBytes; n += len(block) {
			if _, err := c.Write(block); err != nil {
				return
			}
		}
	})
	egress.Serve(t, "203.0.113.10:9001", func(c net.Conn) { _, _ = c.Write([]byte("x")) })
	egress.Serve(t, "203.0.113.10:9000", func(c net.Conn) {
		for n := 0; n < bigBytes; n += len(block) {
			if _, err := c.Write(block); err != nil {
				return
			}
		}
	})
}
