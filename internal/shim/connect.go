package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"bulkhead/internal/wire"
)

// connectTimeout bounds a connection to a port of the container's own
// loopback, which answers at once or is full.
const connectTimeout = 5 * time.Second

// connect opens a connection to a listed port of this container's loopback
// and passes the socket on: data flows past the shim.
//
// A shim that is relayed copies between the two; files is the other end.
func (s *shim) connect(conn *wire.Conn, m wire.Message, files []*os.File) (err error) {
	taken := false
	defer func() {
		if !taken {
			closeAll(files)
		}
	}()
	var r wire.ConnectRequest
	if err := json.Unmarshal(m.Body, &r); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if !slices.Contains(s.cfg.Ports, r.Port) {
		return fmt.Errorf("connect: port %d is not among the ports of this agent", r.Port)
	}
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	var d net.Dialer
	port := strconv.Itoa(int(r.Port))
	c, err := d.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		six, sixErr := d.DialContext(ctx, "tcp6", net.JoinHostPort("::1", port))
		if sixErr != nil {
			return fmt.Errorf("connect: nothing inside answers on port %d: %w", r.Port, err)
		}
		c = six
	}
	defer func() { _ = c.Close() }()
	if s.cfg.Relayed {
		taken = true
		if err := passed(files, 1); err != nil {
			return err
		}
		far, err := unixConn(files[0])
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		if err := conn.Send(m.ID, wire.VerbConnected, struct{}{}); err != nil {
			return errors.Join(err, far.Close())
		}
		join(c.(*net.TCPConn), far) // until both have ended; the connection carries nothing else
		return nil
	}
	t, ok := c.(*net.TCPConn)
	if !ok { // "tcp" gives nothing else
		return errors.New("connect: not a TCP socket")
	}
	f, err := t.File()
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = f.Close() }()
	return conn.Send(m.ID, wire.VerbConnected, struct{}{}, f)
}
