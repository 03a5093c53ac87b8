package image

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// A pulled image travels from the process that downloads it to the importer as
// one tar of pairs, lowest layer first: what the layer takes away from those
// below it, as a JSON list of the names of its whiteouts, and its own tar.
// Whiteouts go first because they are about other layers only, wherever in
// their own they stand (OCI image specification, layer.md, "Whiteouts").
const (
	whiteoutsEntry = "whiteouts"
	layerEntry     = "layer"
)

const (
	whiteout = ".wh."         // + name: that name of the layers below is gone
	opaque   = ".wh..wh..opq" // the folder's whole content of the layers below is gone
)

// MaxLayers bounds a pulled image; it is far beyond what builders make (overlayfs stops at 500).
const MaxLayers = 500

func isWhiteout(name string) bool { return strings.HasPrefix(path.Base(name), whiteout) }

// unpackLayers writes the layers below root, by the rules of unpack.
func unpackLayers(root *os.Root, in io.Reader, limits Limits) (Counts, error) {
	u := &unpacker{root: root, limits: limits, layered: true}
	r := tar.NewReader(in)
	for n := 0; ; n++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) && n%2 == 0 {
			return u.counts, nil
		}
		want := whiteoutsEntry
		if n%2 == 1 {
			want = layerEntry
		}
		switch {
		case err != nil:
			return u.counts, fmt.Errorf("image: not layers: %w", err)
		case n == 2*MaxLayers:
			return u.counts, fmt.Errorf("image: more than %d layers", MaxLayers)
		case h.Name != want || h.Typeflag != tar.TypeReg:
			return u.counts, fmt.Errorf("image: not layers: %q where %s should be", h.Name, want)
		case want == layerEntry:
			err = u.tar(r)
		default:
			err = u.takeAway(r, h.Size)
		}
		if err != nil {
			return u.counts, err
		}
	}
}

// UnpackLayers is [Unpack] for layers that [WriteLayer] wrote.
func UnpackLayers(root *os.Root, in io.Reader, limits Limits) error {
	_, err := unpackLayers(root, in, limits)
	return err
}

// takeAway removes what a layer's whiteouts name.
func (u *unpacker) takeAway(in io.Reader, size int64) error {
	if size > maxRecipeFile {
		return fmt.Errorf("image: the list of whiteouts %w", errNoRoom)
	}
	text, err := io.ReadAll(in)
	if err != nil {
		return fmt.Errorf("image: whiteouts: %w", err)
	}
	var names []string
	if err := json.Unmarshal(text, &names); err != nil {
		return fmt.Errorf("image: whiteouts: %w", err)
	}
	for _, name := range names {
		if err := u.whiteout(name); err != nil {
			return &Refused{Entry: name, Why: err.Error()}
		}
	}
	return nil
}

func (u *unpacker) whiteout(name string) error {
	if u.counts.Entries++; u.counts.Entries > u.limits.Entries {
		return fmt.Errorf("more than %d entries", u.limits.Entries)
	}
	folder, base := path.Split(name)
	dir, err := u.cleanName(folder)
	if err != nil {
		return err
	}
	hidden := strings.TrimPrefix(base, whiteout)
	switch {
	case base == opaque:
		return u.empty(dir)
	case hidden == base, hidden == "", hidden == ".", hidden == "..", strings.HasPrefix(hidden, whiteout), strings.ContainsRune(hidden, 0):
		return errors.New("a whiteout of no file's name")
	}
	if err := u.root.RemoveAll(path.Join(dir, hidden)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// empty removes everything in a folder.
func (u *unpacker) empty(dir string) error {
	f, err := u.root.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	for _, n := range names {
		if err := u.root.RemoveAll(path.Join(dir, n)); err != nil {
			return err
		}
	}
	return nil
}

// WriteLayer writes a layer of size bytes, as [Store.ImportLayers] reads it.
func WriteLayer(w *tar.Writer, layer io.ReadSeeker, size int64) error {
	gone, err := whiteoutsOf(layer)
	if err != nil {
		return err
	}
	text, err := json.Marshal(gone)
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: whiteoutsEntry, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(text))}); err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: layerEntry, Typeflag: tar.TypeReg, Mode: 0o600, Size: size}); err != nil {
		return err
	}
	if _, err := layer.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err = io.Copy(w, layer)
	return err
}

// whiteoutsOf lists the whiteouts of a layer's tar.
func whiteoutsOf(layer io.ReadSeeker) ([]string, error) {
	if _, err := layer.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	gone := []string{}
	for r := tar.NewReader(layer); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return gone, nil
		}
		if err != nil {
			return nil, fmt.Errorf("not a tar: %w", err)
		}
		if isWhiteout(h.Name) {
			gone = append(gone, h.Name)
		}
	}
}
