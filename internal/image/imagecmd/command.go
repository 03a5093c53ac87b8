// Package imagecmd is "bulkhead image": build, pull, import, list, rm.
package imagecmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"bulkhead/internal/client"
	"bulkhead/internal/image"
	"bulkhead/internal/layout"
	"bulkhead/internal/preset"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// fetcherProgram does what handles bytes of strangers, as an id that owns
// nothing. It lies beside this one.
const fetcherProgram = "bulkhead-image"

// Command gives the command with its subcommands, on the store of host.
func Command(host layout.Host) *cobra.Command {
	store := image.NewStore(host.Images())
	c := &cobra.Command{
		Use:   "image",
		Short: "Build, pull, import, list and remove the root file systems of agents",
		Long: `Build, pull, import, list and remove images: the root file systems that agents run
from (image in the manifest). They are kept on this host, by name.`,
		Example: `  sudo bulkhead image build images/base/image.yaml
  bulkhead image list`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(buildCommand(store), pullCommand(store), importCommand(store), listCommand(store), removeCommand(store))
	return c
}

func buildCommand(store *image.Store) *cobra.Command {
	var output string
	var noCache, fetchOnly bool
	var more containerfileOptions
	c := &cobra.Command{
		Use:   "build RECIPE.yaml|CONTAINERFILE|FOLDER",
		Short: "Build an image from a recipe or a Containerfile and import it",
		Long: `Fetch what the recipe lists, as an id that owns nothing, and import it as
root. It can reach the hosts that this host's own apt and npm are configured with,
and nothing else. What was fetched is kept in ${XDG_CACHE_HOME:-~/.cache}/bulkhead/images
under the recipe's digest, and taken from there the next time.

A Containerfile, or a folder with one, is the other way: FROM (a name of this store,
or REGISTRY/REPOSITORY@sha256:DIGEST), RUN, COPY from its folder, ENV, ARG, WORKDIR,
SHELL. Its RUN steps can reach what --preset and --egress name, and nothing else; they
find the proxy to it in http_proxy and https_proxy. What describes how an image runs (CMD,
USER, EXPOSE and so on) is not used, and a note says so. It needs root.`,
		Example: `  sudo bulkhead image build images/base/image.yaml
  sudo bulkhead image build ./tools --name tools --preset debian`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if dir, file, ok := containerfileOf(args[0]); ok {
				if fetchOnly {
					return errors.New("image build: --fetch-only is for recipes: what a Containerfile's steps make is not kept")
				}
				more.noCache, more.output = noCache, output
				return buildContainerfile(c, store, dir, file, more)
			}
			if more.given() {
				return errors.New("image build: --name, --preset and --egress are for Containerfiles: a recipe says its name, and what it lists")
			}
			r, err := image.ReadRecipe(args[0])
			if errors.Is(err, fs.ErrNotExist) {
				return badInput(err.Error(), "name a recipe (images/*/image.yaml of Bulkhead's source are some), a Containerfile, or a folder with one", err)
			}
			if err != nil {
				return err
			}
			b, err := builder(c, "fetch", noCache)
			if err != nil {
				return err
			}
			b.Egress = func(ctx context.Context) ([]string, error) { return registriesOf(ctx, r) }
			f, err := b.Tar(c.Context(), r)
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }()
			if fetchOnly {
				return nil
			}
			if output != "" {
				return save(f, output)
			}
			digest, err := r.Digest()
			if err != nil {
				return err
			}
			return doImport(c, store, r.Name, "recipe sha256:"+digest, f)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "write the tar to this `file` instead of importing it")
	c.Flags().BoolVar(&fetchOnly, "fetch-only", false, "fill the cache and import nothing")
	c.Flags().BoolVar(&noCache, "no-cache", false, "fetch anew and keep nothing")
	c.Flags().StringVar(&more.name, "name", "", "the image's `name` (Containerfile; its folder's without)")
	c.Flags().StringSliceVar(&more.presets, "preset", nil, "`preset` (npm, pypi, go, debian, github) whose hosts RUN steps may reach")
	c.Flags().StringSliceVar(&more.egress, "egress", nil, "`host:port` that RUN steps may reach, and, for a pulled base, its registry's other hosts")
	c.MarkFlagsMutuallyExclusive("fetch-only", "no-cache")
	c.MarkFlagsMutuallyExclusive("fetch-only", "output")
	return c
}

func pullCommand(store *image.Store) *cobra.Command {
	var noCache bool
	var egress []string
	c := &cobra.Command{
		Use:   "pull REGISTRY/REPOSITORY@sha256:DIGEST NAME",
		Short: "Pull an image from a registry by its digest and import it",
		Long: `Download and decompress the image as an id that owns nothing, and import its
layers as root, by the same rules as every import. Only a digest names an image: a
tag can be moved. Entrypoint, user, environment, volumes and health checks of the
image are not used; the manifest says what runs. It logs in nowhere.`,
		Example: `  sudo bulkhead image pull registry.example.com/tools/base@sha256:… base`,
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if err := image.CheckName(args[1]); err != nil {
				return err
			}
			if _, err := image.ParseReference(args[0]); err != nil {
				return badInput(err.Error(), "name the image by its digest, as in docker.io/library/debian@sha256:…: a tag can be moved", err)
			}
			b, err := builder(c, "pull", noCache)
			if err != nil {
				return err
			}
			b.Egress = func(context.Context) ([]string, error) { return append(egress, image.RegistryOf(args[0])), nil }
			f, err := b.Layers(c.Context(), args[0], store.Limits)
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }()
			info, err := store.ImportLayers(args[1], args[0], f)
			return show(c, info, err)
		},
	}
	c.Flags().BoolVar(&noCache, "no-cache", false, "pull anew and keep nothing")
	c.Flags().StringSliceVar(&egress, "egress", nil, "`host:port` that the registry leads to, beside its own (where it keeps blobs or gives out tokens)")
	return c
}

// registriesOf are the hosts that a recipe needs, from this host's own clients.
func registriesOf(ctx context.Context, r *image.Recipe) (egress []string, err error) {
	var names []string
	if len(r.Debian) > 0 {
		names = append(names, team.PresetDebian)
	}
	if r.NPM != nil {
		names = append(names, team.PresetNPM)
	}
	of, err := preset.Expand(ctx, names, preset.Client)
	for _, n := range names {
		egress = append(egress, of[n]...)
	}
	return egress, err
}

// builder starts what does the unprivileged part.
func builder(c *cobra.Command, part string, noCache bool) (*image.Builder, error) {
	b, err := unprivileged(c.ErrOrStderr(), part)
	if err == nil && !noCache {
		b.Cache, err = image.CacheDir()
	}
	return b, err
}

// unprivileged is a part of [fetcherProgram] within a build's walls.
func unprivileged(log io.Writer, part string) (*image.Builder, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	program := filepath.Join(filepath.Dir(self), fetcherProgram)
	if _, err := os.Stat(program); err != nil {
		return nil, fmt.Errorf("image: %w: install %s beside %s", err, fetcherProgram, self)
	}
	return &image.Builder{Fetch: []string{program, part}, Log: log, Group: buildGroup(log)}, nil
}

// save copies the tar to a file of the caller's.
func save(f *os.File, output string) error {
	out, err := os.Create(output) // #nosec G304 -- the operator's choice
	if err != nil {
		return fmt.Errorf("image build: %w", err)
	}
	_, err = io.Copy(out, f)
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("image build: %w", err)
	}
	return nil
}

func importCommand(store *image.Store) *cobra.Command {
	return &cobra.Command{
		Use:   "import TAR NAME",
		Short: "Import a tar of a root file system (- reads it from standard input)",
		Long: `Import a tar of a root file system as the image NAME; - reads it from standard input.
An image of that name is replaced; agents that run from it go on with the old one until
they are made anew. Owners in the tar are not used; a tar with devices, or with files
that would lie outside, is refused.`,
		Example: `  sudo bulkhead image import rootfs.tar tools
  docker export CONTAINER | sudo bulkhead image import - tools`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if args[0] == "-" {
				return doImport(c, store, args[1], "standard input", c.InOrStdin())
			}
			f, err := os.Open(args[0])
			if err != nil {
				return badInput("the tar cannot be read: "+err.Error(), "name a tar of a root file system, or - for standard input", err)
			}
			defer func() { _ = f.Close() }()
			return doImport(c, store, args[1], filepath.Base(args[0]), f)
		},
	}
}

func doImport(c *cobra.Command, store *image.Store, name, source string, in io.Reader) error {
	info, err := store.Import(name, source, in)
	if errors.Is(err, image.ErrEmpty) {
		return badInput(source+" holds no files", "name a tar of a root file system, as `docker export CONTAINER | bulkhead image import - NAME` gives one", err)
	}
	return show(c, info, err)
}

func show(c *cobra.Command, info *image.Info, err error) error {
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "image %s: %s, %d entries, %d MB\n", info.Name, info.Digest, info.Counts.Entries, info.Counts.Bytes>>20)
	return err
}

func listCommand(store *image.Store) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the images of this host",
		Long: `List the images of this host: their digests and sizes, when they were imported and
from what.`,
		Example: `  bulkhead image list --json`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			all, err := store.List()
			if err != nil {
				return err
			}
			if asJSON, err := c.Flags().GetBool("json"); err == nil && asJSON { // bulkhead's own flag
				if all == nil {
					all = []image.Info{}
				}
				return json.NewEncoder(c.OutOrStdout()).Encode(map[string]any{"schemaVersion": 1, "images": all})
			}
			w := tabwriter.NewWriter(c.OutOrStdout(), 0, 4, 2, ' ', 0)
			_, _ = fmt.Fprintln(w, "NAME\tDIGEST\tMB\tIMPORTED\tSOURCE")
			for _, i := range all {
				_, _ = fmt.Fprintf(w, "%s\t%.19s\t%d\t%s\t%.40s\n", i.Name, i.Digest, i.Counts.Bytes>>20, i.Imported.Format("2006-01-02 15:04"), i.Source)
			}
			return w.Flush()
		},
	}
}

func removeCommand(store *image.Store) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME...",
		Short: "Remove images from which nothing runs",
		Long: `Remove images by their names. One from which something runs is refused, and stays as
it is; the others are removed.`,
		Example: `  sudo bulkhead image rm tools`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			var faults []error
			for _, name := range args {
				faults = append(faults, remove(store, name))
			}
			return errors.Join(faults...)
		},
	}
}

// remove removes one image; the error says what to do when there is none, or it
// is in use.
func remove(store *image.Store, name string) error {
	err := store.Remove(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return badInput(fmt.Sprintf("there is no image %q", name), "`bulkhead image list` shows those that there are", err)
	case errors.Is(err, image.ErrInUse):
		return badInput(fmt.Sprintf("something runs from image %s", name), "end what runs from it first: `sudo bulkhead down`, or give its agents another image and `sudo bulkhead up`", err)
	}
	return err
}

// badInput is a mistake of the command line: nothing was changed.
func badInput(what, mend string, cause error) error {
	return &client.Error{What: what, Mend: mend, Exit: wire.ExitBadInput, Err: cause}
}
