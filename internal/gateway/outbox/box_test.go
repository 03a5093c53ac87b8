package outbox

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/adapter"
	"bulkhead/internal/deny"
)

const childDir = "BULKHEAD_OUTBOX_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		child(dir, os.Args[1])
		return
	}
	os.Exit(m.Run())
}

func draft(n int) adapter.Draft {
	return adapter.Draft{
		IdempotencyKey: fmt.Sprintf("00000000-0000-4000-8000-%012d", n), To: "pm", Type: "note", Priority: adapter.Normal,
		Body: json.RawMessage(strconv.Itoa(n)),
	}
}

func open(t *testing.T, dir string) *Box {
	t.Helper()
	b, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func add(t *testing.T, b *Box, n int) {
	t.Helper()
	if _, err := b.Add(draft(n)); err != nil {
		t.Fatal(err)
	}
}

func bodies(b *Box) []string {
	var out []string
	list, _ := b.Waiting(MaxMessages)
	for _, w := range list {
		out = append(out, string(w.Draft.Body))
	}
	return out
}

func TestWhatWaitsIsThereInOrderAfterARestart(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	for n := range 5 {
		add(t, b, n)
	}
	list, _ := b.Waiting(10)
	b.Done(list[1].Number)
	no := &deny.Reason{Layer: deny.LayerMessages, Code: deny.MessageNotAllowed, What: "send", Why: "w", Mend: "m"}
	if err := b.Refuse(list[2].Number, no); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil {
		t.Fatal("two gateways hold one outbox")
	}
	_ = b.Close()
	b = open(t, dir)
	if got := bodies(b); !slices.Equal(got, []string{"0", "3", "4"}) {
		t.Fatalf("waiting: %q", got)
	}
	r := b.Refused()
	if len(r) != 1 || string(r[0].Draft.Body) != "2" || r[0].Reason.Code != deny.MessageNotAllowed || r[0].Queued.IsZero() || r[0].At.IsZero() {
		t.Fatalf("refused: %+v", r)
	}
	add(t, b, 5)
	if got := bodies(b); !slices.Equal(got, []string{"0", "3", "4", "5"}) {
		t.Fatalf("waiting: %q", got)
	}
}

func TestAKeyWaitsOnce(t *testing.T) {
	b := open(t, t.TempDir())
	add(t, b, 1)
	if again, err := b.Add(draft(1)); !again || err != nil {
		t.Fatalf("again %v, %v", again, err)
	}
	other := draft(1)
	other.Body = json.RawMessage(`"other"`)
	if _, err := b.Add(other); !errors.Is(err, ErrKeyReused) {
		t.Fatalf("another content: %v", err)
	}
	if b.Len() != 1 {
		t.Fatalf("%d wait", b.Len())
	}
}

func TestItTakesAThousandAndSaysSo(t *testing.T) {
	b := open(t, t.TempDir())
	var work sync.WaitGroup
	for w := range 20 {
		work.Go(func() {
			for n := range MaxMessages / 20 {
				if _, err := b.Add(draft(w*1000 + n)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	if _, err := b.Add(draft(1 << 20)); !errors.Is(err, ErrFull) || b.Len() != MaxMessages {
		t.Fatalf("%d wait, and one more: %v", b.Len(), err)
	}
	list, changed := b.Waiting(1)
	b.Done(list[0].Number)
	select {
	case <-changed:
	default:
		t.Error("nobody is told of the change")
	}
	add(t, b, 1<<20)
	big := draft(1 << 21)
	for n := 0; ; n++ {
		list, _ = b.Waiting(1)
		b.Done(list[0].Number)
		big.IdempotencyKey = draft(1<<21 + n).IdempotencyKey
		big.Body = json.RawMessage(`"` + strings.Repeat("a", adapter.MaxBody-2) + `"`)
		if _, err := b.Add(big); errors.Is(err, ErrFull) {
			if n < MaxBytes/adapter.MaxBody-1 {
				t.Fatalf("full after %d bodies of 1 MiB", n)
			}
			return
		} else if err != nil || n > MaxBytes/adapter.MaxBody {
			t.Fatalf("after %d bodies of 1 MiB: %v", n, err)
		}
	}
}

// Whatever a crash leaves of the end, everything before it counts and nothing
// else does.
func TestEveryPrefixOfTheFileOpens(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	type state struct {
		size    int64
		waiting []string
		refused int
	}
	var states []state
	note := func() {
		i, err := os.Stat(b.path())
		if err != nil {
			t.Fatal(err)
		}
		states = append(states, state{i.Size(), bodies(b), len(b.Refused())})
	}
	note()
	for n := range 6 {
		add(t, b, n)
		note()
	}
	list, _ := b.Waiting(10)
	if err := b.Refuse(list[2].Number, &deny.Reason{Code: deny.MessageQuota}); err != nil {
		t.Fatal(err)
	}
	note()
	b.Done(list[0].Number)
	add(t, b, 6) // takes the end of 0 along
	_ = b.Close()
	text, err := os.ReadFile(b.path())
	if err != nil {
		t.Fatal(err)
	}
	for cut := 0; cut < len(text); cut += 7 {
		sub := t.TempDir()
		if err := os.WriteFile(filepath.Join(sub, "outbox.log"), text[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		b := open(t, sub)
		var want state
		for _, s := range states {
			if s.size <= int64(cut) {
				want = s
			}
		}
		got := bodies(b)
		if last := states[len(states)-1]; int64(cut) > last.size && len(got) < len(last.waiting) {
			want.waiting = want.waiting[1:] // the end of 0 is there, 6 is not
		}
		if !slices.Equal(got, want.waiting) || len(b.Refused()) != want.refused || b.Damaged() != nil {
			t.Fatalf("cut at %d: %q waits, %d refused, %v; want %+v", cut, got, len(b.Refused()), b.Damaged(), want)
		}
		add(t, b, 100+cut)
		_ = b.Close()
		if got := bodies(open(t, sub)); !slices.Equal(got, append(slices.Clone(want.waiting), strconv.Itoa(100+cut))) {
			t.Fatalf("cut at %d, and one more: %q", cut, got)
		}
	}
}

func TestADamagedRecordCostsOnlyItself(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	for n := range 5 {
		add(t, b, n)
	}
	_ = b.Close()
	text, _ := os.ReadFile(b.path())
	at := strings.Index(string(text), "-000000000002")
	text[at] ^= 0x20
	if err := os.WriteFile(b.path(), text, 0o600); err != nil {
		t.Fatal(err)
	}
	b = open(t, dir)
	if got := bodies(b); !slices.Equal(got, []string{"0", "1", "3", "4"}) || b.Damaged() == nil {
		t.Fatalf("%q, %v", got, b.Damaged())
	}
	if kept, err := os.ReadFile(filepath.Join(dir, "outbox.damaged")); err != nil || string(kept) != string(text) {
		t.Fatalf("the damaged file was not kept: %v", err)
	}
}

func TestTheFileIsWrittenAnewAndKeepsWhatCounts(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	add(t, b, 1)
	add(t, b, 2)
	list, _ := b.Waiting(2)
	if err := b.Refuse(list[1].Number, &deny.Reason{Code: deny.MessageQuota}); err != nil {
		t.Fatal(err)
	}
	for n := range 40 { // 20 MiB pass through
		d := draft(10 + n)
		d.Body = json.RawMessage(`"` + strings.Repeat("<", adapter.MaxBody/2) + `"`)
		if _, err := b.Add(d); err != nil {
			t.Fatal(err)
		}
		list, _ := b.Waiting(10)
		b.Done(list[len(list)-1].Number)
	}
	add(t, b, 3)
	if i, err := os.Stat(b.path()); err != nil || i.Size() > rewriteOver+4<<20 {
		t.Fatalf("the file has %d bytes, %v", i.Size(), err)
	}
	_ = b.Close()
	b = open(t, dir)
	if got := bodies(b); !slices.Equal(got, []string{"1", "3"}) || len(b.Refused()) != 1 {
		t.Fatalf("%q, %d refused", got, len(b.Refused()))
	}
}

// child adds from many goroutines and prints what it was told is durable.
func child(dir, how string) {
	b, err := Open(dir)
	if err != nil {
		fmt.Println("error", err)
		return
	}
	if how == "limit" {
		limited(b)
		return
	}
	first, _ := strconv.Atoi(how)
	var mu sync.Mutex
	var work sync.WaitGroup
	for w := range 6 {
		work.Go(func() {
			for n := 0; ; n++ {
				d := draft(first + w*100_000 + n)
				if _, err := b.Add(d); err != nil {
					time.Sleep(time.Millisecond)
					n--
					continue
				}
				mu.Lock()
				fmt.Println("added", d.IdempotencyKey)
				mu.Unlock()
				if list, _ := b.Waiting(MaxMessages); len(list) > 300 {
					mu.Lock()
					fmt.Println("done", list[0].Draft.IdempotencyKey)
					mu.Unlock()
					b.Done(list[0].Number)
				}
			}
		})
	}
	work.Wait()
}

func TestWhatWasAddedSurvivesKills(t *testing.T) {
	dir := t.TempDir()
	added, done := map[string]bool{}, map[string]bool{}
	for round := range 15 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], strconv.Itoa((round+1)*1_000_000))
		cmd.Env = append(os.Environ(), childDir+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines, n := bufio.NewScanner(out), 0
		for lines.Scan() {
			what, key, _ := strings.Cut(lines.Text(), " ")
			switch what {
			case "added":
				added[key] = true
			case "done":
				done[key] = true
			default:
				t.Fatal(lines.Text())
			}
			if n++; n == 100+37*round {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait()
		b, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		here, last := map[string]bool{}, map[string]string{}
		list, _ := b.Waiting(MaxMessages)
		for _, w := range list {
			k := w.Draft.IdempotencyKey
			if here[k] {
				t.Errorf("%s is there twice", k)
			}
			here[k] = true
			if of := k[:len(k)-5]; last[of] >= k {
				t.Errorf("%s comes after %s", k, last[of])
			} else {
				last[of] = k
			}
		}
		for k := range added {
			if !here[k] && !done[k] {
				t.Errorf("round %d: %s is lost", round, k)
			}
		}
		if b.Damaged() != nil {
			t.Error(b.Damaged())
		}
		_ = b.Close()
	}
	if len(added) < 1000 {
		t.Errorf("only %d were added", len(added))
	}
}

// limited fills a disk that is full at 64 KiB, which is a file's limit here.
func limited(b *Box) {
	signal.Ignore(syscall.SIGXFSZ)
	limit := unix.Rlimit{Cur: 64 << 10, Max: unix.RLIM_INFINITY}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		fmt.Println("error", err)
		return
	}
	n := 0
	for ; n < MaxMessages; n++ {
		d := draft(n)
		d.Body = json.RawMessage(`"` + strings.Repeat("x", 1000) + `"`)
		if _, err := b.Add(d); err != nil {
			fmt.Println("refused", n, errors.Is(err, unix.EFBIG))
			break
		}
	}
	list, _ := b.Waiting(MaxMessages)
	fmt.Println("waiting", len(list))
	for _, w := range list[:10] {
		b.Done(w.Number)
	}
	_, err := b.Add(draft(5000))
	fmt.Println("after room was made:", err)
	list, _ = b.Waiting(MaxMessages)
	fmt.Println("waiting", len(list))
}

func TestAFullDiskIsToldAndOverWhenThereIsRoom(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "limit")
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var n, have, after int
	if _, err := fmt.Sscanf(string(out), "refused %d true\nwaiting %d\nafter room was made: <nil>\nwaiting %d\n", &n, &have, &after); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n < 40 || have != n || after != n-10+1 {
		t.Fatalf("%s", out)
	}
	if list, _ := open(t, dir).Waiting(MaxMessages); len(list) != after {
		t.Fatalf("%d are there, %d were promised", len(list), after)
	}
}

func TestManyAtOnce(t *testing.T) {
	b := open(t, t.TempDir())
	var work sync.WaitGroup
	for w := range 8 {
		work.Go(func() {
			for n := range 50 {
				if _, err := b.Add(draft(w*1000 + n)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	ended := map[string]bool{}
	for len(ended) < 400 {
		list, changed := b.Waiting(7)
		for i, w := range list {
			ended[w.Draft.IdempotencyKey] = true
			if i%2 == 0 {
				b.Done(w.Number)
			} else if err := b.Refuse(w.Number, &deny.Reason{Code: deny.MessageQuota}); err != nil {
				t.Error(err)
			}
		}
		if len(list) == 0 {
			<-changed
		}
	}
	work.Wait()
	if b.Len() != 0 {
		t.Errorf("%d are left", b.Len())
	}
}

func FuzzParse(f *testing.F) {
	d := draft(1)
	one, _ := appendRecord(nil, &entry{N: 1, Draft: &d})
	two, _ := appendRecord(one, &entry{N: 1, Done: true})
	f.Add(two, 3)
	f.Add([]byte(magic+magic), 0)
	f.Fuzz(func(t *testing.T, text []byte, at int) {
		all, end, skipped := parse(text)
		if end > len(text) || skipped > end {
			t.Fatalf("end %d, skipped %d of %d", end, skipped, len(text))
		}
		// A record that follows whatever there was is found.
		more, err := appendRecord(slices.Clone(text[:end]), &entry{N: 7, Draft: &d})
		if err != nil {
			t.Fatal(err)
		}
		again, _, _ := parse(more)
		if len(again) != len(all)+1 || again[len(all)].N != 7 {
			t.Fatalf("%d records and one more make %d", len(all), len(again))
		}
	})
}

func TestSameTakesWhiteSpaceForNothing(t *testing.T) {
	x := adapter.Draft{To: "bob", Body: []byte(`{"a": [1, "< b"]}`)}
	y := x
	for body, want := range map[string]bool{`{"a":[1,"< b"]}`: true, `{"a":[1,"<b"]}`: false, `{"a": [1, "< b"]}`: true, `{"a":[1,"< b"]`: false} {
		y.Body = []byte(body)
		if Same(x, y) != want {
			t.Errorf("%s: not %v", body, want)
		}
	}
	dir := t.TempDir()
	b := open(t, dir)
	d := adapter.Draft{IdempotencyKey: "6a9ae0d8-6a6b-4ce1-8e52-0a3c7f6b1f10", To: "bob", Type: "note", Body: []byte(`{"a": 1}`)}
	if _, err := b.Add(d); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = open(t, dir)
	if again, err := b.Add(d); err != nil || !again || b.Len() != 1 {
		t.Errorf("the same again, after it was read from disk: %v, %v; %d wait", again, err, b.Len())
	}
}
