package client

import (
	"context"
	"fmt"
	"net"

	"bulkhead/internal/wire"
)

// Stream is a TCP connection, or a unix one that somebody relays to one.
type Stream interface {
	net.Conn
	CloseWrite() error
}

// Forward gives a connection to a port on which an agent listens, inside. The
// socket comes from the agent's side: anything but a stream socket is refused.
func (c *Client) Forward(ctx context.Context, req wire.ForwardRequest) (Stream, error) {
	files, err := c.call(ctx, wire.VerbForward, req, nil, nil)
	if err != nil {
		return nil, err
	}
	defer closeAll(files)
	if len(files) != 1 {
		return nil, c.lost(ctx, wire.VerbForward, fmt.Errorf("%d descriptors, want 1", len(files)))
	}
	conn, err := net.FileConn(files[0])
	if err != nil {
		return nil, c.lost(ctx, wire.VerbForward, err)
	}
	t, ok := conn.(Stream)
	if !ok {
		_ = conn.Close()
		return nil, c.lost(ctx, wire.VerbForward, fmt.Errorf("a %T was passed, want a stream", conn))
	}
	return t, nil
}
