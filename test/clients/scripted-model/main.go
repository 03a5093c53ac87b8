// Command scripted-model is a model server whose answers are written in the
// prompt, so that a real agent can be driven without a real model.
//
//	scripted-model [-listen 127.0.0.1:18080] [-log FILE]
//
// It speaks, streamed or not, as far as agents use them, the APIs of OpenAI
// (chat completions and responses) and of Anthropic (messages), told apart by
// the path. Each line of the user's messages of the form
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
	"strings"
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

// object is a JSON object that is sent.
type object = map[string]any

// event is a server-sent event; without a name it has only data.
type event struct {
	name string
	data object
}

// api is one way of asking a model.
type api interface {
	read(body []byte) (*conversation, error)
	whole(id string, c *conversation, a answer) object
	events(id string, c *conversation, a answer) []event
	end() string // what follows the last event
}

// apis by the end of the path; some agents put a version before it, some do not.
var apis = map[string]api{"/chat/completions": chat{}, "/responses": responses{}, "/messages": messages{}}

func apiOf(path string) api {
	for suffix, a := range apis {
		if strings.HasSuffix(path, suffix) {
			return a
		}
	}
	return nil
}

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		writeJSON(w, object{"object": "list", "data": []object{{"id": "scripted-1", "object": "model", "owned_by": "bulkhead"}}})
		return
	}
	speaks := apiOf(r.URL.Path)
	if speaks == nil {
		http.Error(w, "no such API: "+r.URL.Path, http.StatusNotFound)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c, err := speaks.read(body)
	if err != nil {
		http.Error(w, "not a conversation: "+err.Error(), http.StatusBadRequest)
		return
	}
	a := c.answer()
	id := m.record(r, c, a)
	if c.Stream {
		stream(w, speaks.events(id, c, a), speaks.end())
	} else {
		writeJSON(w, speaks.whole(id, c, a))
	}
}

// stream sends server-sent events.
func stream(w http.ResponseWriter, events []event, end string) {
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w)
	for _, e := range events {
		text, err := json.Marshal(e.data)
		if err != nil {
			return
		}
		if e.name != "" {
			text = fmt.Appendf(nil, "event: %s\ndata: %s\n\n", e.name, text)
		} else {
			text = fmt.Appendf(nil, "data: %s\n\n", text)
		}
		if _, err := w.Write(text); err != nil {
			return // the client went away
		}
		_ = flush.Flush()
	}
	_, _ = io.WriteString(w, end)
}

// record logs a request and gives it an id.
func (m *model) record(r *http.Request, c *conversation, a answer) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count++
	line, err := json.Marshal(object{"time": time.Now().UTC(), "path": r.URL.Path, "host": r.Host, "agent": r.UserAgent(), "messages": c.Entries, "tools": c.toolNames(), "tool": a.Tool, "text": a.Text})
	if err == nil {
		_, _ = fmt.Fprintf(m.log, "%s\n", line)
	}
	return fmt.Sprintf("scripted-%d", m.count)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client went away: nobody to tell
}
