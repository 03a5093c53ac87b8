// Package passed takes what the warden passes to a program at its start:
// listening sockets and a config, by descriptor number.
package passed

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
)

// ErrMissing is wrapped when a descriptor is not what should have been passed:
// the program was started by somebody else.
var ErrMissing = errors.New("not started by the warden")

// Listener takes the listening unix socket that is descriptor fd. Closing it
// leaves the path alone, which is the warden's.
func Listener(fd int) (*net.UnixListener, error) {
	f := os.NewFile(uintptr(fd), "listener") // #nosec G115 -- a descriptor
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("descriptor %d is not a listening socket: %w (%w)", fd, err, ErrMissing)
	}
	_ = f.Close()
	u, ok := ln.(*net.UnixListener)
	if !ok {
		_ = ln.Close()
		return nil, fmt.Errorf("descriptor %d is not a unix socket (%w)", fd, ErrMissing)
	}
	u.SetUnlinkOnClose(false)
	return u, nil
}

// Config decodes the JSON in the file or pipe that is descriptor fd, of at most
// limit bytes: what is longer does not decode.
func Config(fd int, limit int64, into any) error {
	f := os.NewFile(uintptr(fd), "config") // #nosec G115 -- a descriptor
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.NewSectionReader(f, 0, limit)) // by offset: a restart reads the same file again
	if err != nil {
		text, err = io.ReadAll(io.LimitReader(f, limit)) // a pipe has no offsets
	}
	if err != nil {
		return fmt.Errorf("config on descriptor %d: %w (%w)", fd, err, ErrMissing)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("config on descriptor %d: %w", fd, err)
	}
	return nil
}
