package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"bulkhead/internal/record"
)

// exchange is one plain request and its answer.
type exchange struct {
	p     *Proxy
	c     *clientConn
	r     *http.Request
	t     target
	ahead []byte // where what the client says meanwhile is read to
	read  int    // how much of it came

	up    *upConn
	out   *bufio.Writer // to the client
	watch *watch        // nil: nobody waits for long
}

var writers = sync.Pool{New: func() any { return bufio.NewWriter(nil) }}

// do says whether the client may send its next request. Otherwise its
// connection is to be closed.
func (x *exchange) do() (keep bool) {
	x.out = writers.Get().(*bufio.Writer)
	x.out.Reset(x.c.stream)
	defer func() {
		x.out.Reset(nil)
		writers.Put(x.out)
	}()
	to := x.t.String()
	x.p.cfg.Record(to, record.Allowed, nil)
	res, err := x.ask(to) //nolint:bodyclose // answer reads it to its end, or the connection is closed
	if err != nil {
		keep = !x.gone() && !errors.Is(err, context.Canceled) && x.refuse(err)
		return x.unwatch() && keep
	}
	whole, keep := x.answer(res)
	here := x.unwatch() // before another exchange can have the connection
	if whole && here && !res.Close && res.ProtoMajor == 1 && x.up.r.Buffered() == 0 {
		x.p.upstreams.keep(x.up)
	} else {
		x.up.close()
	}
	return here && keep
}

// ask sends the request and gives the final answer's head. A request that a
// kept connection took without a byte in return is sent once more by a new
// one: the far side had closed it, and GET and HEAD may be repeated (RFC 9110,
// 9.2.2).
func (x *exchange) ask(to string) (*http.Response, error) {
	if x.up = x.kept(to); x.up != nil {
		res, err := x.head()
		if err == nil || x.up.heard || x.gone() {
			return res, err
		}
	}
	if err := x.dial(to); err != nil {
		return nil, err
	}
	return x.head()
}

// kept gives a connection to the target that stands already, or nil.
func (x *exchange) kept(to string) *upConn {
	if c := x.c.spared(); c != nil {
		if u, err := x.p.upstreams.add(c, to); err == nil {
			return u
		}
	}
	return x.p.upstreams.take(to)
}

// dial connects; a client that leaves calls it off.
func (x *exchange) dial(to string) error {
	ctx, cancel := context.WithCancel(x.p.ctx)
	defer cancel()
	x.watchClient(cancel)
	conn, err := x.p.cfg.Dial(ctx, x.t.host.String(), x.t.port)
	if err != nil {
		return err
	}
	x.up, err = x.p.upstreams.add(conn, to)
	return err
}

// head sends the request and reads answers until there is a final one. When
// there is an error the connection is closed.
func (x *exchange) head() (res *http.Response, err error) {
	u := x.up
	defer func() {
		if err != nil {
			u.close()
		}
	}()
	if x.watch != nil {
		x.watch.onGone(func() { _ = u.conn.Close() })
	}
	if err := u.begin(x); err != nil {
		return nil, err
	}
	u.composed.Reset()
	if err := compose(&u.composed, x.r, x.t); err != nil {
		return nil, err
	}
	if err := u.send(); err != nil {
		return nil, err
	}
	for {
		res, err := http.ReadResponse(u.r, x.r)
		if err != nil {
			return nil, err
		}
		switch {
		case res.StatusCode == http.StatusSwitchingProtocols:
			return nil, errors.New("it switched to another protocol, which nobody asked for")
		case res.StatusCode < 100:
			return nil, fmt.Errorf("its status is %03d", res.StatusCode)
		case res.StatusCode >= 200:
			u.head = -1
			return res, nil
		}
		if err := x.interim(res); err != nil {
			return nil, err
		}
		u.head = maxAnswer
	}
}

// flush sends what was not sent yet.
func (x *exchange) flush() error {
	if x.out.Buffered() == 0 {
		return nil
	}
	return x.out.Flush()
}

// refuse tells the client why there is no answer.
func (x *exchange) refuse(err error) (keep bool) {
	r := x.p.reasonFor(x.t, err)
	x.p.recordReason(r.What, r)
	status, h, body := refusal(r)
	if x.start(status, h, int64(len(body)), nil) != nil {
		return false
	}
	if x.r.Method != http.MethodHead {
		_, _ = x.out.Write(body)
	}
	return x.out.Flush() == nil && !x.r.Close
}

// answer passes an answer on. whole says that all of it was read, keep that
// the client can tell where it ended.
func (x *exchange) answer(res *http.Response) (whole, keep bool) {
	removeHopByHop(res.Header)
	removeHopByHop(res.Trailer) // as far as it is announced
	length, bare := res.ContentLength, x.r.Method == http.MethodHead
	if res.StatusCode == http.StatusNoContent || res.StatusCode == http.StatusNotModified {
		length, bare = none, true
	}
	if bare && length < 0 {
		length = none // it would have been chunks
	}
	if x.start(res.StatusCode, res.Header, length, res.Trailer) != nil {
		return false, false
	}
	if !bare {
		if err := x.body(res); err != nil {
			return false, false
		}
	}
	return true, x.out.Flush() == nil && !x.r.Close
}

// body copies an answer's body as it comes.
func (x *exchange) body(res *http.Response) error {
	buffers := &x.p.buffers
	if n := res.ContentLength; n >= 0 && n <= smallBuffer {
		buffers = &x.p.small
	}
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	var to io.Writer = x.out
	if res.ContentLength < 0 {
		to = chunks{x.out}
	}
	for {
		n, err := res.Body.Read(*b)
		if n > 0 {
			if _, werr := to.Write((*b)[:n]); werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if res.ContentLength < 0 {
		return x.trailer(res.Trailer)
	}
	return nil
}
