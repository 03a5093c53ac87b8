package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"bulkhead/internal/front"
	"bulkhead/internal/front/protocol"
	"bulkhead/internal/hub"
	"bulkhead/internal/passed"
)

// runFront lets in who shows a token.
func runFront(ctx context.Context) error {
	var cfg protocol.Config
	if err := passed.Config(hub.ConfigFD, maxConfig, &cfg); err != nil {
		return err
	}
	operator, err := passed.Listener(hub.OperatorFD)
	if err != nil {
		return err
	}
	listeners := make([]net.Listener, len(cfg.Listeners))
	for i := range listeners {
		f := os.NewFile(uintptr(hub.FirstFD+i), "listener") // #nosec G115 -- a descriptor
		if listeners[i], err = net.FileListener(f); err != nil {
			return fmt.Errorf("descriptor %d, for %s: %w (%w)", hub.FirstFD+i, cfg.Listeners[i].Address, err, passed.ErrMissing)
		}
		_ = f.Close()
	}
	return front.New(cfg, os.Stdout).Serve(ctx, operator, listeners, os.Stdout)
}
