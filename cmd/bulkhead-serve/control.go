package main

import (
	"context"
	"errors"
	"os"

	"bulkhead/internal/control"
	"bulkhead/internal/control/protocol"
	"bulkhead/internal/hub"
	"bulkhead/internal/passed"
)

// runControl issues tokens and says which count.
func runControl(ctx context.Context) (err error) {
	var cfg protocol.Config
	if err := passed.Config(hub.ConfigFD, maxConfig, &cfg); err != nil {
		return err
	}
	ln, err := passed.Listener(hub.OperatorFD)
	if err != nil {
		return err
	}
	c, err := control.Open(cfg.Data, nil, cfg.Admins...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return control.Serve(ctx, c, ln, os.Stdout)
}
