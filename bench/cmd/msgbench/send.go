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
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/client"
	"bulkhead/internal/adapter/draftkey"
	"bulkhead/internal/tooltoken"
)

var body = `"` + strings.Repeat("x", 1022) + `"`

// sender sends a batch and returns when it is durable.
type sender func() error

// send is the process of the senders: it prints messages per second and the
// median time of a request, in microseconds.
func send(load, at string, senders, batch int, d time.Duration) error {
	make := map[string]func(string, int) (sender, error){"rest": rest, "frames": frames, "redis": redis, "append": appending}[load]
	if make == nil {
		return fmt.Errorf("there is no load %q", load)
	}
	var work sync.WaitGroup
	var mu sync.Mutex
	var times []time.Duration
	var failed error
	begin := time.Now()
	for range senders {
		s, err := make(at, batch)
		if err != nil {
			return err
		}
		work.Go(func() {
			var own []time.Duration
			var err error
			for err == nil && time.Since(begin) < d {
				at := time.Now()
				err = s()
				own = append(own, time.Since(at))
			}
			mu.Lock()
			defer mu.Unlock()
			times, failed = append(times, own...), errors.Join(failed, err)
		})
	}
	work.Wait()
	took := time.Since(begin)
	if failed != nil {
		return failed
	}
	slices.Sort(times)
	fmt.Println(float64(len(times)*batch)/took.Seconds(), float64(times[len(times)/2].Microseconds()))
	return nil
}

func rest(at string, batch int) (sender, error) {
	t := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", at)
	}}
	path, want := "/v1/messages", http.StatusCreated
	if batch > 1 {
		path, want = "/v1/messages:batch", http.StatusMultiStatus
	}
	authorization := "Bearer " + tooltoken.Of(token)
	var b bytes.Buffer
	return func() error {
		b.Reset()
		if batch > 1 {
			b.WriteString(`{"messages":[`)
		}
		for i := range batch {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `{"idempotency_key":"%s","channel":"all","type":"note","body":%s}`, draftkey.New(), body)
		}
		if batch > 1 {
			b.WriteString("]}")
		}
		q, err := http.NewRequest("POST", "http://gateway"+path, bytes.NewReader(b.Bytes()))
		if err != nil {
			return err
		}
		q.Header.Set("Authorization", authorization)
		r, err := t.RoundTrip(q)
		if err != nil {
			return err
		}
		text, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err == nil && (r.StatusCode != want || batch > 1 && bytes.Count(text, []byte(`"status":201`)) != batch) {
			err = fmt.Errorf("%d %.300s", r.StatusCode, text)
		}
		return err
	}, nil
}

var (
	one     *client.Agent
	oneOnce sync.Once
)

// frames pipelines all senders over one connection, as a gateway does.
func frames(at string, batch int) (sender, error) {
	var err error
	oneOnce.Do(func() { one, err = client.Dial(context.Background(), at, token) })
	if err != nil {
		return nil, err
	}
	return func() error {
		drafts := make([]adapter.Draft, batch)
		for i := range drafts {
			drafts[i] = adapter.Draft{IdempotencyKey: draftkey.New(), Channel: "all", Type: "note", Body: json.RawMessage(body)}
		}
		for _, r := range one.Send(context.Background(), "", drafts) {
			if r.Err != nil {
				return r.Err
			}
		}
		return nil
	}, nil
}

// redis speaks RESP: a batch is pipelined commands.
func redis(at string, batch int) (sender, error) {
	c, err := net.Dial("unix", at)
	if err != nil {
		return nil, err
	}
	one := "*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\nb\r\n$" + strconv.Itoa(len(body)) + "\r\n" + body + "\r\n"
	all := []byte(strings.Repeat(one, batch))
	in := bufio.NewReader(c)
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
func appending(at string, _ int) (sender, error) {
	f, err := os.CreateTemp(at, filepath.Base("append"))
	if err != nil {
		return nil, err
	}
	_ = os.Remove(f.Name())
	text := []byte(body)
	return func() error {
		if _, err := f.Write(text); err != nil {
			return err
		}
		return unix.Fdatasync(int(f.Fd())) // #nosec G115 -- a descriptor
	}, nil
}
