package throwaway

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// testVar names the test that a host was made for.
const testVar = "BULKHEAD_THROWAWAY_TEST"

// verdictFD is the descriptor on which the inner test tells its verdict.
const verdictFD = 3

// Host is the throwaway host that a test runs in.
type Host struct {
	// Listed and Unlisted are the world outside, as the package variables.
	Listed, Unlisted netip.Addr
}

// Run runs fn in a new throwaway host, see the package comment. Without root
// the test fails: a test that was not run proves nothing.
func Run(t *testing.T, fn func(t *testing.T, h *Host), opts ...Option) {
	t.Helper()
	if os.Getenv(testVar) == t.Name() {
		RequireInside(t)
		t.Cleanup(func() { tell(t) })
		fn(t, &Host{Listed: Listed, Unlisted: Unlisted})
		return
	}
	outer(t, opts)
}

// outer is the machine's side: it starts the host and takes its verdict. Hosts
// do not see one another and wait more than they work, so tests run side by
// side (go test -parallel). What measures has the machine for itself.
func outer(t *testing.T, opts []Option) {
	t.Helper()
	if os.Getenv("BULKHEAD_BENCH") == "" {
		t.Parallel()
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatalf("throwaway: %v", err)
	}
	argv := []string{exe, "-test.run=" + pattern(t.Name()), "-test.v=true", "-test.count=1"}
	if deadline, ok := t.Deadline(); ok {
		// The inner test gives up first, so that its stacks are seen.
		left := max(time.Until(deadline)-5*time.Second, time.Second)
		argv = append(argv, "-test.timeout="+left.String())
	}
	if testing.Short() {
		argv = append(argv, "-test.short=true")
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatalf("throwaway: %v", err)
	}
	defer func() { _ = r.Close() }()

	out := &lines{to: t.Output()}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	err = Command{
		Argv: argv, Env: append(os.Environ(), testVar+"="+t.Name()),
		Stdout: out, Stderr: out, ExtraFiles: []*os.File{w}, Options: opts,
	}.Run(ctx)
	out.flush()
	_ = w.Close()
	verdict, readErr := io.ReadAll(r)
	if readErr != nil {
		t.Fatalf("throwaway: read verdict: %v", readErr)
	}
	switch v := string(verdict); {
	case err != nil:
		t.Fatalf("throwaway: the test failed in its host (%v, verdict %q)", err, v)
	case v == "skip":
		t.Skip("skipped in its throwaway host, see above")
	case v != "pass":
		t.Fatalf("throwaway: the test ended in its host without a verdict (%q)", v)
	}
}

// tell writes the inner test's verdict.
func tell(t *testing.T) {
	f := os.NewFile(verdictFD, "verdict")
	verdict := "pass"
	if t.Failed() {
		verdict = "fail"
	} else if t.Skipped() {
		verdict = "skip"
	}
	if _, err := fmt.Fprint(f, verdict); err != nil {
		t.Errorf("throwaway: tell verdict: %v", err)
	}
	_ = f.Close()
}

// pattern matches exactly one test, subtests level by level (go help testflag).
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// lines passes whole lines on, marked as the host's, so that the inner test's
// "--- PASS" is not taken for the outer's.
type lines struct {
	mu   sync.Mutex
	rest []byte
	to   io.Writer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, b...)
	for {
		i := bytes.IndexByte(l.rest, '\n')
		if i < 0 {
			return len(b), nil
		}
		if _, err := fmt.Fprintf(l.to, "host| %s\n", l.rest[:i]); err != nil {
			return 0, err
		}
		l.rest = l.rest[i+1:]
	}
}

func (l *lines) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.rest) > 0 {
		_, _ = fmt.Fprintf(l.to, "host| %s\n", l.rest)
		l.rest = nil
	}
}
