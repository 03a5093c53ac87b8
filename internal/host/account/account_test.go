package account

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/host/ledger"
	"bulkhead/test/system/throwaway"
)

func etc(t *testing.T, passwd, subuid, subgid string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"passwd": passwd, "group": "", "subuid": subuid, "subgid": subgid} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const agentLine = "bh-t-a:x:1001:1001:Bulkhead:/nonexistent:/usr/sbin/nologin\n"

func TestARangeIsReliedOnOnlyWhenItIsAlone(t *testing.T) {
	const good = "bh-t-a:100000:65536\n"
	for name, c := range map[string]struct{ passwd, subuid, subgid, problem string }{
		"alone":                           {agentLine, good, good, ""},
		"next to another":                 {agentLine, good + "x:165536:65536\n", good + "x:165536:65536\n", ""},
		"named by number":                 {agentLine, "1001:100000:65536\n", "1001:100000:65536\n", ""},
		"absent":                          {agentLine, "", "", "no subordinate ids"},
		"absent for groups":               {agentLine, good, "", "no subordinate ids"},
		"twice":                           {agentLine, good + "bh-t-a:300000:65536\n", good, "2 entries"},
		"unequal":                         {agentLine, good, "bh-t-a:200000:65536\n", "different ranges"},
		"too small":                       {agentLine, "bh-t-a:100000:100\n", "bh-t-a:100000:100\n", "has 100"},
		"shared by one id":                {agentLine, good + "x:165535:10\n", good, "overlaps"},
		"shared in groups only":           {agentLine, good, good + "x:99999:2\n", "overlaps"},
		"shared by an identical range":    {agentLine, good + "x:100000:65536\n", good, "overlaps"},
		"holding an ordinary account":     {agentLine + "joe:x:100500:7:::\n", good, good, "holds the id 100500"},
		"holding an ordinary group":       {agentLine + "joe:x:7:165535:::\n", good, good, "holds the id 165535"},
		"with an account just beside it ": {agentLine + "joe:x:165536:99999:::\n", good, good, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Read(etc(t, c.passwd, c.subuid, c.subgid))
			if err != nil {
				t.Fatal(err)
			}
			u, ok := d.User("bh-t-a")
			if !ok {
				t.Fatal("the account is not read")
			}
			_, err = d.RangeOf(u, 65536)
			if c.problem == "" && err != nil {
				t.Errorf("refused: %v", err)
			}
			if c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)) {
				t.Errorf("error %v, want one that says %q", err, c.problem)
			}
		})
	}
}

func TestUnreadableAccountFilesAreRefusedWithTheirLine(t *testing.T) {
	for name, passwd := range map[string]string{
		"too few fields": "a:b\n", "id is no number": "a:x:one:1:::\n", "id is too large": "a:x:4294967296:1:::\n",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(etc(t, "# comment\n\n"+passwd, "", ""))
			if err == nil || !strings.Contains(err.Error(), "passwd:3:") {
				t.Errorf("error %v, want one that names passwd:3", err)
			}
		})
	}
}

func FuzzRange(f *testing.F) {
	f.Add("a:1:2")
	f.Add("a:4294967295:1")
	f.Fuzz(func(t *testing.T, line string) {
		r, err := parseRange(line)
		if err == nil && (r.Count == 0 || r.Last() < r.First) {
			t.Errorf("%q gives %+v, which wraps around", line, r)
		}
	})
}

func TestAccountsOnAHost(t *testing.T) {
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		l, err := ledger.Open(filepath.Join(t.TempDir(), "ledger"))
		if err != nil {
			t.Fatal(err)
		}
		a := &Accounts{Etc: "/etc", Ledger: l}
		ctx := context.Background()
		before, err := os.ReadFile("/etc/passwd")
		if err != nil {
			t.Fatal(err)
		}
		one := Request{Name: "bh-t-one", Home: "/nonexistent", Team: "t", Agent: "one", Range: 65536}
		two := Request{Name: "bh-t-two", Home: "/nonexistent", Team: "t", Agent: "two", Range: 65536}
		_, r1, err := a.Ensure(ctx, one)
		if err != nil {
			t.Fatal(err)
		}
		_, r2, err := a.Ensure(ctx, two)
		if err != nil {
			t.Fatal(err)
		}
		if r1.overlaps(r2) {
			t.Errorf("ranges %+v and %+v meet", r1, r2)
		}
		if _, again, err := a.Ensure(ctx, one); err != nil || again != r1 {
			t.Errorf("the second time: %+v, %v; want %+v", again, err, r1)
		}
		for _, name := range []string{"bh-t-one", "bh-t-two", "bh-t-one"} { // the last is gone already
			if err := a.Remove(ctx, name); err != nil {
				t.Error(err)
			}
		}
		after, err := os.ReadFile("/etc/passwd")
		if err != nil {
			t.Fatal(err)
		}
		if string(before) != string(after) {
			t.Error("passwd is not as it was before")
		}
		for name, c := range map[string]struct {
			before string
			taken  bool
		}{
			"a group of somebody else":          {"groupadd bh-t-three", true},
			"our group, to which one was added": {"", false},
		} {
			three := Request{Name: "bh-t-three", Home: "/nonexistent", Team: "t", Agent: "three", Range: 65536}
			if c.before != "" {
				if out, err := exec.Command("sh", "-c", c.before).CombinedOutput(); err != nil {
					t.Fatalf("%s: %v: %s", name, err, out)
				}
			}
			_, _, err := a.Ensure(ctx, three)
			if errors.Is(err, ErrTaken) != c.taken || !c.taken && err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if c.taken {
				if out, err := exec.Command("groupdel", "bh-t-three").CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				continue
			}
			if out, err := exec.Command("usermod", "-aG", "bh-t-three", "nobody").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if err := a.Remove(ctx, "bh-t-three"); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if d, err := Read("/etc"); err != nil || slices.Contains(d.Groups, "bh-t-three") {
				t.Errorf("%s: the group is left (%v)", name, err)
			}
		}
		if out, err := exec.Command("useradd", "-M", "bh-t-one").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if _, _, err := a.Ensure(ctx, one); !errors.Is(err, ErrTaken) {
			t.Errorf("an account of somebody else: %v, want ErrTaken", err)
		}
		if err := a.Remove(ctx, "bh-t-one"); err != nil {
			t.Error(err)
		}
		if d, err := Read("/etc"); err != nil {
			t.Error(err)
		} else if _, ok := d.User("bh-t-one"); !ok {
			t.Error("an account of somebody else was removed")
		}
	})
}

func TestToolsHoldTheLockOfWhoeverStartedThem(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	held, next := open(), open()
	defer func() { _ = next.Close() }()
	if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	started := make(chan struct{})
	go func() {
		a := Accounts{Held: held}
		close(started)
		ended <- a.run(t.Context(), "sleep", "1")
	}()
	<-started
	for { // ours twice (held and next), and the child's
		out, err := exec.Command("sh", "-c", "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c "+path+" || true").Output()
		if err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(string(out)) == "3" {
			break
		}
		time.Sleep(time.Millisecond)
	}
	_ = held.Close() // as the kernel does when the warden is killed
	if err := unix.Flock(int(next.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("while the tool runs: %v, want EWOULDBLOCK", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := unix.Flock(int(next.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("after the tool's end: %v", err)
	}
}
