package store

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/deny"
)

// The child of the crash torture is this test binary with this variable set.
const childEnv = "BULKHEAD_TEST_ADAPTER"

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		if err := child(path, os.Stdin, os.Stdout); err != nil {
			slog.Error("child", "error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// call and answer are what parent and child say, a line each.
type call struct {
	ID      int
	Agent   string
	Drafts  []Draft         `json:",omitempty"`
	Receive *ReceiveRequest `json:",omitempty"`
	Ack     []string        `json:",omitempty"`
	Refuse  []Refusal       `json:",omitempty"`
	Ask     *ChannelRequest `json:",omitempty"`
	Decide  int64           `json:",omitempty"` // the id of a request
	Approve bool            `json:",omitempty"`
}

type answer struct {
	ID         int
	Results    []SendResult
	Reasons    []*deny.Reason
	Deliveries []Delivery
	Request    MembershipRequest
}

// child runs an adapter until it is killed.
func child(path string, in io.Reader, out io.Writer) error {
	a, err := Open(context.Background(), Config{Path: path, Policy: seven(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer a.Close()
	var mu sync.Mutex
	enc := json.NewEncoder(out)
	reply := func(x answer) {
		mu.Lock()
		defer mu.Unlock()
		_ = enc.Encode(x) // the parent is gone: so are we
	}
	reply(answer{ID: -1}) // ready
	reasons := func(errs ...error) (out []*deny.Reason) {
		for _, err := range errs {
			var r *deny.Reason
			if err != nil && !errors.As(err, &r) {
				r = unavailable(err.Error())
			}
			out = append(out, r)
		}
		return out
	}
	dec := json.NewDecoder(in)
	for {
		var c call
		if err := dec.Decode(&c); err != nil {
			return err
		}
		go func() {
			x := answer{ID: c.ID}
			ctx := context.Background()
			switch {
			case c.Drafts != nil:
				x.Results = a.Send(ctx, c.Agent, c.Drafts)
				for _, r := range x.Results {
					x.Reasons = append(x.Reasons, reasons(r.Err)...)
				}
			case c.Receive != nil:
				var err error
				x.Deliveries, err = a.Receive(ctx, c.Agent, *c.Receive)
				x.Reasons = reasons(err)
			case c.Ack != nil:
				x.Reasons = reasons(a.Ack(ctx, c.Agent, c.Ack)...)
			case c.Refuse != nil:
				x.Reasons = reasons(a.Refuse(ctx, c.Agent, c.Refuse)...)
			case c.Ask != nil:
				var err error
				x.Request, err = a.RequestMembership(ctx, c.Agent, *c.Ask)
				x.Reasons = reasons(err)
			case c.Decide != 0:
				var err error
				x.Request, err = a.Decide(ctx, c.Decide, c.Approve, "")
				x.Reasons = reasons(err)
			}
			reply(x)
		}()
	}
}

// remote is an adapter in a child.
type remote struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	gone chan struct{}

	mu    sync.Mutex
	n     int
	asked map[int]chan answer
}

func spawn(t *testing.T, path string) *remote {
	t.Helper()
	r := &remote{cmd: exec.Command(os.Args[0]), gone: make(chan struct{}), asked: map[int]chan answer{-1: make(chan answer, 1)}}
	r.cmd.Env = append(os.Environ(), childEnv+"="+path)
	r.cmd.Stderr = os.Stderr
	var err error
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.gone)
		dec := json.NewDecoder(bufio.NewReader(out))
		for {
			var x answer
			if dec.Decode(&x) != nil {
				return
			}
			r.mu.Lock()
			ch := r.asked[x.ID]
			delete(r.asked, x.ID)
			r.mu.Unlock()
			ch <- x
		}
	}()
	return r
}

// kill is kill -9.
func (r *remote) kill() {
	_ = r.cmd.Process.Kill()
	<-r.gone
	_ = r.cmd.Wait()
}

func (r *remote) ask(c call) (answer, error) {
	ch := make(chan answer, 1)
	r.mu.Lock()
	r.n++
	c.ID = r.n
	r.asked[c.ID] = ch
	raw, _ := json.Marshal(c)
	_, err := r.in.Write(append(raw, '\n'))
	r.mu.Unlock()
	if err != nil {
		return answer{}, errCrashed
	}
	select {
	case x := <-ch:
		return x, nil
	case <-r.gone:
		select {
		case x := <-ch: // it answered before it died
			return x, nil
		default:
			return answer{}, errCrashed
		}
	}
}

func (r *remote) Send(_ context.Context, from string, ds []Draft) []SendResult {
	x, err := r.ask(call{Agent: from, Drafts: ds})
	if err != nil {
		x.Results = make([]SendResult, len(ds))
	}
	for i := range x.Results {
		if x.Results[i].Err = err; err == nil && x.Reasons[i] != nil {
			x.Results[i].Err = x.Reasons[i]
		}
	}
	return x.Results
}

func (r *remote) Receive(_ context.Context, agent string, q ReceiveRequest) ([]Delivery, error) {
	x, err := r.ask(call{Agent: agent, Receive: &q})
	if err == nil && x.Reasons[0] != nil {
		err = x.Reasons[0]
	}
	return x.Deliveries, err
}

func (r *remote) Ack(_ context.Context, agent string, leases []string) []error {
	x, err := r.ask(call{Agent: agent, Ack: leases})
	return settled(x, err, len(leases))
}

func (r *remote) Refuse(_ context.Context, agent string, q []Refusal) []error {
	x, err := r.ask(call{Agent: agent, Refuse: q})
	return settled(x, err, len(q))
}

func settled(x answer, err error, n int) []error {
	out := make([]error, n)
	for i := range out {
		if out[i] = err; err == nil && x.Reasons[i] != nil {
			out[i] = x.Reasons[i]
		}
	}
	return out
}

// TestNothingIsLostUnderKill9 kills the adapter again and again while six
// agents send and receive; some kills hit it while it starts.
func TestNothingIsLostUnderKill9(t *testing.T) {
	kills := 300
	if testing.Short() {
		kills = 25
	}
	path := filepath.Join(t.TempDir(), "messages.db")
	w := newWorkers(t, seven())
	w.start(4 * time.Millisecond)
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	for i := range kills {
		r := spawn(t, path)
		if rng.IntN(10) > 0 {
			select {
			case <-r.asked[-1]:
			case <-r.gone:
				t.Fatalf("the adapter did not start after kill %d: %v", i, r.cmd.Wait())
			}
			w.set(r)
		}
		time.Sleep(time.Duration(rng.Int64N(int64(40 * time.Millisecond))))
		w.set(nil)
		r.kill()
	}
	// The rest is received from the same store, opened here.
	a, err := Open(t.Context(), Config{Path: path, Policy: seven(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	w.finish(a)
	channels, dead := everything(t, a)
	w.judge(t, channels, dead)
}

// finish stops the senders and waits until everything queued is acknowledged or dead.
func (w *workers) finish(a *Adapter) {
	w.set(a)
	close(w.stopSending)
	w.senders.Wait()
	for {
		qs, err := a.Queues(context.Background())
		if err != nil {
			w.t.Error(err)
		}
		rest := 0
		for _, q := range qs {
			rest += q.Queued
		}
		if rest == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	close(w.stopReceiving)
	w.receivers.Wait()
}
