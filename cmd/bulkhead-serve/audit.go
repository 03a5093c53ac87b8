package main

import (
	"context"
	"errors"
	"os"

	"bulkhead/internal/audit"
	"bulkhead/internal/audit/protocol"
	"bulkhead/internal/hub"
	"bulkhead/internal/passed"
)

// runAudit keeps records that nobody changes.
func runAudit(ctx context.Context) (err error) {
	var cfg protocol.Config
	if err := passed.Config(hub.ConfigFD, maxConfig, &cfg); err != nil {
		return err
	}
	ln, err := passed.Listener(hub.OperatorFD)
	if err != nil {
		return err
	}
	l, err := audit.Open(cfg.Data, cfg.Witnesses)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	return audit.Serve(ctx, l, ln, os.Stdout)
}
