package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
)

// exits runs a program and succeeds when it ends with exactly the code given:
//
//	exits 3 bulkhead status
func exits() {
	want, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err) // the script's own words
	}
	cmd := exec.Command(os.Args[2], os.Args[3:]...) // #nosec G204 -- the script's own words
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	var ended *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &ended) {
		panic(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != want {
		fmt.Fprintf(os.Stderr, "exit code %d, want %d\n", got, want)
		os.Exit(1)
	}
}
