package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// acceptPause lets descriptors become free again.
const acceptPause = 20 * time.Millisecond

// Serve takes connections on ln and answers each on a goroutine of its own,
// until ctx ends or ln fails. It closes ln, and every connection when ctx ends,
// and returns when all are answered. A lack of descriptors is waited out.
func Serve(ctx context.Context, ln *net.UnixListener, answer func(context.Context, *Conn)) error {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	for {
		c, err := ln.AcceptUnix()
		if ctx.Err() != nil { // which closed the listener
			if err == nil {
				_ = c.Close()
			}
			return nil
		}
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ECONNABORTED) {
			time.Sleep(acceptPause)
			continue
		}
		if err != nil {
			return fmt.Errorf("wire: accept: %w", err)
		}
		work.Go(func() {
			end := context.AfterFunc(ctx, func() { _ = c.Close() })
			defer end()
			answer(ctx, New(c))
		})
	}
}
