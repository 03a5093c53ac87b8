package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// layersOf is what Pull writes for these layers.
func layersOf(t testing.TB, layers ...[]entry) []byte {
	t.Helper()
	var pairs []entry
	for _, l := range layers {
		body := tarOf(t, l...)
		gone, err := whiteoutsOf(bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		pairs = append(pairs, pair(t, gone, body)...)
	}
	return tarOf(t, pairs...)
}

func pair(t testing.TB, gone []string, layer []byte) []entry {
	t.Helper()
	text, err := json.Marshal(gone)
	if err != nil {
		t.Fatal(err)
	}
	return []entry{reg(whiteoutsEntry, string(text)), reg(layerEntry, string(layer))}
}

func folder(name string) entry { return entry{name: name, kind: tar.TypeDir, mode: 0o755} }

var small = Limits{Entries: 100, Bytes: 1 << 20, Path: 512}

func TestLayersLieOverOneAnother(t *testing.T) {
	for name, c := range map[string]struct {
		layers [][]entry
		want   string // paths, and contents of files
	}{
		"a later file wins":                     {[][]entry{{reg("a", "1")}, {reg("a", "2")}}, "a=2"},
		"a whiteout takes a file away":          {[][]entry{{reg("d/a", "1"), reg("d/b", "1")}, {reg("d/.wh.a", "")}}, "d d/b=1"},
		"a whiteout takes a folder away":        {[][]entry{{reg("d/e/a", "1"), reg("b", "1")}, {reg(".wh.d", "")}}, "b=1"},
		"of nothing it does nothing":            {[][]entry{{reg("a", "1")}, {reg("x/.wh.y", ""), reg(".wh.z", "")}}, "a=1"},
		"it spares its own layer, before it":    {[][]entry{{reg("a/old", "1")}, {reg("a/new", "2"), reg(".wh.a", "")}}, "a a/new=2"},
		"it spares its own layer, after it":     {[][]entry{{reg("a/old", "1")}, {reg(".wh.a", ""), reg("a/new", "2")}}, "a a/new=2"},
		"an opaque folder begins anew":          {[][]entry{{reg("d/a", "1"), reg("d/e/f", "1")}, {reg("d/b", "2"), reg("d/.wh..wh..opq", "")}}, "d d/b=2"},
		"what was taken away can come back":     {[][]entry{{reg("a", "1")}, {reg(".wh.a", "")}, {reg("a", "3")}}, "a=3"},
		"a file replaces a folder":              {[][]entry{{reg("d/a", "1")}, {reg("d", "2")}}, "d=2"},
		"a folder replaces a file":              {[][]entry{{reg("d", "1")}, {folder("d"), reg("d/a", "2")}}, "d d/a=2"},
		"a hard link to a lower layer's file":   {[][]entry{{reg("a", "1")}, {{name: "b", link: "a", kind: tar.TypeLink}}}, "a=1 b=1"},
		"a whiteout of a link spares its aim":   {[][]entry{{reg("a", "1"), link("l", "a")}, {reg(".wh.l", "")}}, "a=1"},
		"a whiteout of a link to a folder, too": {[][]entry{{reg("d/a", "1"), link("l", "d")}, {reg(".wh.l", "")}}, "d d/a=1"},
		"through a link of the merged /usr":     {[][]entry{{reg("usr/bin/a", "1"), reg("usr/bin/b", "1"), link("bin", "usr/bin")}, {reg("bin/.wh.a", ""), reg("bin/c", "2")}}, "bin usr usr/bin usr/bin/b=1 usr/bin/c=2"},
	} {
		t.Run(name, func(t *testing.T) {
			root, top := ground(t)
			if _, err := unpackLayers(root, bytes.NewReader(layersOf(t, c.layers...)), small); err != nil {
				t.Fatal(err)
			}
			if got := listing(t, filepath.Join(top, "rootfs")); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			unharmed(t, top)
		})
	}
}

func listing(t *testing.T, dir string) string {
	t.Helper()
	var out []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == "." {
			return err
		}
		if d.Type().IsRegular() {
			text, err := os.ReadFile(filepath.Join(dir, p))
			if err != nil {
				return err
			}
			p += "=" + string(text)
		}
		out = append(out, p)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestHostileLayersAreRefusedAndHarmNothing(t *testing.T) {
	fine := tarOf(t, reg("a", "1"))
	below := pair(t, nil, tarOf(t, reg("d/a", "1"), link("up", ".."), link("abs", "/")))
	for name, c := range map[string]struct {
		pairs []entry
		why   string
	}{
		"whiteout above the root":       {append(below, pair(t, []string{"../.wh.canary"}, fine)...), `".."`},
		"whiteout of the parent":        {append(below, pair(t, []string{".wh..."}, fine)...), "no file's name"},
		"whiteout of the folder itself": {append(below, pair(t, []string{"d/.wh.."}, fine)...), "no file's name"},
		"whiteout without a name":       {append(below, pair(t, []string{".wh."}, fine)...), "no file's name"},
		"whiteout that is none":         {append(below, pair(t, []string{"d/a"}, fine)...), "no file's name"},
		"whiteout of aufs' own":         {append(below, pair(t, []string{".wh..wh.plnk"}, fine)...), "no file's name"},
		"whiteout by a link out":        {append(below, pair(t, []string{"up/.wh.canary"}, fine)...), "escapes"},
		"opaque by a link out":          {append(below, pair(t, []string{"up/.wh..wh..opq"}, fine)...), "escapes"},
		"opaque by an absolute link":    {append(below, pair(t, []string{"abs/.wh..wh..opq"}, fine)...), "escapes"},
		"whiteout inside of a whiteout": {append(below, pair(t, []string{".wh.d/.wh.a"}, fine)...), "whiteout"},
		"file by a lower layer's link":  {append(below, pair(t, nil, tarOf(t, reg("up/canary", "dead")))...), "escapes"},
		"hard link to outside":          {append(below, pair(t, nil, tarOf(t, entry{name: "h", link: "up/canary", kind: tar.TypeLink}))...), "escapes"},
		"hard link to a link":           {append(below, pair(t, nil, tarOf(t, entry{name: "h", link: "up", kind: tar.TypeLink}))...), "not a regular file"},
		"a device in the second layer":  {append(below, pair(t, nil, tarOf(t, entry{name: "null", kind: tar.TypeChar, mode: 0o666}))...), "device"},
		"bytes of all layers together":  {append(pair(t, nil, tarOf(t, reg("a", strings.Repeat("x", 600<<10)))), pair(t, nil, tarOf(t, reg("a", strings.Repeat("x", 600<<10))))...), "bytes"},
		"entries of all layers":         {append(below, pair(t, slices.Repeat([]string{".wh.x"}, 101), fine)...), "entries"},
		"whiteouts are no list":         {[]entry{reg(whiteoutsEntry, "{}")}, "whiteouts"},
		"a layer without its list":      {[]entry{reg(layerEntry, string(fine))}, "not layers"},
		"a list without its layer":      {below[:1], "not layers"},
		"the root is replaced":          {pair(t, nil, tarOf(t, reg(".", "x"))), "root itself"},
	} {
		t.Run(name, func(t *testing.T) {
			root, top := ground(t)
			_, err := unpackLayers(root, bytes.NewReader(tarOf(t, c.pairs...)), small)
			if err == nil || !strings.Contains(err.Error(), c.why) {
				t.Errorf("%v, want %q in it", err, c.why)
			}
			unharmed(t, top)
		})
	}
}

func FuzzUnpackLayers(f *testing.F) {
	f.Add(layersOf(f, []entry{reg("d/a", "1"), link("up", "..")}, []entry{reg("d/.wh.a", ""), reg("d/.wh..wh..opq", "")}))
	f.Add(tarOf(f, pair(f, []string{"up/.wh.canary"}, tarOf(f, reg("a", "x")))...))
	f.Add([]byte("not a tar"))
	f.Fuzz(func(t *testing.T, in []byte) {
		root, top := ground(t)
		_, _ = unpackLayers(root, bytes.NewReader(in), Limits{Entries: 200, Bytes: 1 << 20, Path: 512})
		unharmed(t, top)
	})
}
