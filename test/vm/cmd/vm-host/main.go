// Command vm-host runs one command in a fresh virtual host of test/vm, as root,
// with a folder copied to /in, and ends with its exit code. It is for looking
// by hand at what a test saw; from the repository's root:
//
//	go run ./test/vm/cmd/vm-host -suite bookworm -in bin -- uname -a
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"bulkhead/test/vm"
)

func main() {
	suite := flag.String("suite", "trixie", "Debian's release")
	in := flag.String("in", "", "folder to copy to /in")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	exit, err := run(ctx, *suite, *in, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		exit = 125
	}
	os.Exit(exit)
}

func run(ctx context.Context, suite, in string, argv []string) (int, error) {
	image, err := vm.Open(ctx, "test/vm", suite)
	if err != nil {
		return 0, err
	}
	m, err := vm.Boot(ctx, image)
	if err != nil {
		return 0, err
	}
	defer func() { _ = m.Close() }()
	if in != "" {
		if err := m.Put(ctx, in, "/in"); err != nil {
			return 0, err
		}
	}
	return m.Run(ctx, os.Stdout, argv...)
}
