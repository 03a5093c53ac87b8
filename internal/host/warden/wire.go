package warden

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"bulkhead/internal/wire"
)

// dialWire connects and exchanges hellos.
func dialWire(ctx context.Context, path, protocol string, version int) (*wire.Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("warden: %w", err)
	}
	u, ok := nc.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("warden: not a unix socket"), nc.Close())
	}
	c := wire.New(u)
	if _, err := c.Greet(protocol, version); err != nil {
		return nil, errors.Join(fmt.Errorf("warden: %s: %w", path, err), c.Close())
	}
	return c, nil
}

// ask sends one request and decodes its answer.
func ask(ctx context.Context, c *wire.Conn, verb string, req, into any) error {
	stop := context.AfterFunc(ctx, func() { _ = c.Unix().SetDeadline(time.Now()) })
	defer stop()
	if err := c.Send(1, verb, req); err != nil {
		return err
	}
	m, files, err := c.Recv()
	closeFiles(files)
	if err != nil {
		return err
	}
	return decode(m, into)
}

// decode takes the body of an answer, or the error that it carries.
func decode(m wire.Message, into any) error {
	if m.Verb == wire.VerbError {
		var f wire.Failure
		if err := json.Unmarshal(m.Body, &f); err != nil {
			return fmt.Errorf("warden: unreadable error: %w", err)
		}
		return &fault{f}
	}
	if err := json.Unmarshal(m.Body, into); err != nil {
		return fmt.Errorf("warden: answer to %s: %w", m.Verb, err)
	}
	return nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
