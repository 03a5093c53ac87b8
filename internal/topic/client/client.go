// Package client is a gateway's way to the public topics of its team. It keeps
// one connection, from the first request on, and makes it anew when it ends.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	frames "bulkhead/internal/adapter/protocol"
	"bulkhead/internal/deny"
	"bulkhead/internal/hub"
	"bulkhead/internal/topic"
	"bulkhead/internal/topic/protocol"
	"bulkhead/internal/wire"
)

// Bounds.
const (
	dialTime   = 10 * time.Second
	patience   = 10 * time.Second // for one request, with what it waits for a connection
	backoff    = 10 * time.Millisecond
	maxBackoff = 2 * time.Second
)

// Config is one gateway's.
type Config struct {
	Socket string // as the gateway sees it
	Token  string
	// Trouble is told why there is no connection, at most once until there was one.
	Trouble func(error)
}

// Client is used by many goroutines at once.
type Client struct {
	cfg    Config
	ctx    context.Context
	cancel context.CancelFunc
	start  sync.Once
	work   sync.WaitGroup

	mu      sync.Mutex               // guards what follows
	link    *link                    // nil: there is none
	changed chan struct{}            // closed when link changes
	news    map[string]chan struct{} // by topic: closed with the next news of it
}

// New makes a client that connects with its first request.
func New(cfg Config) *Client {
	c := &Client{cfg: cfg, changed: make(chan struct{}), news: map[string]chan struct{}{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Close ends the connection and waits for what the client started.
func (c *Client) Close() error {
	c.cancel()
	c.work.Wait()
	return nil
}

// News is closed when something may have been published in a topic since the
// call: also when the connection is another one, since what came between is not
// known, and when more topics are waited for than there can be: an agent asks for
// any name, also for those that it may not read.
func (c *Client) News(name string) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.news[name] == nil {
		if len(c.news) >= topic.MaxTopics {
			c.wakeAll()
		}
		c.news[name] = make(chan struct{})
	}
	return c.news[name]
}

func (c *Client) heard(names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		if ch := c.news[name]; ch != nil {
			close(ch)
			delete(c.news, name)
		}
	}
}

// use puts another link in force; nil: there is none.
func (c *Client) use(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.link = l
	close(c.changed)
	c.changed = make(chan struct{})
	c.wakeAll()
}

// wakeAll tells everybody who waits for news. The caller holds mu.
func (c *Client) wakeAll() {
	for name, ch := range c.news {
		close(ch)
		delete(c.news, name)
	}
}

// run keeps a connection until the client is closed.
func (c *Client) run() {
	wait, told := backoff, false
	for c.ctx.Err() == nil {
		l, err := c.dial()
		if err == nil {
			wait, told = backoff, false
			c.use(l)
			err = l.read(c)
			c.use(nil)
			l.fail(err)
		}
		if c.ctx.Err() != nil {
			return
		}
		if !told && c.cfg.Trouble != nil {
			c.cfg.Trouble(err)
			told = true
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-c.ctx.Done():
			timer.Stop()
		}
		wait = min(2*wait, maxBackoff)
	}
}

func (c *Client) dial() (*link, error) {
	ctx, cancel := context.WithTimeout(c.ctx, dialTime)
	defer cancel()
	raw, err := (&net.Dialer{}).DialContext(ctx, "unix", c.cfg.Socket)
	if err != nil {
		return nil, fmt.Errorf("topics: %w", err)
	}
	w := wire.New(raw.(*net.UnixConn))
	stop := context.AfterFunc(ctx, func() { _ = w.Unix().SetDeadline(time.Unix(1, 0)) })
	err = hub.Dial(w, protocol.Name, protocol.Version, c.cfg.Token)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("topics: %w", err), w.Close())
	}
	conn, err := frames.NewConn(w)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("topics: %w", err), w.Close())
	}
	return &link{c: conn, waiting: map[uint64]chan<- wire.Message{}}, nil
}

// errLost is wrapped by what fails with the connection: whether the request was
// done is not known.
var errLost = errors.New("the connection to the server of public topics was lost")

// ask does one request on the connection that there is, or waits for one. again
// says that a request may be sent again when the connection is lost meanwhile.
func (c *Client) ask(ctx context.Context, verb string, body any, want string, out any, again bool) error {
	c.start.Do(func() { c.work.Go(c.run) })
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		c.mu.Lock()
		l, changed := c.link, c.changed
		c.mu.Unlock()
		if l != nil {
			err := l.ask(ctx, verb, body, want, out)
			if !again || !errors.Is(err, errLost) {
				return c.outcome(ctx, err)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return c.outcome(ctx, ctx.Err())
		case <-c.ctx.Done():
			return away("the gateway is stopping")
		}
	}
}

// outcome gives every failure as a reason.
func (c *Client) outcome(ctx context.Context, err error) error {
	var r *deny.Reason
	switch {
	case err == nil || errors.As(err, &r):
		return err
	case ctx.Err() != nil:
		return away("the server of public topics did not answer in time")
	}
	return away(err.Error())
}

func away(why string) *deny.Reason {
	return &deny.Reason{
		Layer: deny.LayerTools, Code: deny.ToolUnavailable, What: topic.Prefix + "*", Why: why, RetryAfter: 1,
		Mend: "try again; when it stays, the operator finds why with `bulkhead status`",
	}
}

// Publish returns when the message is on disk. It is there once, however often
// the connection was lost, as long as its key is new.
func (c *Client) Publish(ctx context.Context, q protocol.Publish) (out protocol.Published, err error) {
	return out, c.ask(ctx, protocol.VerbPublish, q, protocol.VerbPublished, &out, true)
}

// Read gives messages. When its answer is lost, a subscription may have moved on:
// they are given again to who reads after a number.
func (c *Client) Read(ctx context.Context, q protocol.Read) (out protocol.Messages, err error) {
	return out, c.ask(ctx, protocol.VerbRead, q, protocol.VerbMessages, &out, q.After != nil)
}

// Subscribe makes a subscription, or finds it.
func (c *Client) Subscribe(ctx context.Context, q protocol.Subscribe) (out protocol.Subscribed, err error) {
	return out, c.ask(ctx, protocol.VerbSubscribe, q, protocol.VerbSubscribed, &out, true)
}

// Unsubscribe ends one.
func (c *Client) Unsubscribe(ctx context.Context, q protocol.Subscription) (out protocol.Unsubscribed, err error) {
	return out, c.ask(ctx, protocol.VerbUnsubscribe, q, protocol.VerbUnsubscribed, &out, false)
}

// List gives the topics with which this agent has to do.
func (c *Client) List(ctx context.Context) (out protocol.Topics, err error) {
	return out, c.ask(ctx, protocol.VerbList, struct{}{}, protocol.VerbTopics, &out, true)
}

// link is one connection with open requests.
type link struct {
	c *frames.Conn

	mu      sync.Mutex // guards what follows
	next    uint64
	waiting map[uint64]chan<- wire.Message
	err     error // why it ended
}

// read hands answers and news on until the connection ends.
func (l *link) read(c *Client) error {
	stop := context.AfterFunc(c.ctx, func() { _ = l.c.Close() })
	defer stop()
	for {
		m, err := l.c.Read()
		if err != nil {
			return fmt.Errorf("%w: %w", errLost, err)
		}
		if m.ID == 0 && m.Verb == protocol.VerbNews {
			var n protocol.News
			if err := json.Unmarshal(m.Body, &n); err != nil {
				return fmt.Errorf("%w: news: %w", errLost, err)
			}
			c.heard(n.Topics...)
			continue
		}
		l.mu.Lock()
		w := l.waiting[m.ID]
		delete(l.waiting, m.ID)
		l.mu.Unlock()
		if w != nil {
			w <- m // has room for it
		}
	}
}

// fail ends the connection and everything that waits for it.
func (l *link) fail(err error) {
	_ = l.c.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	for id, w := range l.waiting {
		delete(l.waiting, id)
		close(w)
	}
}

func (l *link) ask(ctx context.Context, verb string, body any, want string, out any) error {
	answer := make(chan wire.Message, 1)
	l.mu.Lock()
	if l.err != nil {
		defer l.mu.Unlock()
		return l.err
	}
	l.next++
	id := l.next
	l.waiting[id] = answer
	l.mu.Unlock()
	if err := l.c.Write(id, verb, frames.Body(body)); err != nil {
		l.forget(id)
		if errors.Is(err, wire.ErrFrame) {
			return err
		}
		return fmt.Errorf("%w: %w", errLost, err)
	}
	select {
	case m, ok := <-answer:
		if !ok {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.err
		}
		return frames.Answer(m, want, "topics", out)
	case <-ctx.Done():
		l.forget(id)
		return ctx.Err()
	}
}

func (l *link) forget(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, id)
}
