// Command bulkhead-image is the unprivileged part of "bulkhead image" and of
// workspaces that are cloned: what
// handles bytes of strangers.
//
//	bulkhead-image fetch   gets what a recipe lists
//	bulkhead-image pull    gets an image of a registry
//	bulkhead-image build   carries out a Containerfile
//	bulkhead-image step    becomes one RUN step of it
//	bulkhead-image clone   gets a git repository for a workspace
//	bulkhead-image wayout  is the proxy through which the others reach what they may
//
// bulkhead starts it as an id that owns nothing, in an empty folder, with the
// request as JSON on standard input; the answer is a tar on standard output.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"bulkhead/internal/image"
	"bulkhead/internal/image/containerfile"
	"bulkhead/internal/image/registry"
	"bulkhead/internal/image/wayout"
	"bulkhead/internal/wire"
	"bulkhead/internal/workspace/gitclone"
)

// listenFD is the proxy's listener; 3 is this program itself.
const listenFD = 4

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bulkhead-image:", err)
		os.Exit(wire.ExitFailed)
	}
}

func run(ctx context.Context, args []string) error {
	parts := map[string]func(ctx context.Context, in io.Reader, out, log io.Writer) error{"fetch": image.Fetch, "pull": registry.Pull, "build": containerfile.Build, "clone": gitclone.Clone}
	if len(args) == 1 && args[0] == "wayout" {
		ln, err := net.FileListener(os.NewFile(listenFD, "listener"))
		if err != nil {
			return err
		}
		return wayout.Serve(ctx, ln, os.Stdin, os.Stderr)
	}
	if len(args) == 1 && args[0] == containerfile.StepArg {
		return containerfile.RunStep()
	}
	if len(args) != 1 || parts[args[0]] == nil {
		return errors.New("usage: bulkhead-image fetch|pull|build|clone|step|wayout, started by bulkhead image and bulkhead up")
	}
	return parts[args[0]](ctx, os.Stdin, os.Stdout, os.Stderr)
}
