package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// merged are the folders that Debian merges into /usr (since bookworm for
// everyone; packages still ship both spellings).
var merged = []string{"bin", "sbin", "lib", "lib64"}

// dropped are folders that an agent has no use for.
var dropped = []string{"usr/share/man/", "usr/share/info/", "usr/share/locale/", "usr/share/lintian/"}

// debian fetches packages with everything that they depend on, and adds their
// files. apt checks the archive's signatures. Its state is private and empty,
// so that what the host has installed hides nothing; its sources are the
// host's. No maintainer script is run.
func (f *fetcher) debian(ctx context.Context, r *Recipe) error {
	if len(r.Debian) == 0 {
		return nil
	}
	f.say("debian: %s", strings.Join(r.Debian, " "))
	state, cache := filepath.Join(f.dir, "apt/state"), filepath.Join(f.dir, "apt/cache")
	for _, d := range []string{filepath.Join(state, "lists/partial"), filepath.Join(cache, "archives/partial")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return fmt.Errorf("fetch: apt: %w", err)
		}
	}
	status := filepath.Join(f.dir, "apt/status")
	if err := os.WriteFile(status, nil, 0o600); err != nil {
		return fmt.Errorf("fetch: apt: %w", err)
	}
	opts := []string{
		"-q", "-y", "-o", "Dir::State=" + state, "-o", "Dir::State::status=" + status, "-o", "Dir::Cache=" + cache,
		"-o", "Debug::NoLocking=1", // the private state needs none, the host's may not be taken
		"-o", "APT::Sandbox::User=", // already unprivileged
		"-o", "APT::Update::Post-Invoke::=", "-o", "APT::Update::Post-Invoke-Success::=",
		"-o", "Acquire::Languages=none",
	}
	env := []string{"DEBIAN_FRONTEND=noninteractive"}
	if err := f.run(ctx, env, "apt-get", append(slices.Clone(opts), "update")...); err != nil {
		return err
	}
	get := append(append(slices.Clone(opts), "--no-install-recommends", "--download-only", "install"), r.Debian...)
	if err := f.run(ctx, env, "apt-get", get...); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(cache, "archives", "*.deb"))
	if err != nil || len(debs) == 0 {
		return fmt.Errorf("fetch: apt-get downloaded nothing for %v (%w)", r.Debian, err)
	}
	slices.Sort(debs)
	for _, deb := range debs {
		if err := f.addDeb(ctx, deb); err != nil {
			return err
		}
	}
	f.say("debian: %d packages", len(debs))
	if f.ca.Len() == 0 {
		return nil
	}
	// What ca-certificates' maintainer script makes: one file of all of them.
	h := &tar.Header{Typeflag: tar.TypeReg, Name: "etc/ssl/certs/ca-certificates.crt", Mode: 0o644, Size: int64(f.ca.Len())}
	return f.add(h, bytes.NewReader(f.ca.Bytes()))
}

// addDeb adds the files of one package.
func (f *fetcher) addDeb(ctx context.Context, deb string) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb) // #nosec G204 -- a file that apt checked
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("fetch: dpkg-deb: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("fetch: dpkg-deb: %w", err)
	}
	err = f.copyDeb(tar.NewReader(out))
	_, _ = io.Copy(io.Discard, out) // let it end
	if err := errors.Join(err, cmd.Wait()); err != nil {
		return fmt.Errorf("fetch: unpack %s: %w %s", filepath.Base(deb), err, said.String())
	}
	return nil
}

func (f *fetcher) copyDeb(in *tar.Reader) error {
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		h.Name = mergeUsr(h.Name)
		if h.Typeflag == tar.TypeLink {
			h.Linkname = mergeUsr(h.Linkname)
		}
		if h.Name == "." || slices.Contains(merged, h.Name) || slices.ContainsFunc(dropped, func(d string) bool { return strings.HasPrefix(h.Name, d) }) {
			continue
		}
		var body io.Reader = in
		if strings.HasPrefix(h.Name, "usr/share/ca-certificates/") && strings.HasSuffix(h.Name, ".crt") && h.Typeflag == tar.TypeReg {
			text, err := io.ReadAll(io.LimitReader(in, maxRecipeFile))
			if err != nil {
				return err
			}
			f.ca.Write(text)
			body = bytes.NewReader(text)
		}
		h.Format, h.PAXRecords, h.Uname, h.Gname = tar.FormatUnknown, nil, "", ""
		if err := f.add(h, body); err != nil {
			return err
		}
	}
}

// mergeUsr rewrites /bin, /sbin, /lib and /lib64 to their place below /usr.
func mergeUsr(name string) string {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	if name == "" {
		return "."
	}
	for _, m := range merged {
		if strings.HasPrefix(name, m+"/") {
			return "usr/" + name
		}
	}
	return name
}
