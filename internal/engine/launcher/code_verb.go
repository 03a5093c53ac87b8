package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	"bulkhead/internal/wire"
)

// serveCode begins to run code for the gateway, by another configuration if
// there was one: what ran by that is killed.
func (s *server) serveCode(conn *wire.Conn, m wire.Message, files []*os.File) error {
	var cfg CodeConfig
	if err := json.Unmarshal(m.Body, &cfg); err != nil {
		return fmt.Errorf("launcher: code: %w", err)
	}
	if err := cfg.Check(); err != nil {
		return err
	}
	if len(files) != 1 {
		return fmt.Errorf("launcher: code: one listening socket is wanted, %d descriptors came", len(files))
	}
	ln, err := net.FileListener(files[0])
	if err != nil {
		return fmt.Errorf("launcher: code: %w", err)
	}
	u, ok := ln.(*net.UnixListener)
	if !ok {
		return errors.Join(errors.New("launcher: code: the descriptor is no unix listener"), ln.Close())
	}
	u.SetUnlinkOnClose(false)
	s.replaceCode(s.all.serveCode(cfg, u))
	return conn.Send(m.ID, verbOK, struct{}{})
}

func (s *server) replaceCode(next *codeServer) {
	s.codeMu.Lock()
	defer s.codeMu.Unlock()
	if s.code != nil {
		s.code.close()
	}
	s.code = next
}

// ServeCode has the launcher run code for whoever connects to the listening
// socket and has the gateway's id. The socket stays open for the caller.
func (c *Client) ServeCode(ctx context.Context, cfg CodeConfig, socket *os.File) error {
	return c.call(ctx, verbCode, cfg, []*os.File{socket}, func(_ wire.Message, got []*os.File) (more bool, err error) {
		closeAll(got)
		return false, nil
	})
}
