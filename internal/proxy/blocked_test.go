package proxy

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/record"
	"bulkhead/internal/team"
)

// TestAFarSideThatDoesNotReadHoldsNobodyWhoLeaves: a request for a kept
// connection whose far side answers and reads no more waits to be sent.
func TestAFarSideThatDoesNotReadHoldsNobodyWhoLeaves(t *testing.T) {
	ended := make(chan error, 4)
	var far sync.WaitGroup
	policy := dial.NewPolicy(&team.Agent{Name: "writer", Egress: []team.Destination{{Host: api, Port: 80}}})
	p := New(Config{
		Policy: func() *dial.Policy { return policy }, Record: func(string, record.Verdict, *deny.Reason) {},
		Dial: func(context.Context, string, uint16) (net.Conn, error) {
			here, there := net.Pipe() // which holds nothing
			far.Go(func() {
				if _, err := http.ReadRequest(bufio.NewReaderSize(there, 16)); err != nil {
					ended <- err
					return
				}
				_, _ = io.WriteString(there, ok)
				_, err := io.WriteString(there, "x") // until the proxy ends it
				ended <- err
			})
			return here, nil
		},
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() { _ = p.ServeProxy(ln) })
	t.Cleanup(func() { _ = p.Close(); _ = ln.Close(); work.Wait(); far.Wait() })
	k := (&between{proxy: ln.Addr().String()}).talk(t)
	k.say(get(api, "/"))
	k.want("GET", 200, "ok")
	k.say(get(api, "/"))
	_ = k.Close()
	wait(t, ended, io.ErrClosedPipe)
}
