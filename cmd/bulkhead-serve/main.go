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
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"bulkhead/internal/gateway"
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
	if err := readConfig(&cfg); err != nil {
		return err
	}
	u, err := listener(listenFD)
	if err != nil {
		return err
	}
	if cfg.TakesGrants {
		if cfg.GrantsListener, err = listener(grantsFD); err != nil {
			return err
		}
	}
	gateway.Tune()
	return gateway.Serve(ctx, u, cfg, os.Stdout)
}

// listener takes a listening unix socket that the warden passed.
func listener(fd int) (*net.UnixListener, error) {
	f := os.NewFile(uintptr(fd), "listener") // #nosec G115 -- a constant
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("descriptor %d is not a listening socket: %w; %w", fd, err, errUsage)
	}
	_ = f.Close()
	u, ok := ln.(*net.UnixListener)
	if !ok {
		_ = ln.Close()
		return nil, fmt.Errorf("descriptor %d is not a unix socket; %w", fd, errUsage)
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
