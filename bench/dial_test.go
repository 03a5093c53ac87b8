// Package bench measures layer 4. Each benchmark brings the whole layer up in
// a throwaway host; nothing is asserted about time.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/dialer"
	"bulkhead/internal/team"
	"bulkhead/test/system/egress"
	"bulkhead/test/system/throwaway"
)

func TestMain(m *testing.M) {
	if what := os.Getenv(clientVariable); what != "" {
		if err := beClient(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	egress.Main(m)
}

const rounds = 400

func agent() *team.Agent {
	a := &team.Agent{Name: "writer", Hosts: map[string][]netip.Addr{"api.example.com": {netip.MustParseAddr("203.0.113.10")}}}
	for _, p := range []uint16{80, 443, 8080, 9000, 9001} {
		a.Egress = append(a.Egress, team.Destination{Host: "api.example.com", Port: p, SNI: team.SNIExact})
	}
	for i := range rounds {
		name := "n" + strconv.Itoa(i) + ".example.com"
		a.Egress = append(a.Egress, team.Destination{Host: name, Port: 9000, SNI: team.SNIExact})
		a.Hosts[name] = []netip.Addr{netip.MustParseAddr("203.0.113.10")}
	}
	return a
}

// wanted keeps the measurements out of an ordinary `go test ./...`.
func wanted(t *testing.T) {
	t.Helper()
	if os.Getenv("BULKHEAD_BENCH") == "" {
		t.Skip("set BULKHEAD_BENCH=1 to measure")
	}
}

func quantiles(t *testing.T, what string, d []time.Duration) (p50 time.Duration) {
	t.Helper()
	slices.Sort(d)
	t.Logf("%-34s p50 %8v  p90 %8v", what, d[len(d)/2].Round(time.Microsecond), d[len(d)*9/10].Round(time.Microsecond))
	return d[len(d)/2]
}

func TestDial(t *testing.T) {
	wanted(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		egress.Serve(t, "203.0.113.10:9000", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
		s := egress.Start(t, agent())
		// The gateway's place: its id at the dialer's socket.
		c := dialer.NewClient(s.Dir + "/dialer.sock")
		if err := os.Chown(s.Dir+"/dialer.sock", int(egress.IDs.Gateway()), 0); err != nil {
			t.Fatal(err)
		}
		var direct, cached, first []time.Duration
		err := egress.As(egress.IDs.Gateway(), func() error {
			_, _, err := c.Dial(context.Background(), "api.example.com", 9000) // connects as this id
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := range rounds {
			at := time.Now()
			d, err := net.Dial("tcp", "203.0.113.10:9000")
			if err != nil {
				t.Fatal(err)
			}
			direct = append(direct, time.Since(at))
			_ = d.Close()
			for _, how := range []struct {
				name string
				into *[]time.Duration
			}{{"api.example.com", &cached}, {"n" + strconv.Itoa(i) + ".example.com", &first}} {
				at := time.Now()
				d, _, err := c.Dial(context.Background(), how.name, 9000)
				if err != nil {
					t.Fatal(err)
				}
				*how.into = append(*how.into, time.Since(at))
				_ = d.Close()
			}
		}
		base := quantiles(t, "connect directly", direct)
		t.Logf("over it, cached pin: %v", quantiles(t, "through the dialer, cached pin", cached)-base)
		t.Logf("over it, first pin: %v", quantiles(t, "through the dialer, first pin", first)-base)
		pss(t, "dialer", s.Dialer.PID())
		pss(t, "gateway", s.Gateway.PID())
	})
}

func pss(t *testing.T, what string, pid int) {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	if errors.Is(err, unix.EACCES) || err != nil {
		t.Logf("memory of the %s cannot be read: %v", what, err)
		return
	}
	t.Logf("memory of the %s (the test's program, so larger than the real one):\n%s", what, text[:min(len(text), 240)])
}
