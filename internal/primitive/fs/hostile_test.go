package fs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/primitive/storage"
)

// The test program is also the hostile process, and the gateway that is killed.
func TestMain(m *testing.M) {
	switch os.Getenv("BULKHEAD_TEST_ROLE") {
	case "swap":
		swap(os.Args[1], os.Args[2])
	case "write":
		write(os.Args[1])
	default:
		os.Exit(m.Run())
	}
}

// role runs this program as one of the above.
func role(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command("/proc/self/exe", args...)
	c.Env = append(os.Environ(), "BULKHEAD_TEST_ROLE="+name)
	c.Stderr = os.Stderr
	return c
}

// swap puts links, pipes and second names where the folder d and the file d/f
// were, and back, until it is killed.
func swap(root, outside string) {
	d, aside, f := filepath.Join(root, "d"), filepath.Join(root, "aside"), filepath.Join(root, "d", "f")
	fmt.Println("swapping")
	for {
		_ = os.Rename(d, aside)
		_ = os.Symlink(outside, d)
		_ = os.Remove(d)
		_ = os.Symlink("../../../../../../../../"+outside, d)
		_ = os.Remove(d)
		_ = os.Rename(aside, d)
		_ = os.Remove(f)
		_ = os.Symlink(filepath.Join(outside, "f"), f)
		_ = os.Remove(f)
		_ = os.Link(filepath.Join(outside, "f"), f)
		_ = os.Remove(f)
		_ = os.MkdirAll(d, 0o700)
	}
}

// TestSwappingFoldersForLinksNeverLeadsOutside makes 10,000 calls while another
// process replaces what they name.
func TestSwappingFoldersForLinksNeverLeadsOutside(t *testing.T) {
	w := open(t, t.TempDir(), storage.Limits{Bytes: 1 << 40, Files: 1 << 30})
	outside := t.TempDir()
	secret := []byte("secret, outside")
	if err := os.WriteFile(filepath.Join(outside, "f"), secret, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if _, err := w.put(ctx, at(t, "d/f"), []byte("inside")); err != nil {
		t.Fatal(err)
	}
	c := role(t, "swap", w.files(), outside)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	var calls, refused, done atomic.Int64
	p, folder := at(t, "d/f"), at(t, "d")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for n := calls.Add(1); n <= 10_000; n = calls.Add(1) {
				var err error
				switch n % 6 {
				case 0:
					// One in six writes, because a write waits for the disk.
					_, err = w.put(ctx, p, []byte("inside"))
				case 1, 2:
					var got []byte
					if got, err = w.get(ctx, p); err == nil && bytes.Contains(got, secret) {
						t.Errorf("the secret was read")
					}
				case 3:
					var list []Entry
					if list, err = w.List(ctx, "fs_list", folder); err == nil {
						for _, e := range list {
							// The second name is shown as what it is, and the size of nothing.
							if e.Name != "f" || e.SizeBytes == int64(len(secret)) {
								t.Errorf("listed: %+v", e)
							}
						}
					}
				case 4:
					err = w.Delete(ctx, "fs_delete", p, true)
				case 5:
					_, err = w.Stat(ctx, "fs_stat", p)
				}
				switch code(err) {
				case "":
					done.Add(1)
				case deny.ToolUnsafe, deny.ToolMissing, deny.ToolConflict:
					refused.Add(1)
				default:
					t.Errorf("call %d: %v", n, err)
				}
			}
		})
	}
	wg.Wait()
	if done.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d calls went through and %d were refused: nothing was raced", done.Load(), refused.Load())
	}
	left, err := os.ReadDir(outside)
	if got, rerr := os.ReadFile(filepath.Join(outside, "f")); err != nil || rerr != nil || !bytes.Equal(got, secret) || len(left) != 1 {
		t.Errorf("outside there is now %q in %v (%v %v)", got, left, err, rerr)
	}
}

// content of one version of a file says which it is, in every byte.
func version(n int) []byte { return bytes.Repeat([]byte{byte(n)}, 3000+n%5000) }

// write replaces a few files for ever, and says what has been acknowledged.
func write(dir string) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		panic(err)
	}
	s, err := Open(Config{Dir: root, Budget: storage.New(roomy)})
	if err != nil {
		panic(err)
	}
	w := &world{Store: s}
	for i := range 4 {
		go func() {
			for n := 1; ; n++ {
				p, _ := Parse("test", fmt.Sprintf("d%d/f%d", n%3, i))
				if _, err := w.put(context.Background(), p, version(n)); err != nil {
					panic(err)
				}
				// One write of one line: the pipe keeps them whole.
				_, _ = fmt.Printf("d%d/f%d %d\n", n%3, i, n)
			}
		}()
	}
	select {}
}

func TestAfterKillingTheGatewayNothingAcknowledgedIsLostAndNothingIsHalf(t *testing.T) {
	dir := t.TempDir()
	for round := range 5 {
		c := role(t, "write", dir)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		acked := map[string]int{}
		for i := 0; i < 60+37*round; i++ {
			var name string
			var n int
			if _, err := fmt.Fscanln(out, &name, &n); err != nil {
				t.Fatal(err)
			}
			acked[name] = n
		}
		_ = c.Process.Kill()
		for {
			var name string
			var n int
			if _, err := fmt.Fscanln(out, &name, &n); err != nil {
				break // the rest of the pipe
			}
			acked[name] = n
		}
		_ = c.Wait()
		w := open(t, dir, roomy)
		for name, n := range acked {
			got, err := w.get(t.Context(), at(t, name))
			if err != nil || len(got) == 0 {
				t.Errorf("%s, version %d, is gone: %v", name, n, err)
				continue
			}
			// A later version may have got there unacknowledged; each is whole.
			if v := int(got[0]); v == byteOf(n) && bytes.Equal(got, version(n)) {
				continue
			}
			if later(got, n) {
				continue
			}
			t.Errorf("%s: version %d was acknowledged; there are %d bytes that begin with %d", name, n, len(got), got[0])
		}
		w.agrees(t)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func byteOf(n int) int { return n & 0xff }

// later says whether got is a whole version of the same file after n.
func later(got []byte, n int) bool {
	for v := n + 3; v <= n+9; v += 3 {
		if bytes.Equal(got, version(v)) {
			return true
		}
	}
	return false
}
