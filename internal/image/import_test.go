package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// entry is one tar entry of a test.
type entry struct {
	name, link, body string
	kind             byte
	mode             int64
	pax              map[string]string
}

func tarOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Linkname: e.link, Typeflag: e.kind, Mode: e.mode, Size: int64(len(e.body)), PAXRecords: e.pax, Uid: 1234, Gid: 1234}
		if e.pax != nil {
			h.Format = tar.FormatPAX
		}
		if e.kind == tar.TypeChar || e.kind == tar.TypeBlock {
			h.Devmajor, h.Devminor = 1, 3
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatalf("%s: %v", e.name, err)
		}
		if _, err := w.Write([]byte(e.body)); err != nil {
			t.Fatalf("%s: %v", e.name, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func reg(name, body string) entry {
	return entry{name: name, body: body, kind: tar.TypeReg, mode: 0o644}
}

func link(name, to string) entry {
	return entry{name: name, link: to, kind: tar.TypeSymlink, mode: 0o777}
}

// ground makes a folder with a root in it and a canary beside it.
func ground(t testing.TB) (*os.Root, string) {
	t.Helper()
	top := t.TempDir()
	if err := os.Mkdir(filepath.Join(top, "rootfs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(top, "canary"), []byte("alive"), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(filepath.Join(top, "rootfs"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root, top
}

// unharmed checks what must hold after any tar whatsoever.
func unharmed(t testing.TB, top string) {
	t.Helper()
	beside, err := os.ReadDir(top)
	if err != nil || len(beside) != 2 {
		t.Fatalf("beside the root: %v, %v", beside, err)
	}
	if text, err := os.ReadFile(filepath.Join(top, "canary")); err != nil || string(text) != "alive" {
		t.Fatalf("canary: %q, %v", text, err)
	}
	err = filepath.WalkDir(filepath.Join(top, "rootfs"), func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		m := info.Mode()
		if m&fs.ModeSymlink == 0 && m&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky|0o022) != 0 {
			t.Errorf("%s has mode %v", p, m)
		}
		if m&(fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket|fs.ModeIrregular) != 0 {
			t.Errorf("%s is a %v", p, m)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestHostileTarsAreRefusedAndHarmNothing(t *testing.T) {
	for name, c := range map[string]struct {
		entries []entry
		why     string
	}{
		"parent in the path":               {[]entry{reg("../canary", "dead")}, `".."`},
		"parent deep in the path":          {[]entry{reg("a/b/../../../canary", "dead")}, `".."`},
		"through a link to the parent":     {[]entry{link("up", ".."), reg("up/canary", "dead")}, "escape"},
		"through an absolute link":         {[]entry{link("abs", "/etc"), reg("abs/bulkhead-test-canary", "dead")}, "escape"},
		"through two links":                {[]entry{link("a", "b"), link("b", "../.."), reg("a/canary", "dead")}, "escape"},
		"folder through a link":            {[]entry{link("up", ".."), {name: "up/new", kind: tar.TypeDir, mode: 0o755}}, "escape"},
		"link in a link":                   {[]entry{link("up", ".."), link("up/new", "x")}, "escape"},
		"hard link out":                    {[]entry{{name: "h", link: "../canary", kind: tar.TypeLink}}, `".."`},
		"hard link through a link":         {[]entry{link("up", ".."), {name: "h", link: "up/canary", kind: tar.TypeLink}}, "escape"},
		"hard link to a link":              {[]entry{link("up", "../canary"), {name: "h", link: "up", kind: tar.TypeLink}}, "not a regular file"},
		"hard link to nothing":             {[]entry{{name: "h", link: "gone", kind: tar.TypeLink}}, "no such file"},
		"character device":                 {[]entry{{name: "dev/null", kind: tar.TypeChar, mode: 0o666}}, "device"},
		"block device":                     {[]entry{{name: "dev/sda", kind: tar.TypeBlock, mode: 0o666}}, "device"},
		"FIFO":                             {[]entry{{name: "pipe", kind: tar.TypeFifo, mode: 0o666}}, "FIFO"},
		"contiguous file of an old tar":    {[]entry{{name: "c", kind: tar.TypeCont, mode: 0o666}}, "not a file"},
		"whiteout of a layer":              {[]entry{reg("etc/.wh.passwd", "")}, "whiteout"},
		"file over a full folder":          {[]entry{reg("d/f", "x"), reg("d", "x")}, "not empty"},
		"file below a file":                {[]entry{reg("f", "x"), reg("f/g", "x")}, "not a folder"},
		"the root as a file":               {[]entry{reg(".", "x")}, "root itself"},
		"the root as a link":               {[]entry{link(".", "/etc")}, "root itself"},
		"link to nothing":                  {[]entry{link("l", "")}, "nothing"},
		"loop of links":                    {[]entry{link("a", "b"), link("b", "a"), reg("a/x", "x")}, ""},
		"more bytes than allowed":          {[]entry{reg("big", strings.Repeat("x", 2000))}, "more than"},
		"more entries than allowed":        {[]entry{reg("1", ""), reg("2", ""), reg("3", ""), reg("4", ""), reg("5", ""), reg("6", "")}, "more than"},
		"path longer than allowed":         {[]entry{reg(strings.Repeat("d/", 150)+"f", "")}, "longer"},
		"link target longer than allowed":  {[]entry{link("l", strings.Repeat("x", 300))}, "longer"},
		"name longer than the file system": {[]entry{reg(strings.Repeat("n", 280), "")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root, top := ground(t)
			_, err := unpack(root, bytes.NewReader(tarOf(t, c.entries...)), Limits{Entries: 5, Bytes: 1000, Path: 290})
			var refused *Refused
			if !errors.As(err, &refused) {
				t.Fatalf("error is %v, want a refusal", err)
			}
			if !strings.Contains(err.Error(), c.why) {
				t.Errorf("error is %q, want it to say %q", err, c.why)
			}
			unharmed(t, top)
		})
	}
}

func TestTruncatedTarIsNotAnImage(t *testing.T) {
	whole := tarOf(t, reg("a", strings.Repeat("x", 3000)), reg("b", "y"))
	root, top := ground(t)
	if _, err := unpack(root, bytes.NewReader(whole[:1500]), DefaultLimits()); err == nil {
		t.Error("half a tar was taken")
	}
	unharmed(t, top)
}

func TestWhatAnImportStripsAndKeeps(t *testing.T) {
	root, top := ground(t)
	counts, err := unpack(root, bytes.NewReader(tarOf(
		t,
		entry{name: "./usr/bin/", kind: tar.TypeDir, mode: 0o2777},
		link("./bin", "usr/bin"),
		entry{name: "./usr/bin/su", body: "su", kind: tar.TypeReg, mode: 0o4755},
		entry{name: "bin/wall", body: "wall", kind: tar.TypeReg, mode: 0o2777}, // through the link, inside
		entry{name: "usr/bin/ping", body: "ping", kind: tar.TypeReg, mode: 0o755, pax: map[string]string{"SCHILY.xattr.security.capability": "x"}},
		entry{name: "/abs", body: "abs", kind: tar.TypeReg, mode: 0o600},
		entry{name: "hard", link: "usr/bin/su", kind: tar.TypeLink},
		link("outside", "/etc/passwd"),
		reg("twice", "one"), reg("twice", "two"),
		link("was-link", "/etc/passwd"), reg("was-link", "file"),
		entry{name: "bin", kind: tar.TypeDir, mode: 0o755}, // keeps the link
	)), DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	unharmed(t, top)
	if counts.Setuid != 3 || counts.Xattrs != 1 || counts.Writable != 2 {
		t.Errorf("counts are %+v", counts)
	}
	for name, want := range map[string]string{
		"usr/bin/su": "-rwxr-xr-x su", "usr/bin/wall": "-rwxr-xr-x wall", "usr/bin/ping": "-rwxr-xr-x ping",
		"abs": "-rw------- abs", "hard": "-rwxr-xr-x su", "twice": "-rw-r--r-- two", "was-link": "-rw-r--r-- file",
	} {
		info, err := root.Lstat(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		text, err := root.ReadFile(name)
		if got := info.Mode().String() + " " + string(text); err != nil || got != want {
			t.Errorf("%s is %q (%v), want %q", name, got, err, want)
		}
	}
	for name, want := range map[string]string{"bin": "usr/bin", "outside": "/etc/passwd"} {
		if got, err := root.Readlink(name); err != nil || got != want {
			t.Errorf("%s -> %q, %v; want %q", name, got, err, want)
		}
	}
}

func TestMountPointsReplaceLinks(t *testing.T) {
	root, top := ground(t)
	if _, err := unpack(root, bytes.NewReader(tarOf(
		t,
		link("proc", "../.."), link("tmp", "/tmp"), link("home", "/home"), reg("run", "a file"),
		link("etc/resolv.conf", "../canary"), link("etc/passwd", "/etc/shadow"), reg("etc/hosts", "127.0.0.1 localhost\n"),
		entry{name: "etc/group", kind: tar.TypeDir, mode: 0o755}, reg("etc/group/x", "x"),
	)), DefaultLimits()); err != nil {
		t.Fatal(err)
	}
	if err := mountPoints(root); err != nil {
		t.Fatal(err)
	}
	unharmed(t, top)
	for _, d := range mountDirs {
		if info, err := root.Lstat(d); err != nil || !info.IsDir() {
			t.Errorf("/%s: %v, %v; want a folder", d, info, err)
		}
	}
	for _, f := range mountFiles {
		if info, err := root.Lstat(f); err != nil || !info.Mode().IsRegular() {
			t.Errorf("/%s: %v, %v; want a file", f, info, err)
		}
	}
	if text, err := root.ReadFile("etc/hosts"); err != nil || len(text) == 0 {
		t.Errorf("/etc/hosts of the image: %q, %v", text, err)
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(tarOf(f, reg("a/b", "x"), link("l", ".."), reg("l/canary", "dead")))
	f.Add(tarOf(f, entry{name: "d", kind: tar.TypeDir, mode: 0o7777}, entry{name: "d/s", body: "s", kind: tar.TypeReg, mode: 0o6777}))
	f.Add(tarOf(f, link("bin", "usr/bin"), reg("bin/x", "x"), entry{name: "h", link: "bin/x", kind: tar.TypeLink}))
	f.Add(tarOf(f, entry{name: "null", kind: tar.TypeChar, mode: 0o666}))
	f.Add([]byte("not a tar"))
	f.Fuzz(func(t *testing.T, in []byte) {
		root, top := ground(t)
		_, err := unpack(root, bytes.NewReader(in), Limits{Entries: 200, Bytes: 1 << 20, Path: 512})
		if err == nil {
			if err = mountPoints(root); err == nil {
				_, err = treeDigest(root)
			}
			if err != nil {
				t.Logf("after a tar that was taken: %v", err)
			}
		}
		unharmed(t, top)
	})
}
