package bench

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The client of both proxies is a process of its own, as an agent is: the same
// program for both, in the runtime's network namespace for ours and in the
// host's for Squid.

const clientVariable = "BULKHEAD_BENCH_CLIENT" // "work proxy-address"

// work is one thing to measure.
type work struct {
	name, unit string
	span       bool // goes on for span, and counts
	do         func(proxy string) (float64, error)
}

var works = []work{
	{"request", "requests/s", true, func(proxy string) (float64, error) { return rate(proxy, request) }},
	{"tunnel", "tunnels/s", true, func(proxy string) (float64, error) { return rate(proxy, tunnel) }},
	{"get", "1 GiB by GET, GB/s", false, get},
	{"connect", "1 GiB by CONNECT, GB/s", false, func(proxy string) (float64, error) {
		conn, err := connect(proxy, 9000)
		if err != nil {
			return 0, err
		}
		return drain(conn)
	}},
}

// beClient does what the variable says and prints one number.
func beClient(what string) error {
	name, proxy, _ := strings.Cut(what, " ")
	for _, w := range works {
		if w.name == name {
			v, err := w.do(proxy)
			if err != nil {
				return err
			}
			_, err = fmt.Println(v)
			return err
		}
	}
	return fmt.Errorf("no such work: %q", what)
}

// measure has a client do the work named, and gives its number.
func measure(t *testing.T, c contender, name string) float64 {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{clientVariable + "=" + name + " " + c.proxy}
	var out, faults strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &faults
	var err error
	c.in(func() { err = cmd.Start() }) // a process begins in the network namespace of the thread that starts it
	if err = errors.Join(err, cmd.Wait()); err != nil {
		t.Fatalf("%s of %s: %v: %s", name, c.name, err, faults.String())
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(out.String()), 64)
	if err != nil {
		t.Fatalf("%s of %s: %v", name, c.name, err)
	}
	return v
}

// processorTime is what the processes have used so far, theirs and the
// kernel's for them (proc(5): fields 14 and 15 of stat, in hundredths of a
// second on every Linux that Go knows).
func processorTime(t *testing.T, pids []int) (sum time.Duration) {
	t.Helper()
	for _, pid := range pids {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		for _, f := range fields[11:13] {
			n, err := strconv.ParseInt(f, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return sum
}

// rate runs work on 32 clients for a while and counts.
func rate(proxy string, work func(string, func() bool) error) (float64, error) {
	var n atomic.Int64
	var group sync.WaitGroup
	errs := make(chan error, clients)
	end := time.Now().Add(span)
	for range clients {
		group.Go(func() {
			errs <- work(proxy, func() bool { n.Add(1); return time.Now().Before(end) })
		})
	}
	group.Wait()
	close(errs)
	var all error
	for err := range errs {
		all = errors.Join(all, err)
	}
	return float64(n.Load()) / span.Seconds(), all
}

// request asks over one connection again and again.
func request(proxy string, more func() bool) error {
	conn, err := net.Dial("tcp", proxy)
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
func tunnel(proxy string, more func() bool) error {
	for {
		conn, err := connect(proxy, 9001)
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

func connect(proxy string, port int) (net.Conn, error) {
	conn, err := net.Dial("tcp", proxy)
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

// get downloads over plain HTTP.
func get(proxy string) (float64, error) {
	conn, err := net.Dial("tcp", proxy)
	if err != nil {
		return 0, err
	}
	if _, err := io.WriteString(conn, "GET http://api.example.com/big HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n"); err != nil {
		return 0, err
	}
	return drain(conn)
}

// drain reads until the far side has sent its GiB, in GB/s.
func drain(conn net.Conn) (float64, error) {
	defer func() { _ = conn.Close() }()
	b := make([]byte, 1<<20)
	at, n := time.Now(), 0
	for n < bigBytes {
		m, err := conn.Read(b)
		n += m
		if err != nil {
			return 0, fmt.Errorf("after %d bytes: %w", n, err)
		}
	}
	return float64(n) / 1e9 / time.Since(at).Seconds(), nil
}
