package sender_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"bulkhead/internal/audit"
	"bulkhead/internal/audit/protocol"
	"bulkhead/internal/audit/sender"
	"bulkhead/internal/record"
	"bulkhead/internal/store"
	"bulkhead/internal/wire"
)

type spool struct{ store.Spool }

func (s spool) Next(ctx context.Context, after uint64, max int) ([]protocol.Record, error) {
	all, err := s.Spool.Next(ctx, after, max)
	out := make([]protocol.Record, len(all))
	for i, e := range all {
		out[i] = protocol.Record(e)
	}
	return out, err
}

// take is audit's side of one connection, which trusts whoever comes.
func take(ctx context.Context, l *audit.Log, c *wire.Conn) {
	defer func() { _ = c.Close() }()
	if _, err := c.Greet(protocol.Name, protocol.Version); err != nil {
		return
	}
	for {
		m, _, err := c.Recv()
		if err != nil {
			return
		}
		var answer any = struct{}{}
		verb := wire.VerbOK
		if m.Verb == protocol.VerbAppend {
			var q protocol.Append
			if json.Unmarshal(m.Body, &q) != nil {
				return
			}
			verb = protocol.VerbTaken
			if answer, err = l.Append(ctx, "pair", "writer", q); err != nil {
				verb, answer = wire.VerbError, wire.Failure{Message: err.Error()}
			}
		}
		if c.Send(m.ID, verb, answer) != nil {
			return
		}
	}
}

// send writes n records into the store at path and sends them, and waits until the store
// is rid of them.
func send(t *testing.T, path, socket string, n int) {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{Path: path, Audited: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		r := record.Record{SchemaVersion: record.SchemaVersion, Kind: record.Tool, Verdict: record.Allowed, Target: fmt.Sprint(i)}
		if err := s.Write(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- sender.Run(ctx, sender.Config{Socket: socket, Spool: spool{s.Spool()}, Trouble: func(err error) { t.Error(err) }})
	}()
	for {
		all, _, err := s.Spool().Recent(t.Context(), time.Time{}, 1)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A damaged system.db is moved away, and the gateway begins another, whose numbers begin
// anew: what they count are other records.
func TestRecordsOfANewStoreAreTakenToo(t *testing.T) {
	dir := t.TempDir()
	l, err := audit.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	socket, path := filepath.Join(dir, "audit.sock"), filepath.Join(dir, "system.db")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = wire.Serve(ctx, ln, func(ctx context.Context, c *wire.Conn) { take(ctx, l, c) })
	}()
	t.Cleanup(func() { cancel(); <-served })
	send(t, path, socket, 20)
	send(t, path, socket, 5) // the same list goes on
	if n := l.Head().Lines; n != 25 {
		t.Fatalf("%d lines", n)
	}
	for _, suffix := range []string{"", "-wal"} {
		if err := os.Rename(path+suffix, path+suffix+".damaged"); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	send(t, path, socket, 10)
	if n := l.Head().Lines; n != 35 {
		t.Errorf("%d lines: records that were acknowledged are not there", n)
	}
}
