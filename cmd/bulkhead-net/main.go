// Command bulkhead-net holds the two small programs that live in the host's
// network namespace, each bound by nftables to what its id may reach:
//
//	bulkhead-net dialer     one per agent: connects, and passes the sockets on
//	bulkhead-net resolver   one per host: asks DNS for the names of manifests
//
// Both are started by the warden with a listening socket on descriptor 3. The
// dialer reads its config (internal/dialer.Config, JSON) from descriptor 4.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"bulkhead/internal/confine"
	"bulkhead/internal/dialer"
	"bulkhead/internal/passed"
	"bulkhead/internal/resolver"
	"bulkhead/internal/trim"
	"bulkhead/internal/wire"
)

// Descriptors that the warden passes.
const (
	listenFD = 3
	configFD = 4
)

// maxConfig bounds the config; it is two short fields.
const maxConfig = 64 << 10

func main() {
	// One of these runs for each agent: trade time for memory.
	defer trim.Starting(50)()
	debug.SetMemoryLimit(32 << 20)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	err := run(ctx, os.Args[1:])
	stop()
	if errors.Is(err, passed.ErrMissing) {
		err = fmt.Errorf("%w; %w", err, errUsage)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bulkhead-net:", err)
		if errors.Is(err, errUsage) {
			os.Exit(wire.ExitBadInput)
		}
		os.Exit(wire.ExitFailed)
	}
}

var errUsage = errors.New("usage: bulkhead-net dialer|resolver, started by the warden with a listening socket on descriptor 3")

func run(ctx context.Context, args []string) error {
	if len(args) != 1 || args[0] != "dialer" && args[0] != "resolver" {
		return errUsage
	}
	// Neither ever starts a program: from here on neither can, whatever takes
	// it over. Before anything is read from a peer.
	if err := confine.Seal(); err != nil {
		return err
	}
	switch args[0] {
	case "dialer":
		var cfg dialer.Config
		if err := passed.Config(configFD, maxConfig, &cfg); err != nil {
			return err
		}
		ln, err := passed.Listener(listenFD)
		if err != nil {
			return err
		}
		return dialer.Serve(ctx, ln, cfg)
	case "resolver":
		ln, err := passed.Listener(listenFD)
		if err != nil {
			return err
		}
		return resolver.Serve(ctx, ln, resolver.Config{Client: 0})
	}
	return errUsage
}
