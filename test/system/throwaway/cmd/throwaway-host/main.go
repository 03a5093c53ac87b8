// Command throwaway-host runs a command in a throwaway host and exits as it
// did:
//
//	throwaway-host [-bind PATH]... COMMAND [ARGUMENT...]
//
// The demo and CI use it. See package throwaway for what such a host is.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"bulkhead/test/system/throwaway"
)

func main() {
	var opts []throwaway.Option
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: throwaway-host [-bind PATH]... COMMAND [ARGUMENT...]")
		flag.PrintDefaults()
	}
	flag.Func("bind", "keep a `path` of the machine below /tmp or /run visible, read-only", func(path string) error {
		opts = append(opts, throwaway.Bind(path))
		return nil
	})
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	os.Exit(run(flag.Args(), opts))
}

func run(argv []string, opts []throwaway.Option) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := throwaway.Command{Argv: argv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Options: opts}.Run(ctx)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode()
	}
	fmt.Fprintln(os.Stderr, err)
	return 125
}
