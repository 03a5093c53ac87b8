// Command bulkhead-shim is what runs closest to an agent: the launcher of an
// agent's containers, PID 1 inside them, what comes before that under Podman,
// and `msg`, by which agents send and receive messages.
package main

import (
	"fmt"
	"os"

	"bulkhead/internal/engine/cell/stage2"
	"bulkhead/internal/engine/launcher"
	"bulkhead/internal/engine/podman"
	"bulkhead/internal/shim"
	"bulkhead/internal/shim/message"
)

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case podman.RunscWord:
			os.Exit(podman.RunscMain(os.Args[2:]))
		case "stage2":
			os.Exit(stage2.Main(os.Args[2:]))
		case "launcher":
			os.Exit(launcher.Main())
		case "init":
			os.Exit(shim.Main())
		case "msg":
			os.Exit(message.Main(os.Args[2:]))
		}
	}
	fmt.Fprintln(os.Stderr, "usage: bulkhead-shim stage2|launcher|init (started by Bulkhead itself), or bulkhead-shim msg --help")
	os.Exit(2)
}
