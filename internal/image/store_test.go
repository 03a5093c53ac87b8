package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/test/system/throwaway"
)

// probeArg makes this test binary act as the fetcher.
const probeArg = "image-fetch-probe"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == probeArg {
		os.Exit(fetchProbe())
	}
	if len(os.Args) > 1 && os.Args[1] == "wayout" {
		time.Sleep(time.Hour) // a proxy that is asked for nothing; it is killed
	}
	os.Exit(m.Run())
}

// fetchProbe is a fetcher that tells what it could do, as an image.
func fetchProbe() int {
	if err := Fetch(context.Background(), os.Stdin, os.Stdout, os.Stderr); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	status, _ := os.ReadFile("/proc/self/status")
	_, err := net.Dial("udp", "203.0.113.10:53")
	_, _ = fmt.Fprintf(os.Stderr, "PROBE outside: %v\n", err)
	if all, err := net.Interfaces(); err == nil {
		_, _ = fmt.Fprintf(os.Stderr, "PROBE interfaces=%d\n", len(all))
	}
	_, _ = fmt.Fprintf(os.Stderr, "PROBE pid=%d uid=%d env=%q\n%s", os.Getpid(), os.Getuid(), os.Environ(), status)
	return 0
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: run it with sudo (sudo make test)")
	}
}

func TestFetcherOwnsNothingAndKnowsNothing(t *testing.T) {
	needRoot(t)
	t.Setenv("BULKHEAD_TEST_TOKEN", "do-not-tell")
	var log bytes.Buffer
	way := func(context.Context) ([]string, error) { return []string{"registry.example:443"}, nil }
	b := &Builder{Fetch: []string{"/proc/self/exe", probeArg}, Egress: way, Cache: filepath.Join(t.TempDir(), "c"), Log: &log}
	r := &Recipe{APIVersion: RecipeVersion, Name: "x", Files: []File{{Path: "/hello", Content: []byte("hi")}}, Links: map[string]string{"/l": "hello"}}
	f, err := b.Tar(t.Context(), r)
	if err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	defer func() { _ = f.Close() }()
	for _, want := range []string{"PROBE pid=1 ", fmt.Sprint("uid=", BuilderID), "NoNewPrivs:\t1", "outside: dial udp 203.0.113.10:53: connect: network is unreachable", "PROBE interfaces=1", "can reach [registry.example:443], and nothing else", "CapEff:\t0000000000000000", "Groups:\t \n"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, log.String())
		}
	}
	if strings.Contains(log.String(), "do-not-tell") {
		t.Error("the fetcher got a variable of this process")
	}
	s := NewStore(filepath.Join(t.TempDir(), "images"))
	info, err := s.Import("x", "test", f)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(s.Dir, "x/rootfs/hello")); err != nil || string(text) != "hi" {
		t.Errorf("hello is %q, %v", text, err)
	}
	// The second time the cache answers, with the same image.
	log.Reset()
	again, err := (&Builder{Fetch: []string{"/bin/false"}, Cache: b.Cache, Log: &log}).Tar(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = again.Close() }()
	if info2, err := s.Import("x", "test", again); err != nil || info2.Digest != info.Digest {
		t.Errorf("second import: %+v, %v; first %s", info2, err, info.Digest)
	}
	// A cached tar that someone else could have written is not taken.
	if err := os.Chmod(again.Name(), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := (&Builder{Fetch: []string{"/bin/false"}, Egress: way, Cache: b.Cache, Log: &log}).Tar(t.Context(), r); err == nil {
		t.Error("a world-writable tar in the cache was taken")
	}
}

func TestFetchRefusesRoot(t *testing.T) {
	needRoot(t)
	if err := Fetch(t.Context(), strings.NewReader("{}"), io.Discard, io.Discard); err == nil {
		t.Error("Fetch ran as root")
	}
}

func TestWhatHoldsNoFilesIsNoImage(t *testing.T) {
	needRoot(t)
	s := NewStore(filepath.Join(t.TempDir(), "images"))
	for name, in := range map[string][]byte{"nothing": nil, "an end alone": tarOf(t), "the root alone": tarOf(t, entry{name: "./", kind: tar.TypeDir, mode: 0o755})} {
		if _, err := s.Import("x", "test", bytes.NewReader(in)); !errors.Is(err, ErrEmpty) {
			t.Errorf("%s: %v, want %v", name, err, ErrEmpty)
		}
	}
	if all, err := s.List(); err != nil || len(all) != 0 {
		t.Errorf("the store has %v, %v", all, err)
	}
}

func TestFailedImportLeavesTheStoreAsItWas(t *testing.T) {
	needRoot(t)
	s := NewStore(filepath.Join(t.TempDir(), "images"))
	first, err := s.Import("x", "test", bytes.NewReader(tarOf(t, reg("a", "1"))))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Import("x", "test", bytes.NewReader(tarOf(t, reg("b", "2"), reg("../c", "3")))); err == nil {
		t.Fatal("a hostile tar was taken")
	}
	for what, in := range map[string][]byte{"nothing at all": nil, "a tar of nothing": tarOf(t)} {
		if _, err := s.Import("x", "test", bytes.NewReader(in)); !errors.Is(err, ErrEmpty) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := s.Import("../x", "test", bytes.NewReader(nil)); err == nil {
		t.Fatal("a hostile name was taken")
	}
	all, err := s.List()
	if err != nil || len(all) != 1 || all[0].Digest != first.Digest {
		t.Errorf("the store has %+v, %v; want the first image", all, err)
	}
	entries, err := os.ReadDir(s.Dir)
	if err != nil || len(entries) != 2 { // .lock and x
		t.Errorf("the store's folder has %v, %v", entries, err)
	}
}

func TestDigestIsOfTheTreeAlone(t *testing.T) {
	needRoot(t)
	s := NewStore(filepath.Join(t.TempDir(), "images"))
	digest := func(entries ...entry) string {
		t.Helper()
		info, err := s.Import("x", "test", bytes.NewReader(tarOf(t, entries...)))
		if err != nil {
			t.Fatal(err)
		}
		return info.Digest
	}
	base := digest(reg("a", "1"), reg("b", "2"))
	if digest(reg("b", "2"), reg("a", "1")) != base {
		t.Error("the order of the tar changes the digest")
	}
	for name, other := range map[string][]entry{
		"content": {reg("a", "1"), reg("b", "3")},
		"name":    {reg("a", "1"), reg("c", "2")},
		"mode":    {reg("a", "1"), {name: "b", body: "2", kind: '0', mode: 0o755}},
		"kind":    {reg("a", "1"), link("b", "2")},
		"more":    {reg("a", "1"), reg("b", "2"), {name: "d", kind: '5', mode: 0o755}},
	} {
		if digest(other...) == base {
			t.Errorf("another %s does not change the digest", name)
		}
	}
}

func TestImageInUseStaysUntilItIsNot(t *testing.T) {
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		s := NewStore("/var/lib/bulkhead/images")
		put := func(body string) {
			t.Helper()
			if _, err := s.Import("x", "test", bytes.NewReader(tarOf(t, reg("a", body)))); err != nil {
				t.Fatal(err)
			}
		}
		put("old")
		sh := func(script string) {
			t.Helper()
			if out, err := exec.CommandContext(t.Context(), "bash", "-euc", script).CombinedOutput(); err != nil { // #nosec G204 -- constants
				t.Fatalf("%s: %v %s", script, err, out)
			}
		}
		sh("mkdir /mnt/c && mount --bind /var/lib/bulkhead/images/x/rootfs /mnt/c")
		if err := s.Remove("x"); !errors.Is(err, ErrInUse) {
			t.Errorf("removing a mounted image: %v", err)
		}
		put("new")
		if text, err := os.ReadFile("/mnt/c/a"); err != nil || string(text) != "old" {
			t.Errorf("the running container sees %q, %v; want the old image", text, err)
		}
		if text, err := os.ReadFile("/var/lib/bulkhead/images/x/rootfs/a"); err != nil || string(text) != "new" {
			t.Errorf("new containers see %q, %v", text, err)
		}
		sh("umount /mnt/c")
		if err := s.Remove("x"); err != nil {
			t.Errorf("removing the image: %v", err)
		}
		if _, err := s.Get("x"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after removal: %v", err)
		}
		if entries, err := os.ReadDir(s.Dir); err != nil || len(entries) != 1 {
			t.Errorf("left in the store: %v, %v", entries, err)
		}
	})
}
