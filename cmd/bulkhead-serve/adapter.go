package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"time"

	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/adapter/server"
	"bulkhead/internal/adapter/store"
	"bulkhead/internal/passed"
)

// openTimeout bounds the check and the migrations of a store at its start.
const openTimeout = 10 * time.Minute

// runAdapter serves a team's messages. Until the store is open and checked the
// listeners' queues hold who connects.
func runAdapter(ctx context.Context) (err error) {
	var cfg protocol.Config
	if err := passed.Config(protocol.ConfigFD, maxConfig, &cfg); err != nil {
		return err
	}
	if err := cfg.Check(); err != nil {
		return err
	}
	listeners := make([]*net.UnixListener, len(cfg.Listeners))
	for i := range listeners {
		if listeners[i], err = passed.Listener(protocol.FirstListenerFD + i); err != nil {
			return fmt.Errorf("the socket of %s: %w", cfg.Listeners[i], err)
		}
	}
	// As in gateway.Tune: the live heap is small beside what a burst makes.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(192 << 20)
	octx, cancel := context.WithTimeout(ctx, openTimeout)
	store, err := store.Open(octx, store.Config{
		Path: cfg.Database, Policy: cfg.Policy, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	cancel()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	s, err := server.New(cfg, store, os.Stdout)
	if err != nil {
		return err
	}
	return s.Serve(ctx, listeners)
}
