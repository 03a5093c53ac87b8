package message

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"bulkhead/internal/engine"
)

// A gateway's answers, over a real socket; internal/gateway/messages has the
// endpoints themselves.
func fakeQueue(t *testing.T, bodies ...string) (socket string, settled <-chan string) {
	t.Helper()
	said := make(chan string, 10)
	var mu sync.Mutex
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/messages:receive", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer tool" {
			t.Errorf("asked with %q", r.Header.Get("Authorization"))
		}
		mu.Lock()
		defer mu.Unlock()
		if len(bodies) == 0 {
			mu.Unlock()
			<-r.Context().Done()
			mu.Lock()
			return
		}
		_, _ = fmt.Fprintf(w, `{"deliveries":[{"idempotency_key":"k","channel_sequence_id":7,"from":"pm","channel":"@a+pm","type":"note","body":%s,"lease":"l"}]}`, bodies[0])
		bodies = bodies[1:]
	})
	for _, verb := range []string{"ack", "refuse"} {
		mux.HandleFunc("POST /v1/messages:"+verb, func(w http.ResponseWriter, r *http.Request) {
			text, _ := io.ReadAll(r.Body)
			said <- verb + " " + string(text)
			_, _ = io.WriteString(w, `{"results":[{"status":200}]}`)
		})
	}
	socket = filepath.Join(t.TempDir(), "g.sock")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: ln, Config: &http.Server{Handler: mux}}
	s.Start()
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return socket, said
}

func TestAHookThatAnswersAcknowledgesAndOneThatFailsRefuses(t *testing.T) {
	socket, settled := fakeQueue(t, `"do it"`, `{"a":1}`)
	status := []int{202, 500}
	got := make(chan *http.Request, 4)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct{ Message, IdempotencyKey string }
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.IdempotencyKey != "k" || q.Message == "" {
			t.Errorf("%+v, %v", q, err)
		}
		got <- r
		w.WriteHeader(status[0])
		status = status[1:]
	}))
	defer hook.Close()
	_, port, _ := net.SplitHostPort(hook.Listener.Addr().String())
	n, _ := strconv.ParseUint(port, 10, 16)
	secret := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(secret, []byte("hook secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		NewPusher(socket, "tool", engine.Push{Port: uint16(n), Path: "/hooks/agent", TokenFile: secret}).Run(ctx)
	})
	defer func() { cancel(); work.Wait() }()
	r := <-got
	if r.URL.Path != "/hooks/agent" || r.Header.Get("Idempotency-Key") != "k" || r.Header.Get("Authorization") != "Bearer hook secret" {
		t.Errorf("%s %v", r.URL, r.Header)
	}
	if s := <-settled; s != "ack {\"leases\":[\"l\"]}\n" {
		t.Errorf("%q", s)
	}
	<-got
	if s := <-settled; s != fmt.Sprintf("refuse {\"refusals\":[{\"lease\":\"l\",\"reason\":\"POST /hooks/agent on port %d was answered 500\"}]}\n", n) {
		t.Errorf("%q", s)
	}
}

// withReplay is a body for fakeQueue that brings a message without a lease along.
func withReplay(body string) string {
	return fmt.Sprintf(`%q,"lease":"l"}],"replayed":[{"idempotency_key":"old","channel_sequence_id":5,"from":"pm","channel":"@a+pm","type":"note","body":"missed"}],"more":[{"a":1`, body)
}

// What is replayed comes to the hook first, said to be so, and a hook that does
// not take it keeps the delivery that showed the gap.
func TestWhatIsReplayedIsPushedBeforeTheDelivery(t *testing.T) {
	socket, settled := fakeQueue(t, withReplay("first"), withReplay("again"))
	status := []int{202, 202, 500}
	got := make(chan string, 4)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct{ Message, IdempotencyKey string }
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		got <- q.IdempotencyKey + " " + q.Message
		w.WriteHeader(status[0])
		status = status[1:]
	}))
	defer hook.Close()
	_, port, _ := net.SplitHostPort(hook.Listener.Addr().String())
	n, _ := strconv.ParseUint(port, 10, 16)
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { NewPusher(socket, "tool", engine.Push{Port: uint16(n), Path: "/hook"}).Run(ctx) })
	defer func() { cancel(); work.Wait() }()
	if s := <-got; !strings.HasPrefix(s, "old ") || !strings.Contains(s, "replayed because it found no place") || !strings.Contains(s, "missed") {
		t.Error(s)
	}
	if s := <-got; !strings.HasPrefix(s, "k ") || !strings.Contains(s, "first") || strings.Contains(s, "replayed") {
		t.Error(s)
	}
	if s := <-settled; s != "ack {\"leases\":[\"l\"]}\n" {
		t.Error(s)
	}
	if s := <-got; !strings.HasPrefix(s, "old ") {
		t.Error(s)
	}
	if s := <-settled; !strings.HasPrefix(s, "refuse ") || !strings.Contains(s, "message 5, which is replayed") {
		t.Error(s)
	}
}
