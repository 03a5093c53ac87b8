// Command bulkhead-shim is what runs closest to an agent: the launcher of an
// agent's containers, PID 1 inside them, and what comes before that under Podman.
package main

import (
	"fmt"
	"os"

	"bulkhead/internal/engine/cell/stage2"
	"bulkhead/internal/engine/launcher"
	"bulkhead/internal/shim"
)

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "stage2":
			os.Exit(stage2.Main(os.Args[2:]))
		case "launcher":
			os.Exit(launcher.Main())
		case "init":
			os.Exit(shim.Main())
		}
	}
	fmt.Fprintln(os.Stderr, "usage: bulkhead-shim stage2|launcher|init (started by Bulkhead itself)")
	os.Exit(2)
}
