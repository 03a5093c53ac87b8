// Command bulkhead-serve holds the servers that speak to agents:
//
//	bulkhead-serve gateway   one per agent: everything its runtime can reach
//	bulkhead-serve adapter   one per team: messages between its agents
//	bulkhead-serve control   one per host: tokens
//	bulkhead-serve front     one per host: who shows a token is passed on to its agent's gateway
//	bulkhead-serve topics    one per host: what agents publish for each other
//	bulkhead-serve audit     one per host: records that nobody changes
//	bulkhead-serve repair    mends what a stopped adapter holds, and ends
//
// They are started by the warden. A gateway finds its listening socket on
// descriptor 3 and its config (internal/gateway.Config, JSON) on descriptor 4,
// and with takesGrants the warden's listening socket on descriptor 5. An
// adapter finds its config (internal/adapter/protocol.Config) on descriptor 3
// and its listening sockets from 4 on. Records go to standard output, one JSON
// line each, faults to standard error. Control, front, audit and topics find their
// descriptors as internal/hub says.
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
	"bulkhead/internal/trim"
	"bulkhead/internal/wire"
)

// Descriptors that the warden passes to a gateway.
const (
	listenFD = 3
	configFD = 4
	grantsFD = 5
)

// maxConfig bounds the config: a long egress list is some 100 KiB.
const maxConfig = 8 << 20

func main() {
	defer trim.Started()()
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

var errUsage = errors.New("usage: bulkhead-serve gateway|adapter|control|front|topics|audit|repair, started by the warden with sockets and a config on descriptors from 3 on")

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "gateway":
		return runGateway(ctx)
	case len(args) == 1 && args[0] == "adapter":
		return runAdapter(ctx)
	case len(args) == 1 && args[0] == "control":
		return runControl(ctx)
	case len(args) == 1 && args[0] == "front":
		return runFront(ctx)
	case len(args) == 1 && args[0] == "topics":
		return runTopics(ctx)
	case len(args) == 1 && args[0] == "audit":
		return runAudit(ctx)
	case len(args) == 1 && args[0] == "repair":
		return runRepair(ctx)
	}
	return errUsage
}

func runGateway(ctx context.Context) error {
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
	gateway.Tune(&cfg)
	return gateway.Serve(ctx, u, cfg, os.Stdout)
}
