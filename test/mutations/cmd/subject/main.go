// Command subject is what mutations are made in: the decoy host of
// internal/evidence, or one container as an agent's. It is built from mutated
// sources; see package mutations.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/evidence"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == evidence.DecoyArg {
		evidence.DecoyMain()
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run starts the container whose Spec is on standard input, says its process
// number, and keeps it until the input ends.
func run() error {
	d := json.NewDecoder(os.Stdin)
	var spec engine.Spec
	if err := d.Decode(&spec); err != nil {
		return err
	}
	// What a container must not inherit.
	if err := syscall.Setgroups([]int{4242}); err != nil {
		return err
	}
	groups, err := cgroup.Open(cgroup.RootName)
	if err != nil {
		return err
	}
	hold, theirs, err := pipe()
	if err != nil {
		return err
	}
	p, err := cell.Start(spec, cell.Options{Cgroups: groups, Stdin: theirs})
	_ = theirs.Close()
	if err != nil {
		return errors.Join(err, hold.Close())
	}
	fmt.Println(p.PID())
	_, _ = io.Copy(io.Discard, io.MultiReader(d.Buffered(), os.Stdin))
	_ = hold.Close()
	_ = p.Signal(syscall.SIGKILL)
	_, err = p.Wait()
	return errors.Join(err, p.Close())
}

func pipe() (write, read *os.File, err error) {
	r, w, err := os.Pipe()
	return w, r, err
}
