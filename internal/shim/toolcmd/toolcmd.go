// Package toolcmd is the runtime's side of tools: `bulkhead-shim tool`, by which
// programs and people call a tool and list them, and `bulkhead-shim mcp`, an MCP
// server of the stdio form for clients that start theirs as a program. All the
// work is the gateway's (docs/contracts/tools.md).
package toolcmd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/shim/ask"
	"bulkhead/internal/wire"
)

const usage = `usage: bulkhead tool COMMAND, inside the runtime of an agent that has tools

  list                 the tools that this agent may call, with the schema of their input
  call NAME [JSON|-]   call one; - reads the input from standard input

Answers are JSON on standard output. Exit codes: 0 done, 1 failed, 2 bad input, 4 refused.
`

// maxInput bounds what is read from standard input; the gateway refuses less.
const maxInput = 256 << 20

func misuse(format string, args ...any) error {
	return &ask.Misuse{Err: fmt.Errorf(format, args...), Help: "bulkhead tool --help"}
}

// Main is `bulkhead-shim tool`. It returns the exit code.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	if len(args) == 0 || args[0] == "--help" || args[0] == "-h" || args[0] == "help" {
		fmt.Print(usage)
		return wire.ExitOK
	}
	out, err := run(ctx, args)
	if err == nil {
		_, _ = os.Stdout.Write(out)
		return wire.ExitOK
	}
	fmt.Fprintln(os.Stderr, "error:", err)
	return ask.ExitCode(err)
}

func run(ctx context.Context, args []string) ([]byte, error) {
	g, err := ask.FromEnvironment()
	if err != nil {
		return nil, err
	}
	switch {
	case args[0] == "list" && len(args) == 1:
		return g.Call(ctx, "GET", "/v1/tools", nil)
	case args[0] == "call" && (len(args) == 2 || len(args) == 3):
		input := json.RawMessage("{}")
		if len(args) == 3 {
			input = json.RawMessage(args[2])
		}
		if string(input) == "-" {
			if input, err = io.ReadAll(io.LimitReader(os.Stdin, maxInput)); err != nil {
				return nil, fmt.Errorf("standard input: %w", err)
			}
		}
		if !json.Valid(input) {
			return nil, misuse("the input is not JSON, like '{\"key\": \"a\"}'")
		}
		return g.Call(ctx, "POST", "/v1/tools/"+url.PathEscape(args[1]), input)
	}
	return nil, misuse("%q is not a command, or has other words", strings.Join(args, " "))
}
