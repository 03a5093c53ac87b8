// Command bulkhead is the operator's command line.
//
// It is thin: it reads the manifest, asks the warden (internal/client) and
// shows what came back. It holds no rights of its own and decides nothing that
// the warden does not check again. Every command takes --json and then prints
// one JSON document with a schemaVersion (docs/contracts/json), or one per line
// where a command streams. Exit codes are those of docs/contracts/exit-codes.md;
// exec and run pass on the code of their process.
package main

import (
	"os"
)

// build names the build; the Makefile sets it with -ldflags -X.
var build = "dev"

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
