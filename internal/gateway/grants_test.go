package gateway

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead/internal/wire"
)

func TestTheWardenReplacesTemporaryDestinations(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root is listened to")
	}
	path := filepath.Join(t.TempDir(), "grants.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	g := newGrants(&Config{Agent: "writer", RuntimeID: 1000})
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { g.serve(ctx, ln) })
	t.Cleanup(func() { cancel(); work.Wait() })
	tell := func(verb string, list ...wire.Grant) string {
		t.Helper()
		u, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		c := wire.New(u)
		defer func() { _ = c.Close() }()
		if _, err := c.Greet(wire.GrantsProtocol, wire.GrantsVersion); err != nil {
			return "refused"
		}
		if err := c.Send(1, verb, wire.Grants{Grants: list}); err != nil {
			t.Fatal(err)
		}
		m, _, err := c.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return m.Verb
	}
	may := func() bool { _, r := g.policy().Check("files.example.org", 443); return r == nil }
	one := wire.Grant{Target: "files.example.org:443", Until: time.Now().Add(time.Hour), At: time.Now()}
	if may() {
		t.Fatal("allowed without a word of the warden")
	}
	if tell("open", one) != wire.VerbError || may() {
		t.Error("an unknown verb was taken")
	}
	if tell(wire.VerbGrants, one) != wire.VerbOK || !may() {
		t.Error("a grant is not in force though it was acknowledged")
	}
	if tell(wire.VerbGrants) != wire.VerbOK || may() {
		t.Error("a grant outlives its revocation")
	}
	if one.Until = time.Now().Add(-time.Second); tell(wire.VerbGrants, one) != wire.VerbOK || may() {
		t.Error("a grant that is over allows")
	}
}

func TestAGrantForOneConnectionIsUsedByOneOfMany(t *testing.T) {
	g := newGrants(&Config{Agent: "writer", Grants: []wire.Grant{{Target: "files.example.org:443", Until: time.Now().Add(time.Hour), Once: true, At: time.Now()}}})
	var passed atomic.Int32
	var work sync.WaitGroup
	for range 16 {
		work.Go(func() {
			if _, r := g.policy().Check("files.example.org", 443); r == nil && g.use("files.example.org", 443) == nil {
				passed.Add(1)
			}
		})
	}
	work.Wait()
	if passed.Load() != 1 {
		t.Errorf("%d connections passed", passed.Load())
	}
}

// A decision that waits for the disk keeps nothing else waiting, and has an end before
// the warden gives it up.
func TestADecisionKeepsNothingElseWaiting(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root is listened to")
	}
	path := filepath.Join(t.TempDir(), "grants.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	g := newGrants(&Config{Agent: "writer"})
	begun, release := make(chan bool, maxGoverning), make(chan struct{})
	g.govern = func(ctx context.Context, _ string, _ json.RawMessage) (any, error) {
		_, ends := ctx.Deadline()
		begun <- ends
		<-release
		return wire.DecideResult{ID: "x"}, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { g.serve(ctx, ln) })
	t.Cleanup(func() { cancel(); work.Wait() })
	answers := make(chan error, maxGoverning)
	for range maxGoverning {
		go func() {
			var res wire.DecideResult
			answers <- operator(path, wire.VerbDecide, wire.DecideRequest{}, &res)
		}()
	}
	for range maxGoverning {
		if !<-begun {
			t.Error("it has no end")
		}
	}
	var none struct{}
	if err := operator(path, wire.VerbGrants, wire.Grants{}, &none); err != nil {
		t.Errorf("while decisions wait: %v", err)
	}
	if err := operator(path, wire.VerbDecide, wire.DecideRequest{}, &none); err == nil || !strings.Contains(err.Error(), "nothing was done") {
		t.Errorf("more decisions than there are places: %v", err)
	}
	close(release)
	for range maxGoverning {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
}
