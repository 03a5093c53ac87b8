package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	frames "bulkhead/internal/adapter/protocol"
	"bulkhead/internal/deny"
	"bulkhead/internal/topic"
	"bulkhead/internal/topic/protocol"
	"bulkhead/internal/wire"
)

// Whatever a server answers, a gateway takes it for what was asked or refuses it.
func FuzzAnswer(f *testing.F) {
	f.Add(protocol.VerbMessages, []byte(`{"messages":[{"seq":1,"from":"ci","time":0,"message":{}}],"position":1,"missed":0}`))
	f.Add(protocol.VerbDenied, []byte(`{"layer":"tools","code":"tools.not_allowed"}`))
	f.Add(wire.VerbError, []byte(`{"message":"no"}`))
	f.Add("published", []byte(`{"seq":1}`))
	f.Add(protocol.VerbMessages, []byte(`{"messages":[{"message":`))
	f.Add("", []byte(``))
	f.Fuzz(func(t *testing.T, verb string, body []byte) {
		var out protocol.Messages
		err := frames.Answer(wire.Message{ID: 1, Verb: verb, Body: body}, protocol.VerbMessages, "topics", &out)
		if err == nil && (verb != protocol.VerbMessages || !json.Valid(body)) {
			t.Fatalf("%s %q was taken for messages", verb, body)
		}
	})
}

// serve answers each connection of a fake server by f.
func serve(t *testing.T, f func(*frames.Conn, int)) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "topic") //nolint:usetesting // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			u, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			w := wire.New(u)
			if _, err := w.Greet(protocol.Name, protocol.Version); err != nil {
				_ = w.Close()
				continue
			}
			m, _, err := w.Recv()
			if err != nil || w.Send(m.ID, wire.VerbOK, struct{}{}) != nil {
				_ = w.Close()
				continue
			}
			c, err := frames.NewConn(w)
			if err != nil {
				_ = w.Close()
				continue
			}
			f(c, n)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		<-done
		_ = os.RemoveAll(dir)
	})
	return filepath.Join(dir, "s")
}

// A publish whose answer was lost is sent again with the same key; a read that
// may have moved a subscription is not.
func TestWhatMayBeSentAgainIs(t *testing.T) {
	keys := make(chan string, 10)
	socket := serve(t, func(c *frames.Conn, n int) {
		m, err := c.Read()
		if err != nil {
			return
		}
		if m.Verb == protocol.VerbPublish {
			var q protocol.Publish
			_ = json.Unmarshal(m.Body, &q)
			keys <- q.Key
			if n == 1 {
				_ = c.Write(m.ID, protocol.VerbPublished, frames.Body(protocol.Published{Seq: 7}))
				_, _ = c.Read()
			}
		}
	})
	c := New(Config{Socket: socket})
	out, err := c.Publish(t.Context(), protocol.Publish{Topic: "builds", Key: "k", Message: json.RawMessage(`1`)})
	if err != nil || out.Seq != 7 || <-keys != "k" || <-keys != "k" {
		t.Errorf("%+v, %v", out, err)
	}
	_ = c.Close()
	c = New(Config{Socket: socket})
	defer func() { _ = c.Close() }()
	_, err = c.Read(t.Context(), protocol.Read{Topic: "builds", Subscription: "s", Limit: 1})
	var r *deny.Reason
	if !errors.As(err, &r) || r.Code != deny.ToolUnavailable {
		t.Errorf("a read whose answer was lost: %v", err)
	}
}

// News of a topic, and the end of a connection, wake who waits for it.
func TestNewsWakes(t *testing.T) {
	told := make(chan struct{})
	socket := serve(t, func(c *frames.Conn, n int) {
		m, err := c.Read()
		if err != nil {
			return
		}
		_ = c.Write(m.ID, protocol.VerbTopics, frames.Body(protocol.Topics{}))
		if n == 0 {
			<-told
			_ = c.Write(0, protocol.VerbNews, frames.Body(protocol.News{Topics: []string{"builds"}}))
			<-told
		}
	})
	c := New(Config{Socket: socket})
	defer func() { _ = c.Close() }()
	if _, err := c.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	builds, other := c.News("builds"), c.News("other")
	told <- struct{}{}
	<-builds
	select {
	case <-other:
		t.Error("news of one topic woke who waits for another")
	default:
	}
	told <- struct{}{} // the connection ends
	<-other
}

// An agent asks for the news of whatever name it likes: that takes no memory for ever.
func TestNewsOfMadeUpTopicsAreForgotten(t *testing.T) {
	c := New(Config{})
	first := c.News("builds")
	for i := range 10 * topic.MaxTopics {
		c.News(fmt.Sprint("t", i))
	}
	if n := len(c.news); n > topic.MaxTopics {
		t.Fatalf("%d topics are waited for, more than there can be (%d)", n, topic.MaxTopics)
	}
	<-first // who waited for it looks again
}
