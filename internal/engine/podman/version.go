package podman

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"bulkhead/internal/engine/podman/release"
)

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
	r, err := releaseOf(string(out))
	if err != nil {
		return err
	}
	return r.Check()
}

// releaseOf reads "podman version 4.3.1".
func releaseOf(said string) (release.Release, error) {
	text, ok := strings.CutPrefix(strings.TrimSpace(said), "podman version ")
	r, err := release.Parse(text)
	if !ok || err != nil {
		return release.Release{}, errors.New("podman --version says " + strconv.Quote(said) + ", not \"podman version 4.3.1\" or the like")
	}
	return r, nil
}
