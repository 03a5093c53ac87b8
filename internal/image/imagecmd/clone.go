package imagecmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"

	"bulkhead/internal/image"
	"bulkhead/internal/team"
	"bulkhead/internal/terminal"
	"bulkhead/internal/workspace/gitclone"
)

// Clone clones a repository into the folder into, which it makes, and removes again
// when it fails. git runs as an id that owns nothing and can reach the URL's host
// alone; what it got is laid down by the rules of imports (no setuid bits, devices,
// pipes or sockets). Root only.
func Clone(ctx context.Context, log io.Writer, from gitclone.Request, into string) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("a workspace is cloned as root, for the walls around git: run it with sudo")
	}
	u, err := url.Parse(from.URL)
	if err != nil {
		return err
	}
	clean := terminal.NewWriter(log) // git passes on what the server says
	defer func() { err = errors.Join(err, clean.Flush()) }()
	b, err := unprivileged(clean, "clone")
	if err != nil {
		return err
	}
	b.Egress = func(context.Context) ([]string, error) { return []string{team.CloneHost(u)}, nil }
	request, err := json.Marshal(from)
	if err != nil {
		return err
	}
	f, err := b.Once(ctx, from.URL, bytes.NewReader(request))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := os.Mkdir(into, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(into)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, root.Close())
		if err != nil {
			err = errors.Join(err, os.RemoveAll(into))
		}
	}()
	if err := image.Unpack(root, f, image.Limits{Entries: from.Entries, Bytes: from.Bytes, Path: image.DefaultLimits().Path}); err != nil {
		return fmt.Errorf("lay down the clone of %s: %w", from.URL, err)
	}
	return nil
}
