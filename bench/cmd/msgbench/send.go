package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/bench/load"
	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/client"
	"bulkhead/internal/adapter/draftkey"
	"bulkhead/internal/tooltoken"
)

// send is the process of the senders.
func send(kind, at string, senders, batch int, d time.Duration) error {
	sender := map[string]func(string, int) (load.Send, error){"rest": rest, "frames": frames, "redis": redis, "append": appending}[kind]
	if sender == nil {
		return fmt.Errorf("there is no load %q", kind)
	}
	return load.Run(senders, batch, d, func() (load.Send, error) { return sender(at, batch) })
}

var sent atomic.Int64

// next is the recipient of the next message.
func next() string { return sink(int(sent.Add(1))) }

var linked sync.Once

// awaitLink waits until the gateway has reached its adapter: before that a send
// goes into the outbox.
func awaitLink(t *http.Transport, authorization string) error {
	q, err := http.NewRequest("GET", "http://gateway/v1/channels", nil)
	if err != nil {
		return err
	}
	q.Header.Set("Authorization", authorization)
	for range 500 {
		r, err := t.RoundTrip(q)
		if err != nil {
			return err
		}
		_ = r.Body.Close()
		if r.StatusCode == http.StatusOK {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("the gateway does not reach its adapter")
}

// rest speaks HTTP by itself, as redis speaks RESP: a general client takes more
// processor time for a request than the servers do, and the two cores are theirs as well.
func rest(at string, batch int) (load.Send, error) {
	authorization := "Bearer " + tooltoken.Of(token)
	var failed error
	linked.Do(func() {
		t := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", at)
		}}
		defer t.CloseIdleConnections()
		failed = awaitLink(t, authorization)
		first, err := post(at, authorization, adapter.MaxBatch)
		for range sinks / adapter.MaxBatch { // as reach does
			if err == nil {
				err = first()
			}
		}
		failed = errors.Join(failed, err)
	})
	if failed != nil {
		return nil, failed
	}
	return post(at, authorization, batch)
}

func post(at, authorization string, batch int) (load.Send, error) {
	c, err := net.Dial("unix", at)
	if err != nil {
		return nil, err
	}
	path, want := "/v1/messages", "HTTP/1.1 201 "
	if batch > 1 {
		path, want = "/v1/messages:batch", "HTTP/1.1 207 "
	}
	in := bufio.NewReaderSize(c, 64<<10)
	var body, all []byte
	return func() error {
		body = body[:0]
		if batch > 1 {
			body = append(body, `{"messages":[`...)
		}
		for i := range batch {
			if i > 0 {
				body = append(body, ',')
			}
			body = append(append(body, `{"idempotency_key":"`...), draftkey.New()...)
			body = append(append(body, `","to":"`...), next()...)
			body = append(append(append(body, `","type":"note","body":`...), load.Body...), '}')
		}
		if batch > 1 {
			body = append(body, "]}"...)
		}
		all = fmt.Appendf(all[:0], "POST %s HTTP/1.1\r\nHost: gateway\r\nAuthorization: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, authorization, len(body))
		all = append(all, body...)
		if _, err := c.Write(all); err != nil {
			return err
		}
		status, text, err := response(in)
		if err == nil && (!strings.HasPrefix(status, want) || batch > 1 && bytes.Count(text, []byte(`"status":201`)) != batch) {
			err = fmt.Errorf("%s %.300s", status, text)
		}
		return err
	}, nil
}

// response reads one whose length is given.
func response(in *bufio.Reader) (status string, text []byte, err error) {
	n := -1
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return "", nil, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if status == "" {
			status = string(line)
		}
		if len(line) == 0 {
			break
		}
		if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if n, err = strconv.Atoi(string(value)); err != nil {
				return "", nil, err
			}
		}
	}
	if n < 0 {
		return "", nil, errors.New(status + " without a length")
	}
	text = make([]byte, n)
	_, err = io.ReadFull(in, text)
	return status, text, err
}

var (
	one     *client.Agent
	oneOnce sync.Once
)

// reach connects to the adapter and writes to every recipient once: that a
// channel's first message makes the channel is not measured.
func reach(at string) error {
	var err error
	if one, err = client.Dial(context.Background(), at, token); err != nil {
		return err
	}
	drafts := make([]adapter.Draft, sinks)
	for i := range drafts {
		drafts[i] = adapter.Draft{IdempotencyKey: draftkey.New(), To: sink(i), Type: "note", Body: json.RawMessage(`""`)}
	}
	for _, r := range one.Send(context.Background(), "", drafts) {
		err = errors.Join(err, r.Err)
	}
	return err
}

// frames pipelines all senders over one connection, as a gateway does.
func frames(at string, batch int) (load.Send, error) {
	var err error
	oneOnce.Do(func() { err = reach(at) })
	if err != nil {
		return nil, err
	}
	return func() error {
		drafts := make([]adapter.Draft, batch)
		for i := range drafts {
			drafts[i] = adapter.Draft{IdempotencyKey: draftkey.New(), To: next(), Type: "note", Body: json.RawMessage(load.Body)}
		}
		for _, r := range one.Send(context.Background(), "", drafts) {
			if r.Err != nil {
				return r.Err
			}
		}
		return nil
	}, nil
}

var emptied sync.Once

// redis speaks RESP: a batch is pipelined commands.
func redis(at string, batch int) (load.Send, error) {
	c, err := net.Dial("unix", at)
	if err != nil {
		return nil, err
	}
	one := "*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\nb\r\n$" + strconv.Itoa(len(load.Body)) + "\r\n" + load.Body + "\r\n"
	all := []byte(strings.Repeat(one, batch))
	in := bufio.NewReader(c)
	emptied.Do(func() {
		if _, err = c.Write([]byte("*2\r\n$3\r\nDEL\r\n$1\r\ns\r\n")); err == nil {
			_, err = in.ReadString('\n')
		}
	})
	if err != nil {
		return nil, err
	}
	return func() error {
		if _, err := c.Write(all); err != nil {
			return err
		}
		for range batch {
			head, err := in.ReadString('\n')
			if err != nil || head[0] != '$' {
				return fmt.Errorf("redis: %q, %w", head, err)
			}
			if _, err := in.ReadString('\n'); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// appending is the floor: one file for each sender.
func appending(at string, _ int) (load.Send, error) {
	f, err := os.CreateTemp(at, filepath.Base("append"))
	if err != nil {
		return nil, err
	}
	_ = os.Remove(f.Name())
	text := []byte(load.Body)
	return func() error {
		if _, err := f.Write(text); err != nil {
			return err
		}
		return unix.Fdatasync(int(f.Fd())) // #nosec G115 -- a descriptor
	}, nil
}
