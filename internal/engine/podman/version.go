package podman

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// newest is the last major version that containers of ours start with. Version
// 5 (seen with 5.4.2 on Debian 13) bind-mounts the root file system once more
// by itself, which the kernel refuses inside an account cell: "failed to bind
// mount /.container to /tmp/intermediate-mountpoint…: invalid argument".
const newest = 4

// Fits says why the installed Podman cannot start containers of ours.
func Fits(ctx context.Context) error {
	program, err := find("podman")
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, program, "--version").Output() // #nosec G204 -- found in the host's own folders
	if err != nil {
		return fmt.Errorf("podman --version: %w", err)
	}
	major, err := majorOf(string(out))
	if err != nil {
		return err
	}
	if major > newest {
		return fmt.Errorf("containers of Podman %d cannot be started inside an account cell yet; those of Podman %d can", major, newest)
	}
	return nil
}

// majorOf reads the first number of "podman version 4.3.1".
func majorOf(said string) (int, error) {
	text, ok := strings.CutPrefix(strings.TrimSpace(said), "podman version ")
	first, _, dotted := strings.Cut(text, ".")
	n, err := strconv.Atoi(first)
	if !ok || !dotted || err != nil || n < 1 {
		return 0, errors.New("podman --version says " + strconv.Quote(said) + ", not \"podman version 4.3.1\" or the like")
	}
	return n, nil
}
