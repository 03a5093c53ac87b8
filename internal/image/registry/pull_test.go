package registry

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"bulkhead/internal/image"
	"bulkhead/internal/image/containerfile"
	"bulkhead/internal/image/wayout"
)

// pullArg makes this test binary act as the process that pulls.
const pullArg = "image-pull-probe"

// buildArg makes it act as the process that carries out a Containerfile.
const buildArg = "image-build-probe"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == pullArg {
		if err := Pull(context.Background(), os.Stdin, os.Stdout, os.Stderr); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == buildArg {
		if err := containerfile.Build(context.Background(), os.Stdin, os.Stdout, os.Stderr); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == containerfile.StepArg {
		_, _ = fmt.Fprintln(os.Stderr, containerfile.RunStep())
		os.Exit(1)
	}
	if len(os.Args) > 1 && os.Args[1] == "wayout" {
		ln, err := net.FileListener(os.NewFile(4, "listener"))
		if err == nil {
			err = wayout.Serve(context.Background(), ln, os.Stdin, os.Stderr)
		}
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: run it with sudo (sudo make test)")
	}
}

// file is a tar entry.
type file struct {
	name, body string
	mode       int64
}

func tarOf(t *testing.T, files ...file) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Typeflag: tar.TypeReg, Mode: f.mode, Size: int64(len(f.body))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func reg(name, body string) file { return file{name, body, 0o644} }

func imageOf(t *testing.T, layers ...[]byte) v1.Image {
	t.Helper()
	img := empty.Image
	for _, body := range layers {
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil })
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, l); err != nil {
			t.Fatal(err)
		}
	}
	return forThisHost(t, img)
}

func forThisHost(t *testing.T, img v1.Image) v1.Image {
	t.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", runtime.GOARCH
	c.Config.Entrypoint, c.Config.User = []string{"/bin/evil"}, "0"
	if img, err = mutate.ConfigFile(img, c); err != nil {
		t.Fatal(err)
	}
	return img
}

// push serves a registry with the image and gives the reference to it.
func push(t *testing.T, what remote.Taggable) string {
	t.Helper()
	s := httptest.NewServer(ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(s.Close)
	repo, err := name.NewRepository(strings.TrimPrefix(s.URL, "http://") + "/team/base")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Push(repo.Tag("latest"), what); err != nil {
		t.Fatal(err)
	}
	d, err := what.(interface{ Digest() (v1.Hash, error) }).Digest()
	if err != nil {
		t.Fatal(err)
	}
	return repo.Digest(d.String()).Name()
}

func pull(t *testing.T, reference string, limits image.Limits) (*image.Store, *image.Info, error) {
	t.Helper()
	needRoot(t)
	var log bytes.Buffer
	s := image.NewStore(filepath.Join(t.TempDir(), "images"))
	way := func(context.Context) ([]string, error) { return []string{image.RegistryOf(reference)}, nil }
	b := &image.Builder{Fetch: []string{"/proc/self/exe", pullArg}, Egress: way, Log: &log}
	f, err := b.Layers(context.Background(), reference, limits)
	t.Logf("%s", log.String())
	if err != nil {
		return s, nil, &told{err, log.String()}
	}
	defer func() { _ = f.Close() }()
	info, err := s.ImportLayers("base", reference, f)
	return s, info, err
}

// told is an error with what the process said before it.
type told struct {
	error
	log string
}

func (e *told) Error() string { return e.log + e.error.Error() }

func TestAnImageIsPulledByItsDigest(t *testing.T) {
	setuid := file{"bin/su", "root", 0o4755}
	img := imageOf(t, tarOf(t, setuid, reg("etc/old", "1")), tarOf(t, reg("etc/.wh.old", ""), reg("etc/motd", "hi")))
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}})
	for name, what := range map[string]remote.Taggable{"an image": img, "an index of several platforms": index} {
		t.Run(name, func(t *testing.T) {
			ref := push(t, what)
			s, info, err := pull(t, ref, image.DefaultLimits())
			if err != nil {
				t.Fatal(err)
			}
			if info.Counts.Setuid != 1 || info.Source != ref {
				t.Errorf("%+v", info)
			}
			root := filepath.Join(s.Dir, "base/rootfs")
			if text, err := os.ReadFile(filepath.Join(root, "etc/motd")); err != nil || string(text) != "hi" {
				t.Errorf("motd: %q %v", text, err)
			}
			if _, err := os.Lstat(filepath.Join(root, "etc/old")); !os.IsNotExist(err) {
				t.Errorf("a file that was taken away: %v", err)
			}
			if m, err := os.Stat(filepath.Join(root, "bin/su")); err != nil || m.Mode() != 0o755 {
				t.Errorf("su: %v %v", m, err)
			}
		})
	}
}

func TestWhatIsNotPulled(t *testing.T) {
	good := imageOf(t, tarOf(t, reg("a", "1")))
	other, err := random.Image(1000, 1)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := mutate.Append(good, mutate.Addendum{Layer: layerOf(t, good), MediaType: types.DockerForeignLayer, URLs: []string{"http://elsewhere.example/layer"}})
	if err != nil {
		t.Fatal(err)
	}
	bomb := imageOf(t, bytes.Repeat([]byte{0}, 8<<20))
	lying, err := good.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	lying = lying.DeepCopy()
	lying.RootFS.DiffIDs[0] = v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("0", 64)}
	liar, err := mutate.ConfigFile(good, lying)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		reference string
		limits    image.Limits
		why       string
	}{
		"by a tag":                       {"registry.example/base:latest", image.DefaultLimits(), "is not REGISTRY/REPOSITORY@sha256"},
		"of no registry":                 {"base", image.DefaultLimits(), "is not REGISTRY/REPOSITORY@sha256"},
		"another platform's":             {push(t, other), image.DefaultLimits(), "this host is linux/"},
		"a digest that nobody has":       {at(push(t, good), strings.Repeat("0", 64)), image.DefaultLimits(), "MANIFEST_UNKNOWN"},
		"a layer that is elsewhere":      {push(t, foreign), image.DefaultLimits(), "not one that is unpacked"},
		"a decompression bomb":           {push(t, bomb), image.Limits{Entries: 10, Bytes: 1 << 20, Path: 100}, "larger than an image may be"},
		"content that is not the config": {push(t, liar), image.DefaultLimits(), "its content has the digest"},
	} {
		t.Run(name, func(t *testing.T) {
			s, _, err := pull(t, c.reference, c.limits)
			if err == nil || !strings.Contains(err.Error(), c.why) {
				t.Errorf("%v, want %q in it", err, c.why)
			}
			if all, err := s.List(); err != nil || len(all) != 0 {
				t.Errorf("the store has %v, %v", all, err)
			}
		})
	}
}

func at(reference, hex string) string {
	return reference[:strings.LastIndexByte(reference, ':')+1] + hex
}

func layerOf(t *testing.T, img v1.Image) v1.Layer {
	t.Helper()
	l, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	return l[0]
}

func TestPullRefusesRoot(t *testing.T) {
	needRoot(t)
	if err := Pull(t.Context(), strings.NewReader("{}"), io.Discard, io.Discard); err == nil {
		t.Error("Pull ran as root")
	}
}
