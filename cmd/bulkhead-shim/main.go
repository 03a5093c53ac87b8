// Command bulkhead-shim is what runs closest to an agent: the launcher of an
// agent's containers, PID 1 inside them, what comes before that under Podman,
// and what agents call: `msg` for messages, `tool` and `mcp` for tools. Inside a
// runtime it is on the PATH as `bulkhead`, too.
package main

import (
	"fmt"
	"os"

	"bulkhead/internal/engine/cell/stage2"
	"bulkhead/internal/engine/launcher"
	"bulkhead/internal/engine/podman"
	"bulkhead/internal/shim"
	"bulkhead/internal/shim/message"
	"bulkhead/internal/shim/toolcmd"
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
		case "tool":
			os.Exit(toolcmd.Main(os.Args[2:]))
		case "mcp":
			os.Exit(toolcmd.MCP())
		}
	}
	fmt.Fprintln(os.Stderr, "usage, inside the runtime of an agent: bulkhead msg --help, bulkhead tool --help, or bulkhead mcp; Bulkhead itself starts stage2, launcher and init")
	os.Exit(2)
}
