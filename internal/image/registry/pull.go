// Package registry downloads images from registries, as the unprivileged part
// of "bulkhead image pull" (package image has the privileged one).
package registry

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"bulkhead/internal/image"
)

// Pull downloads an image and writes its layers, decompressed, in the form
// that [image.Store.ImportLayers] reads. Like [image.Fetch] it is the body of an
// unprivileged process, in a folder of its own, and refuses to run as root:
// decompressing is where bytes of strangers do the most. It logs in nowhere.
//
// Every blob is compared with its digest: manifest and configuration by the
// library, and each decompressed layer with the configuration's diff id here.
func Pull(ctx context.Context, in io.Reader, out, log io.Writer) error {
	if os.Geteuid() == 0 {
		return errors.New("pull: refuses to run as root: it unpacks what strangers wrote")
	}
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	if err := image.Confine(dir, log); err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	var r image.PullRequest
	if err := json.NewDecoder(in).Decode(&r); err != nil {
		return fmt.Errorf("pull: request: %w", err)
	}
	if _, err := image.ParseReference(r.Reference); err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	ref, err := name.NewDigest(r.Reference, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	way, err := transport()
	if err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	img, err := remote.Image(ref, remote.WithTransport(way), remote.WithContext(ctx), remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}))
	if err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	return writeLayers(img, out, log, r.Bytes)
}

// transport goes through the proxy that it was told of, whatever the address:
// there is no other way.
func transport() (http.RoundTripper, error) {
	t := remote.DefaultTransport.(*http.Transport).Clone()
	if text := os.Getenv("HTTPS_PROXY"); text != "" {
		proxy, err := url.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("HTTPS_PROXY: %w", err)
		}
		t.Proxy = http.ProxyURL(proxy)
	}
	return t, nil
}

// writeLayers writes an image's layers, lowest first.
func writeLayers(img v1.Image, out, log io.Writer, most int64) error {
	config, err := img.ConfigFile()
	if err != nil {
		return fmt.Errorf("pull: configuration: %w", err)
	}
	if config.OS != "linux" || config.Architecture != runtime.GOARCH {
		return fmt.Errorf("pull: the image is for %s/%s, this host is linux/%s", config.OS, config.Architecture, runtime.GOARCH)
	}
	layers, err := img.Layers()
	if err != nil {
		return fmt.Errorf("pull: layers: %w", err)
	}
	manifest, err := img.Manifest()
	if err != nil {
		return fmt.Errorf("pull: manifest: %w", err)
	}
	if n := len(layers); n > image.MaxLayers || n != len(config.RootFS.DiffIDs) || n != len(manifest.Layers) {
		return fmt.Errorf("pull: %d layers, %d in the manifest, %d diff ids, at most %d", n, len(manifest.Layers), len(config.RootFS.DiffIDs), image.MaxLayers)
	}
	for i, l := range manifest.Layers { // before the library follows a foreign layer's URL
		if !l.MediaType.IsLayer() || !l.MediaType.IsDistributable() || len(l.URLs) > 0 {
			return fmt.Errorf("pull: layer %d of type %s is not one that is unpacked here", i+1, l.MediaType)
		}
	}
	w := tar.NewWriter(out)
	for i, l := range layers {
		_, _ = fmt.Fprintf(log, "pull: layer %d of %d\n", i+1, len(layers))
		n, err := writeLayer(w, l, config.RootFS.DiffIDs[i], most)
		if err != nil {
			return fmt.Errorf("pull: layer %d: %w", i+1, err)
		}
		most -= n
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	return nil
}

// writeLayer decompresses one layer into a file, to know its size and what it
// takes away, and writes both. It gives the layer's size.
func writeLayer(w *tar.Writer, l v1.Layer, diffID v1.Hash, most int64) (int64, error) {
	f, err := os.CreateTemp(".", "layer-")
	if err != nil {
		return 0, err
	}
	defer func() { _, _ = f.Close(), os.Remove(f.Name()) }()
	body, err := l.Uncompressed()
	if err != nil {
		return 0, err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(body, most+1))
	if err := errors.Join(err, body.Close()); err != nil {
		return 0, err
	}
	if n > most {
		return 0, errors.New("the image is larger than an image may be, decompressed")
	}
	if got := hex.EncodeToString(sum.Sum(nil)); diffID.Algorithm != "sha256" || got != diffID.Hex {
		return 0, fmt.Errorf("its content has the digest sha256:%s, the configuration says %s", got, diffID)
	}
	return n, image.WriteLayer(w, f, n)
}
