package registry

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"bulkhead/internal/image"
	"bulkhead/internal/image/containerfile"
)

// TestAContainerfileStandsOnAPulledBase pulls layers with a whiteout, and lets a
// step look at what is there.
func TestAContainerfileStandsOnAPulledBase(t *testing.T) {
	needRoot(t)
	shell, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatalf("needs busybox-static: %v", err)
	}
	ref := push(t, imageOf(t, tarOf(t, file{"bin/sh", string(shell), 0o755}, reg("etc/old", "1")), tarOf(t, reg("etc/.wh.old", ""), reg("etc/new", "2"))))
	dir := t.TempDir()
	plan, err := containerfile.Parse("Containerfile", "FROM "+ref+"\nRUN echo /etc/* > /seen\n")
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	defer func() { t.Log(log.String()) }()
	reach := func(to ...string) func(context.Context) ([]string, error) {
		return func(context.Context) ([]string, error) { return to, nil }
	}
	limits := image.DefaultLimits()
	b := &image.Builder{Fetch: []string{"/proc/self/exe", pullArg}, Egress: reach(image.RegistryOf(ref)), Log: &log}
	layers, err := b.Layers(t.Context(), ref, limits)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = layers.Close() }()
	context, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = context.Close() }()
	request, err := os.Create(filepath.Join(dir, "request"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = request.Close() }()
	if err := containerfile.Pack(request, plan, context, nil, layers, limits); err != nil {
		t.Fatal(err)
	}
	if _, err := request.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	b = &image.Builder{Fetch: []string{"/proc/self/exe", buildArg}, Egress: reach(), Log: &log}
	f, err := b.Steps(t.Context(), "test", request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	s := image.NewStore(filepath.Join(dir, "images"))
	if _, err := s.Import("test", "Containerfile", f); err != nil {
		t.Fatal(err)
	}
	// The other names are mount points.
	want := "/etc/group /etc/hostname /etc/hosts /etc/mtab /etc/new /etc/passwd /etc/resolv.conf\n"
	if seen, err := os.ReadFile(filepath.Join(s.Dir, "test/rootfs/seen")); err != nil || string(seen) != want {
		t.Errorf("%q %v", seen, err)
	}
}
