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
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"bulkhead/internal/confine"
	"bulkhead/internal/dialer"
	"bulkhead/internal/resolver"
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
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(32 << 20)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	err := run(ctx, os.Args[1:])
	stop()
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
		if err := readConfig(&cfg); err != nil {
			return err
		}
		ln, err := listener()
		if err != nil {
			return err
		}
		return dialer.Serve(ctx, ln, cfg)
	case "resolver":
		ln, err := listener()
		if err != nil {
			return err
		}
		return resolver.Serve(ctx, ln, resolver.Config{Client: 0})
	}
	return errUsage
}

// listener takes the listening unix socket from descriptor 3.
func listener() (*net.UnixListener, error) {
	f := os.NewFile(listenFD, "listener")
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("descriptor 3 is not a listening socket: %w; %w", err, errUsage)
	}
	_ = f.Close()
	u, ok := ln.(*net.UnixListener)
	if !ok {
		_ = ln.Close()
		return nil, fmt.Errorf("descriptor 3 is not a unix socket; %w", errUsage)
	}
	u.SetUnlinkOnClose(false) // the path is the warden's
	return u, nil
}

func readConfig(into any) error {
	f := os.NewFile(configFD, "config")
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.NewSectionReader(f, 0, maxConfig)) // by offset: a restart reads the same file again
	if err != nil {
		text, err = io.ReadAll(io.LimitReader(f, maxConfig)) // a pipe has no offsets
	}
	if err != nil {
		return fmt.Errorf("config on descriptor 4: %w; %w", err, errUsage)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("config on descriptor 4: %w", err)
	}
	return nil
}
