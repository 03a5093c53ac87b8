// Command bulkhead-shim is what runs closest to an agent: the launcher of an
// agent's containers, and PID 1 inside them.
package main

import (
	"fmt"
	"os"

	"bulkhead/internal/engine/launcher"
	"bulkhead/internal/shim"
)

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "launcher":
			os.Exit(launcher.Main())
		case "init":
			os.Exit(shim.Main())
		}
	}
	fmt.Fprintln(os.Stderr, "usage: bulkhead-shim launcher|init (started by Bulkhead itself)")
	os.Exit(2)
}
