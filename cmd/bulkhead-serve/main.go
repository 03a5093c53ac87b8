// Command bulkhead-serve holds the servers that speak to agents:
//
//	bulkhead-serve gateway   one per agent: everything its runtime can reach
//
// It is started by the warden with a listening socket on descriptor 3 and its
// config (internal/gateway.Config, JSON) on descriptor 4, and with
// takesGrants the warden's listening socket on descriptor 5. Records go to
// standard output, one JSON line each.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"bulkhead/internal/gateway"
	"bulkhead/internal/passed"
	"bulkhead/internal/wire"
)

// Descriptors that the warden passes.
const (
	listenFD = 3
	configFD = 4
	grantsFD = 5
)

// maxConfig bounds the config: a long egress list is some 100 KiB.
const maxConfig = 8 << 20

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	err := run(ctx, os.Args[1:])
	stop()
	if errors.Is(err, passed.ErrMissing) {
		err = fmt.Errorf("%w; %w", err, errUsage)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bulkhead-serve:", err)
		if errors.Is(err, errUsage) {
			os.Exit(wire.ExitBadInput)
		}
		os.Exit(wire.ExitFailed)
	}
}

var errUsage = errors.New("usage: bulkhead-serve gateway, started by the warden with a listening socket on descriptor 3 and a config on 4")

func run(ctx context.Context, args []string) error {
	if len(args) != 1 || args[0] != "gateway" {
		return errUsage
	}
	var cfg gateway.Config
	if err := passed.Config(configFD, maxConfig, &cfg); err != nil {
		return err
	}
	u, err := passed.Listener(listenFD)
	if err != nil {
		return err
	}
	if cfg.TakesGrants {
		if cfg.GrantsListener, err = passed.Listener(grantsFD); err != nil {
			return err
		}
	}
	gateway.Tune()
	return gateway.Serve(ctx, u, cfg, os.Stdout)
}
