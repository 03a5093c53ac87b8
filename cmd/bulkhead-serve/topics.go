package main

import (
	"context"
	"os"
	"runtime/debug"

	"bulkhead/internal/hub"
	"bulkhead/internal/passed"
	"bulkhead/internal/topic/protocol"
	"bulkhead/internal/topic/server"
)

// runTopics keeps the public topics of teams.
func runTopics(ctx context.Context) error {
	var cfg protocol.Config
	if err := passed.Config(hub.ConfigFD, maxConfig, &cfg); err != nil {
		return err
	}
	ln, err := passed.Listener(hub.OperatorFD)
	if err != nil {
		return err
	}
	// As an adapter's: beneath what the warden gives it (warden, serviceLimits).
	debug.SetMemoryLimit(384 << 20)
	return server.New(cfg, os.Stdout).Serve(ctx, ln, os.Stdout)
}
