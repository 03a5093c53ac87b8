// Command scripted-model is a model server whose answers are written in the
// prompt, so that a real agent can be driven without a real model.
//
//	scripted-model [-listen 127.0.0.1:18080] [-log FILE]
//
// It speaks the chat completions of the OpenAI API, streamed or not, as far as
// agents use them. Each line of the user's messages of the form
//
//	CALL tool {"argument": "json"}
//
// becomes one tool call, in order, one per turn of the conversation. When all
// have their results, the answer is "FINAL: " and the results, joined by " | ".
// Nothing of it decides anything: what the agent does is the script.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:18080", "`address` to listen on")
	logFile := flag.String("log", "", "append one JSON line per request to this `file`")
	flag.Parse()
	if err := serve(*listen, *logFile); err != nil {
		fmt.Fprintln(os.Stderr, "scripted-model:", err)
		os.Exit(1)
	}
}

func serve(listen, logFile string) error {
	log := io.Discard
	if logFile != "" {
		f, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		log = f
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	s := &http.Server{Handler: &model{log: log}, ReadHeaderTimeout: 10 * time.Second}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	done := make(chan struct{})
	go func() { // ends with ctx, waited for below
		defer close(done)
		<-ctx.Done()
		_ = s.Close()
	}()
	fmt.Println("scripted-model: listening on", l.Addr())
	err = s.Serve(l)
	stop()
	<-done
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// model answers requests.
type model struct {
	mu    sync.Mutex // guards log and count
	log   io.Writer
	count int
}

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		writeJSON(w, map[string]any{"object": "list", "data": []map[string]any{{"id": "scripted-1", "object": "model", "owned_by": "bulkhead"}}})
		return
	}
	var c conversation
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<20)).Decode(&c); err != nil {
		http.Error(w, "not a conversation: "+err.Error(), http.StatusBadRequest)
		return
	}
	a := c.answer()
	id := m.record(r, &c, a)
	if c.Stream {
		a.stream(w, id, c.Model)
	} else {
		writeJSON(w, a.whole(id, c.Model))
	}
}

// record logs a request and gives it an id.
func (m *model) record(r *http.Request, c *conversation, a answer) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count++
	line, err := json.Marshal(map[string]any{"time": time.Now().UTC(), "path": r.URL.Path, "host": r.Host, "agent": r.UserAgent(), "messages": len(c.Messages), "tool": a.Tool, "text": a.Text})
	if err == nil {
		_, _ = fmt.Fprintf(m.log, "%s\n", line)
	}
	return fmt.Sprintf("scripted-%d", m.count)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client went away: nobody to tell
}
