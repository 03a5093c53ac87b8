package bench

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead/test/system/egress"
	"bulkhead/test/system/throwaway"
)

// Sizes of the comparison: bounded, so that it takes seconds.
const (
	clients  = 32
	span     = 2 * time.Second
	sides    = 2 // times that the contenders take turns
	bigBytes = 1 << 30
)

// contender is a proxy under test: how its client gets a connection to it.
type contender struct {
	name string
	dial func() (net.Conn, error)
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
		squidDial := func() (net.Conn, error) { return net.Dial("tcp", "203.0.113.10:3129") }
		egress.Await(t, "squid listens", func() bool {
			c, err := squidDial()
			if err == nil {
				_ = c.Close()
			}
			return err == nil
		})
		contenders := []contender{
			{"squid", squidDial},
			{"bulkhead", func() (net.Conn, error) { return s.Dial(s.Static.Proxy) }},
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
				note("requests/s", c.name, rate(t, c, request))
				note("tunnels/s", c.name, rate(t, c, tunnel))
				note("1 GiB by GET, GB/s", c.name, download(t, c, false))
				note("1 GiB by CONNECT, GB/s", c.name, download(t, c, true))
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
		t.Logf("static host, 1 GiB: %.2f GB/s", drain(t, conn))
	})
}

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

// rate runs work on 32 clients for a while and counts.
func rate(t *testing.T, c contender, work func(contender, func() bool) error) float64 {
	t.Helper()
	var n atomic.Int64
	var group sync.WaitGroup
	end := time.Now().Add(span)
	for range clients {
		group.Go(func() {
			err := work(c, func() bool { n.Add(1); return time.Now().Before(end) })
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		})
	}
	group.Wait()
	return float64(n.Load()) / span.Seconds()
}

// request asks over one connection again and again.
func request(c contender, more func() bool) error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	r := bufio.NewReader(conn)
	for {
		if _, err := io.WriteString(conn, "GET http://api.example.com:8080/x HTTP/1.1\r\nHost: api.example.com:8080\r\n\r\n"); err != nil {
			return err
		}
		length := 0
		for first := true; ; first = false {
			line, err := r.ReadSlice('\n')
			if err != nil {
				return err
			}
			if first && !strings.HasPrefix(string(line), "HTTP/1.1 200") {
				return fmt.Errorf("answer %q", line)
			}
			if l := string(line); strings.HasPrefix(l, "Content-Length: ") {
				_, _ = fmt.Sscanf(l, "Content-Length: %d", &length)
			}
			if len(line) <= 2 {
				break
			}
		}
		if _, err := r.Discard(length); err != nil {
			return err
		}
		if !more() {
			return nil
		}
	}
}

// tunnel opens a tunnel, hears one byte of the far side through it, closes.
func tunnel(c contender, more func() bool) error {
	for {
		conn, err := connect(c, 9001)
		if err != nil {
			return err
		}
		var b [1]byte
		_, err = conn.Read(b[:])
		_ = conn.(interface{ SetLinger(int) error }).SetLinger(0)
		_ = conn.Close()
		if err != nil {
			return err
		}
		if !more() {
			return nil
		}
	}
}

func connect(c contender, port int) (net.Conn, error) {
	conn, err := c.dial()
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(conn, "CONNECT api.example.com:%d HTTP/1.1\r\nHost: api.example.com:%d\r\n\r\n", port, port); err != nil {
		return nil, err
	}
	// One read usually gives the whole head, and maybe what follows it.
	b, n := make([]byte, 4096), 0
	for {
		m, err := conn.Read(b[n:])
		if err != nil {
			return nil, err
		}
		n += m
		if head, rest, ok := strings.Cut(string(b[:n]), "\r\n\r\n"); ok {
			if !strings.HasPrefix(head, "HTTP/1.1 200") {
				return nil, fmt.Errorf("answer %q", head)
			}
			return &ahead{conn.(*net.TCPConn), []byte(rest)}, nil
		}
	}
}

// ahead gives first what was read with the head.
type ahead struct {
	*net.TCPConn
	rest []byte
}

func (a *ahead) Read(b []byte) (int, error) {
	if len(a.rest) > 0 {
		n := copy(b, a.rest)
		a.rest = a.rest[n:]
		return n, nil
	}
	return a.TCPConn.Read(b)
}

func download(t *testing.T, c contender, tunnelled bool) float64 {
	t.Helper()
	if tunnelled {
		conn, err := connect(c, 9000)
		if err != nil {
			t.Fatal(err)
		}
		return drain(t, conn)
	}
	conn, err := c.dial()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET http://api.example.com/big HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return drain(t, conn)
}

// drain reads until the far side has sent its GiB, in GB/s.
func drain(t *testing.T, conn net.Conn) float64 {
	t.Helper()
	defer func() { _ = conn.Close() }()
	b := make([]byte, 1<<20)
	at, n := time.Now(), 0
	for n < bigBytes {
		m, err := conn.Read(b)
		n += m
		if err != nil {
			t.Fatalf("after %d bytes: %v", n, err)
		}
	}
	return float64(n) / 1e9 / time.Since(at).Seconds()
}
