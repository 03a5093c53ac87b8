package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"bulkhead/internal/deny"
	"bulkhead/internal/primitive/storage"
)

type world struct {
	*Store
	dir    string
	budget *storage.Budget
}

func (w *world) files(name ...string) string {
	return filepath.Join(append([]string{w.dir, "files"}, name...)...)
}

func open(t testing.TB, dir string, limits storage.Limits) *world {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	b := storage.New(limits)
	s, err := Open(Config{Dir: root, Budget: b})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return &world{s, dir, b}
}

var roomy = storage.Limits{Bytes: 1 << 30, Files: 100_000}

func at(t testing.TB, s string) Path {
	t.Helper()
	p, r := Parse("test", s)
	if r != nil {
		t.Fatal(r)
	}
	return p
}

func (w *world) put(ctx context.Context, p Path, data []byte) (Info, error) {
	f, err := w.Create(ctx, "fs_write", p, int64(len(data)), "")
	if err != nil {
		return Info{}, err
	}
	defer f.Abort()
	if _, err := f.Write(data); err != nil {
		return Info{}, err
	}
	return f.Commit()
}

func (w *world) get(ctx context.Context, p Path) ([]byte, error) {
	f, err := w.Open(ctx, "fs_read", p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

func code(err error) deny.Code {
	var r *deny.Reason
	if errors.As(err, &r) {
		return r.Code
	}
	if err != nil {
		return deny.Code("fault: " + err.Error())
	}
	return ""
}

// agrees says whether what is counted is what is there, and nothing is left in tmp.
func (w *world) agrees(t interface{ Errorf(string, ...any) }) {
	bytes, files := w.budget.Used()
	b, f, err := w.count(w.root)
	if err != nil || b != bytes || f != files {
		t.Errorf("counted are %d bytes and %d files; there are %d and %d (%v)", bytes, files, b, f, err)
	}
	if left, err := entries(w.tmp, -1); err != nil || len(left) > 0 {
		t.Errorf("temporary files are left: %v %v", left, err)
	}
}

func TestAFileIsWrittenReadReplacedListedAndRemoved(t *testing.T) {
	w, ctx := open(t, t.TempDir(), roomy), t.Context()
	p := at(t, "notes/deep/today.md")
	info, err := w.put(ctx, p, []byte("hello"))
	if err != nil || info.SizeBytes != 5 || info.ContentType != "text/markdown; charset=utf-8" || info.Path != "notes/deep/today.md" {
		t.Fatal(info, err)
	}
	if _, err := w.put(ctx, p, []byte("hello again")); err != nil {
		t.Fatal(err)
	}
	if got, err := w.get(ctx, p); err != nil || string(got) != "hello again" {
		t.Errorf("%q %v", got, err)
	}
	if b, f := w.budget.Used(); b != 11 || f != 3 {
		t.Errorf("%d bytes, %d files", b, f)
	}
	list, err := w.List(ctx, "fs_list", at(t, "notes"))
	if err != nil || len(list) != 1 || list[0].Name != "deep" || list[0].Type != "directory" || list[0].Path != "notes/deep" {
		t.Errorf("%+v %v", list, err)
	}
	if st, err := w.Stat(ctx, "fs_stat", p); err != nil || st.Type != "file" || st.ContentType == "" {
		t.Errorf("%+v %v", st, err)
	}
	if err := w.Delete(ctx, "fs_delete", at(t, "notes"), false); code(err) != deny.ToolConflict {
		t.Errorf("a full folder was removed: %v", err)
	}
	if err := w.Delete(ctx, "fs_delete", at(t, "notes"), true); err != nil {
		t.Error(err)
	}
	if _, err := w.get(ctx, p); code(err) != deny.ToolMissing {
		t.Error(err)
	}
	w.agrees(t)
	if b, f := w.budget.Used(); b != 0 || f != 0 {
		t.Errorf("%d bytes, %d files are left over", b, f)
	}
}

func TestAContentTypeStaysWithItsFile(t *testing.T) {
	dir := t.TempDir()
	w, ctx := open(t, dir, roomy), t.Context()
	if !w.xattrs {
		t.Skip("this file system has no extended attributes for users")
	}
	f, err := w.Create(ctx, "fs_write", at(t, "a"), -1, "Image/PNG")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Abort()
	_, _ = f.Write([]byte("no png"))
	if _, err := f.Commit(); err != nil {
		t.Fatal(err)
	}
	if st, err := w.Stat(ctx, "fs_stat", at(t, "a")); err != nil || st.ContentType != "image/png" {
		t.Error(st, err)
	}
	if _, err := w.Create(ctx, "fs_write", at(t, "b"), 1, "text/html\r\nSet-Cookie: a=b"); code(err) != deny.ToolInvalid {
		t.Errorf("a header in a content type was taken: %v", err)
	}
}

func TestWhatIsNoFileOrFolderIsNeverTouched(t *testing.T) {
	w, ctx := open(t, t.TempDir(), roomy), t.Context()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = os.Mkdir(w.files("d"), 0o700)
	for name, make := range map[string]func(to string) error{
		"link":     func(to string) error { return os.Symlink(secret, to) },
		"relative": func(to string) error { return os.Symlink("d", to) },
		"magic":    func(to string) error { return os.Symlink("/proc/self/cwd", to) },
		"dangling": func(to string) error { return os.Symlink("nowhere", to) },
		"second":   func(to string) error { return os.Link(secret, to) },
		"fifo":     func(to string) error { return unix.Mkfifo(to, 0o600) },
		"socket": func(to string) error {
			l, err := net.Listen("unix", to)
			if err == nil {
				l.(*net.UnixListener).SetUnlinkOnClose(false)
				err = l.Close()
			}
			return err
		},
		"device": func(to string) error {
			if err := unix.Mknod(to, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))); err != nil {
				return unix.Mkfifo(to, 0o600) // only root makes devices
			}
			return nil
		},
	} {
		if err := make(w.files(name)); err != nil {
			t.Fatal(name, err)
		}
		before, err := os.Lstat(w.files(name))
		if err != nil {
			t.Fatal(err)
		}
		p := at(t, name)
		_, readErr := w.get(ctx, p)
		_, writeErr := w.put(ctx, p, []byte("x"))
		_, statErr := w.Stat(ctx, "fs_stat", p)
		for call, err := range map[string]error{"read": readErr, "write": writeErr, "stat": statErr, "delete": w.Delete(ctx, "fs_delete", p, true)} {
			if code(err) != deny.ToolUnsafe {
				t.Errorf("%s of a %s: %v", call, name, err)
			}
		}
		after, err := os.Lstat(w.files(name))
		if err != nil || after.Mode() != before.Mode() || !os.SameFile(before, after) {
			t.Errorf("the %s was changed: %v", name, err)
		}
		if name == "second" || name == "fifo" || name == "socket" || name == "device" {
			continue
		}
		// Through it, to something below.
		below := at(t, name+"/x")
		_, readErr = w.get(ctx, below)
		_, writeErr = w.put(ctx, below, []byte("x"))
		_, listErr := w.List(ctx, "fs_list", p)
		_, mkdirErr := w.Mkdir(ctx, "fs_mkdir", below)
		for call, err := range map[string]error{"read": readErr, "write": writeErr, "list": listErr, "mkdir": mkdirErr, "delete": w.Delete(ctx, "fs_delete", below, true)} {
			if code(err) != deny.ToolUnsafe {
				t.Errorf("%s through a %s: %v", call, name, err)
			}
		}
	}
	if got, err := os.ReadFile(secret); err != nil || string(got) != "secret" {
		t.Errorf("the secret is now %q %v", got, err)
	}
	list, err := w.List(ctx, "fs_list", Path{})
	for _, e := range list {
		if want := map[bool]string{true: "directory", false: "other"}[e.Name == "d"]; e.Type != want || e.ContentType != "" {
			t.Errorf("%+v", e)
		}
	}
	if err != nil || len(list) != 9 {
		t.Errorf("%d entries, %v", len(list), err)
	}
}

func TestNamesThatDifferInCaseAloneAreOneName(t *testing.T) {
	w, ctx := open(t, t.TempDir(), roomy), t.Context()
	if _, err := w.put(ctx, at(t, "Notes/Plan.md"), []byte("1")); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"notes/x", "NOTES/Plan.md", "Notes/plan.md", "Notes/PLAN.MD", "Notes/Plan.MD", "nOTES"} {
		if _, err := w.put(ctx, at(t, p), []byte("2")); code(err) != deny.ToolUnsafe {
			t.Errorf("%s was taken: %v", p, err)
		}
		if _, err := w.Mkdir(ctx, "fs_mkdir", at(t, p)); code(err) != deny.ToolUnsafe {
			t.Errorf("%s was made: %v", p, err)
		}
	}
	w.agrees(t)
}

func TestARefusedWriteLeavesNothingBehind(t *testing.T) {
	w, ctx := open(t, t.TempDir(), storage.Limits{Bytes: 100, Files: 5}), t.Context()
	if _, err := w.put(ctx, at(t, "kept"), bytes.Repeat([]byte("a"), 60)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.put(ctx, at(t, "a/b/more"), bytes.Repeat([]byte("b"), 41)); code(err) != deny.ToolQuota {
		t.Error(err)
	}
	// Its size is not known before; it is found out in the middle.
	f, err := w.Create(ctx, "fs_write", at(t, "kept"), -1, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(struct{ io.Writer }{f}, strings.NewReader(strings.Repeat("c", 101))); code(err) != deny.ToolQuota {
		t.Error(err)
	}
	f.Abort()
	if got, err := w.get(ctx, at(t, "kept")); err != nil || string(got) != strings.Repeat("a", 60) {
		t.Errorf("%q %v", got, err)
	}
	if _, err := w.put(ctx, at(t, "1/2/3/4/5"), nil); code(err) != deny.ToolQuota {
		t.Errorf("more folders than may be were made: %v", err)
	}
	if names, _ := entries(w.root, -1); len(names) != 1 {
		t.Errorf("there are %v", names)
	}
	// What it replaces is given back, so a full quota can be written anew.
	if _, err := w.put(ctx, at(t, "kept"), bytes.Repeat([]byte("d"), 100)); err != nil {
		t.Error(err)
	}
	if _, err := w.put(ctx, at(t, "kept"), bytes.Repeat([]byte("e"), 101)); code(err) != deny.ToolQuota {
		t.Error(err)
	}
	for _, n := range []int64{0, 4, 6} {
		f, err := w.Create(ctx, "fs_write", at(t, "kept"), n, "")
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.Write([]byte("12345"))
		if err == nil {
			_, err = f.Commit()
		}
		if code(err) != deny.ToolInvalid {
			t.Errorf("5 bytes were taken for %d: %v", n, err)
		}
		f.Abort()
	}
	w.agrees(t)
}

func TestAFolderHoldsABoundedNumberOfNames(t *testing.T) {
	w, ctx := open(t, t.TempDir(), roomy), t.Context()
	if _, err := w.put(ctx, at(t, "0"), nil); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < MaxEntries; i++ { // further names of it: made faster than files
		if err := unix.Linkat(w.root, "0", w.root, fmt.Sprint(i), 0); err != nil {
			t.Fatal(err)
		}
	}
	w.budget.Count(0, MaxEntries-1)
	if _, err := w.put(ctx, at(t, "one more"), nil); code(err) != deny.ToolQuota {
		t.Error(err)
	}
	if list, err := w.List(ctx, "fs_list", Path{}); err != nil || len(list) != MaxEntries {
		t.Error(len(list), err)
	}
	w.agrees(t)
}

// TestQuotasAreExactUnderConcurrency has writers of all kinds on the same few
// names at once; at no time more is counted than may be, and at the end what is counted
// is what is there.
func TestQuotasAreExactUnderConcurrency(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		limits := storage.Limits{Bytes: rapid.Int64Range(0, 5000).Draw(r, "bytes"), Files: rapid.Int64Range(0, 8).Draw(r, "files")}
		w := open(t, t.TempDir(), limits)
		defer w.Close()
		paths := []string{"a", "b", "d/a", "d/b", "d/e/f", "g/h"}
		type op struct {
			path string
			size int
			kind int
		}
		plan := rapid.SliceOfN(rapid.SliceOfN(rapid.Custom(func(r *rapid.T) op {
			return op{rapid.SampledFrom(paths).Draw(r, "path"), rapid.IntRange(0, 2000).Draw(r, "size"), rapid.IntRange(0, 9).Draw(r, "kind")}
		}), 1, 6), 2, 4).Draw(r, "plan")
		var wg sync.WaitGroup
		for _, ops := range plan {
			wg.Go(func() {
				for _, o := range ops {
					p, ctx := at(t, o.path), context.Background()
					var err error
					switch o.kind {
					case 0:
						err = w.Delete(ctx, "fs_delete", p, true)
					case 1:
						err = w.Delete(ctx, "fs_delete", at(t, "d"), true)
					case 2:
						_, err = w.Mkdir(ctx, "fs_mkdir", p)
					case 3:
						var f *Writer
						if f, err = w.Create(ctx, "fs_write", p, -1, ""); err == nil {
							_, err = f.Write(make([]byte, o.size))
							f.Abort()
						}
					case 4, 5:
						var f *Writer
						if f, err = w.Create(ctx, "fs_write", p, -1, ""); err == nil {
							for range 2 {
								if _, err = f.Write(make([]byte, o.size/2)); err != nil {
									break
								}
							}
							if err == nil {
								_, err = f.Commit()
							}
							f.Abort()
						}
					default:
						_, err = w.put(ctx, p, make([]byte, o.size))
					}
					switch code(err) {
					case "", deny.ToolQuota, deny.ToolMissing, deny.ToolConflict:
					default:
						t.Errorf("%+v: %v", o, err)
					}
					if b, f := w.budget.Used(); b > limits.Bytes || f > limits.Files {
						t.Errorf("%d bytes and %d files are counted, of %+v", b, f, limits)
					}
				}
			})
		}
		wg.Wait()
		w.agrees(t)
		if t.Failed() {
			r.FailNow()
		}
	})
}

func TestASecondGatewayIsKeptOutAndTheNextOneCountsAnew(t *testing.T) {
	dir := t.TempDir()
	w := open(t, dir, roomy)
	if _, err := w.put(t.Context(), at(t, "d/f"), []byte("12345")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tmp", "half"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if _, err := Open(Config{Dir: root, Budget: storage.New(roomy)}); err == nil {
		t.Error("two gateways serve one folder")
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, dir, roomy)
	if b, f := again.budget.Used(); b != 5 || f != 2 {
		t.Errorf("%d bytes, %d files", b, f)
	}
	again.agrees(t)
}

func TestAgentsDoNotMeetUnderEachOthersNames(t *testing.T) {
	top := t.TempDir()
	for _, n := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(top, n), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	a, b := open(t, filepath.Join(top, "a"), roomy), open(t, filepath.Join(top, "b"), roomy)
	ctx := t.Context()
	if _, err := b.put(ctx, at(t, "notes/secret"), []byte("of b")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"notes/secret", "b/files/notes/secret", "../../b/files/notes/secret", "../b/files/notes/secret", b.files("notes", "secret"),
		"../../b/tmp", "files/../../../b/files/notes/secret", "..\\..\\b\\files\\notes\\secret", "/proc/self/cwd/../b/files/notes/secret",
	} {
		p, reason := Parse("test", name)
		if reason != nil {
			continue
		}
		if got, err := a.get(ctx, p); err == nil {
			t.Errorf("%q gave %q", name, got)
		}
		_ = a.Delete(ctx, "fs_delete", p, true)
		_, _ = a.put(ctx, p, []byte("of a"))
	}
	if got, err := b.get(ctx, at(t, "notes/secret")); err != nil || string(got) != "of b" {
		t.Errorf("%q %v", got, err)
	}
	b.agrees(t)
}

// TestWhatIsBeingWrittenStaysWithinTheQuota has one file replaced by many at once: until
// they are in its place all of them are on the disk.
func TestWhatIsBeingWrittenStaysWithinTheQuota(t *testing.T) {
	const size = 3 << 20
	limit := int64(2 * size)
	w, ctx := open(t, t.TempDir(), storage.Limits{Bytes: limit, Files: 10}), t.Context()
	p := at(t, "f")
	if _, err := w.put(ctx, p, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	for _, declared := range []int64{size, -1} {
		var writing []*Writer
		onDisk := int64(size)
		for range MaxWrites {
			f, err := w.Create(ctx, "fs_write", p, declared, "")
			if err == nil {
				writing = append(writing, f)
				var n int
				n, err = f.Write(make([]byte, size))
				onDisk += int64(n)
			}
			if err != nil && code(err) != deny.ToolQuota {
				t.Fatal(err)
			}
		}
		if onDisk > limit+MaxSpare {
			t.Errorf("%d bytes are on the disk, of %d and %d to spare", onDisk, limit, MaxSpare)
		}
		if onDisk < limit {
			t.Errorf("only %d bytes could be written, of %d", onDisk, limit)
		}
		for _, f := range writing {
			f.Abort()
		}
		w.agrees(t)
	}
	// What was to spare is there again, each time.
	if _, err := w.put(ctx, at(t, "g"), make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := w.put(ctx, p, make([]byte, size)); err != nil {
			t.Error(err)
		}
	}
	w.agrees(t)
}
