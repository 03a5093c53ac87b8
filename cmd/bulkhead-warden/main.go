// Command bulkhead-warden is the one root process of a host: it makes and
// supervises agents. `bulkhead up` starts it, or systemd does.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"bulkhead/internal/evidence"
	"bulkhead/internal/host/warden"
	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
)

// build is the digest of the source, set by the linker.
var build = "dev"

func main() {
	if len(os.Args) == 2 && os.Args[1] == evidence.DecoyArg {
		evidence.DecoyMain()
	}
	stay := flag.Bool("stay", false, "keep running when no team is left (for systemd)")
	verbose := flag.Bool("verbose", false, "log every request")
	flag.Parse()
	os.Exit(run(*stay, *verbose))
}

func run(stay, verbose bool) int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "error: bulkhead-warden makes accounts, rules and namespaces and needs root\n  to mend: sudo bulkhead up")
		return wire.ExitRefused
	}
	// It mostly waits: trade time for memory.
	debug.SetGCPercent(50)
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return wire.ExitFailed
	}
	// A child that ends, or an operator who leaves, must not end the warden.
	signal.Ignore(unix.SIGPIPE, unix.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	// Every file and socket that root makes gets its mode explicitly; what is
	// left are mount points, which agents must be able to pass.
	unix.Umask(0o022)
	err = warden.Run(ctx, warden.Config{Host: layout.Default(), From: filepath.Dir(self), Stay: stay, Build: build, Log: log})
	if err != nil {
		log.Error("ended", "error", err)
		fmt.Fprintln(os.Stderr, "error:", err)
		if errors.Is(err, warden.ErrRunning) {
			return wire.ExitBusy
		}
		return wire.ExitFailed
	}
	return wire.ExitOK
}
