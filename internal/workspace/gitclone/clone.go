// Package gitclone gets a repository for an agent's workspace, as an id that owns
// nothing: what git does with bytes of strangers, it does within the walls of an
// image's build (internal/image). bulkhead-image is the program ("clone").
package gitclone

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"bulkhead/internal/image"
)

// Request names what is cloned.
type Request struct {
	URL string `json:"url"`           // https
	Ref string `json:"ref,omitempty"` // a branch or tag; empty: the default branch
	// What it may take on a disk: of the agent's own.
	Bytes   int64 `json:"bytes"`
	Entries int   `json:"entries"`
}

// maxSaid is how much of what git printed is shown when it fails.
const maxSaid = 4096

// safe are the settings of git that hold whatever a repository says: no hooks,
// https alone, for redirects as well, and nothing but objects that are whole.
var safe = []string{
	"-c", "core.hooksPath=/dev/null", "-c", "protocol.allow=never", "-c", "protocol.https.allow=always",
	"-c", "transfer.fsckObjects=true", "-c", "fetch.fsck.badTimezone=ignore", "-c", "fetch.fsck.missingSpaceBeforeDate=ignore", "-c", "fetch.fsck.zeroPaddedFilemode=ignore", // old histories
	"-c", "submodule.recurse=false", "-c", "credential.helper=", "-c", "core.fsmonitor=false",
}

// Clone clones into a folder below the current one, which must be empty and its
// own, and writes the folder as a tar on out: the files, and .git. The request is
// JSON on in. It refuses to run as root.
func Clone(ctx context.Context, in io.Reader, out, log io.Writer) error {
	if os.Geteuid() == 0 {
		return errors.New("clone: refuses to run as root: it unpacks what strangers wrote")
	}
	var r Request
	d := json.NewDecoder(in)
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return fmt.Errorf("clone: request: %w", err)
	}
	if !strings.HasPrefix(r.URL, "https://") || strings.HasPrefix(r.Ref, "-") {
		return errors.New("clone: request: it takes an https URL and the name of a branch or tag")
	}
	if r.Bytes <= 0 || r.Entries <= 0 {
		return errors.New("clone: request: it says no limit")
	}
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("clone: %w", err)
	}
	if err := image.Confine(dir, log); err != nil {
		return fmt.Errorf("clone: %w", err)
	}
	to := filepath.Join(dir, "clone")
	args := append(append([]string{}, safe...), "clone", "--quiet", "--no-recurse-submodules", "--template=")
	if r.Ref != "" {
		args = append(args, "--branch", r.Ref)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := boundFiles(r); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "git", append(args, "--", r.URL, to)...) // #nosec G204 -- checked, and after --
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=/bin/false")
	if ca := os.Getenv("SSL_CERT_FILE"); ca != "" {
		cmd.Env = append(cmd.Env, "GIT_SSL_CAINFO="+ca)
	}
	cmd.WaitDelay = 5 * time.Second
	var said tail
	cmd.Stdout, cmd.Stderr = &said, &said
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		r.watch(ctx, dir, cancel)
	}()
	err = cmd.Run()
	why := context.Cause(ctx)
	cancel(nil)
	<-watched
	if err != nil && tooLarge(err) {
		why = errTooLarge
	}
	if errors.Is(why, errTooLarge) {
		return fmt.Errorf("clone: %s: %w", r.URL, why)
	}
	if err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return errors.New("clone: git is not installed on this host: install it, or clone elsewhere and write the folder")
		}
		return fmt.Errorf("clone: git clone %s: %w\n%s", r.URL, err, said.last)
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return fmt.Errorf("clone: %w", err)
	}
	defer func() { _ = root.Close() }()
	if err := r.fits(dir); err != nil {
		return fmt.Errorf("clone: %s: %w", r.URL, err)
	}
	w := tar.NewWriter(out)
	if err := w.AddFS(root.FS()); err != nil {
		return fmt.Errorf("clone: %w", err)
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("clone: %w", err)
	}
	return nil
}
