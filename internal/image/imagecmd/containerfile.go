package imagecmd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"bulkhead/internal/image"
	"bulkhead/internal/image/containerfile"
	"bulkhead/internal/preset"
	"bulkhead/internal/terminal"
)

// containerfileOptions are the flags for Containerfiles.
type containerfileOptions struct {
	name            string
	presets, egress []string
	noCache         bool
	output          string
}

func (o containerfileOptions) given() bool { return o.name != "" || len(o.presets)+len(o.egress) > 0 }

// containerfileNames are looked for in a folder, in this order.
var containerfileNames = []string{"Containerfile", "Dockerfile"}

// containerfileOf says whether arg is a Containerfile or a folder, and gives
// the context and the file.
func containerfileOf(arg string) (dir, file string, ok bool) {
	if info, err := os.Stat(arg); err == nil && info.IsDir() {
		for _, name := range containerfileNames {
			file = filepath.Join(arg, name)
			if _, err := os.Stat(file); err == nil {
				break
			}
		}
		return arg, file, true
	}
	for _, name := range containerfileNames {
		base := filepath.Base(arg)
		if base == name || strings.HasPrefix(base, name+".") || strings.HasSuffix(base, "."+name) {
			return filepath.Dir(arg), arg, true
		}
	}
	return "", "", false
}

func buildContainerfile(c *cobra.Command, store *image.Store, dir, file string, o containerfileOptions) error {
	text, err := os.ReadFile(file) // #nosec G304 -- the operator's own
	if err != nil {
		return fmt.Errorf("image build: %w (a folder needs a file Containerfile or Dockerfile)", err)
	}
	plan, err := containerfile.Parse(file, string(text))
	if err != nil {
		return err
	}
	for _, n := range plan.Notes {
		_, _ = fmt.Fprintln(c.ErrOrStderr(), "note:", n)
	}
	if o.name == "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return fmt.Errorf("image build: %w", err)
		}
		o.name = filepath.Base(abs)
	}
	if err := image.CheckName(o.name); err != nil {
		return fmt.Errorf("image build: %w: name it with --name", err)
	}
	request, err := packed(c, store, plan, dir, o)
	if err != nil {
		return fmt.Errorf("image build: %w", err)
	}
	defer func() { _ = request.Close() }()
	b, err := builder(c, "build", true)
	if err != nil {
		return err
	}
	b.Log = terminal.NewWriter(c.ErrOrStderr()) // what steps print
	b.Egress = func(ctx context.Context) ([]string, error) {
		of, err := preset.Expand(ctx, o.presets, preset.Client)
		out := o.egress
		for _, n := range o.presets {
			out = append(out, of[n]...)
		}
		return out, err
	}
	f, err := b.Steps(c.Context(), o.name, request)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if o.output != "" {
		return save(f, o.output)
	}
	sum := sha256.Sum256(text)
	return doImport(c, store, o.name, "Containerfile sha256:"+hex.EncodeToString(sum[:]), f)
}

// packed gives a file, already without a name, with all that the steps need.
func packed(c *cobra.Command, store *image.Store, plan *containerfile.Plan, dir string, o containerfileOptions) (_ *os.File, err error) {
	var base *os.Root
	var layers *os.File
	switch {
	case plan.Base == containerfile.Scratch:
	case plan.Pulled():
		b, err := builder(c, "pull", o.noCache)
		if err != nil {
			return nil, err
		}
		b.Egress = func(context.Context) ([]string, error) {
			return append([]string{image.RegistryOf(plan.Base)}, o.egress...), nil
		}
		if layers, err = b.Layers(c.Context(), plan.Base, store.Limits); err != nil {
			return nil, err
		}
		defer func() { _ = layers.Close() }()
	default:
		if _, err := store.Get(plan.Base); err != nil {
			return nil, fmt.Errorf("FROM %s: %w: build, pull or import it first (bulkhead image list)", plan.Base, err)
		}
		if base, err = os.OpenRoot(filepath.Join(store.Dir, plan.Base, "rootfs")); err != nil {
			return nil, err
		}
		defer func() { _ = base.Close() }()
	}
	context, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = context.Close() }()
	f, err := os.CreateTemp("/var/tmp", "bulkhead-request-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if err := os.Remove(f.Name()); err != nil {
		return nil, err
	}
	if err := containerfile.Pack(f, plan, context, base, layers, store.Limits); err != nil {
		return nil, err
	}
	_, err = f.Seek(0, io.SeekStart)
	return f, err
}
