package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"bulkhead/internal/audit/protocol"
)

// asWriter says that this process is to write into a log until it is killed.
const asWriter = "BULKHEAD_AUDIT_WRITER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(asWriter); dir != "" {
		writeUntilKilled(dir)
	}
	os.Exit(m.Run())
}

func open(t testing.TB, dir string, witnesses ...protocol.Head) *Log {
	t.Helper()
	l, err := Open(dir, witnesses)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func recs(from, n int) []protocol.Record {
	out := make([]protocol.Record, n)
	for i := range out {
		out[i] = protocol.Record{Seq: uint64(from + i), Record: json.RawMessage(fmt.Sprintf(`{"schemaVersion":1, "kind":"tool","target":"mem_set <%d>","verdict":"allowed"}`, from+i))} // #nosec G115 -- small
	}
	return out
}

func add(t testing.TB, l *Log, agent string, from, n int) {
	t.Helper()
	taken, err := l.Append(t.Context(), "pair", agent, protocol.Append{List: "a", Records: recs(from, n)})
	if err != nil {
		t.Fatal(err)
	}
	if int(taken.Seq) != from+n-1 { // #nosec G115 -- small
		t.Fatalf("taken up to %d", taken.Seq)
	}
}

func logFile(dir string) string { return filepath.Join(dir, "log.jsonl") }

func read(t testing.TB, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func write(t testing.TB, path string, raw []byte) {
	t.Helper()
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTheTreeIsThatOfRFC6962(t *testing.T) {
	var tr tree
	var stored []tlog.Hash
	reader := tlog.HashReaderFunc(func(at []int64) ([]tlog.Hash, error) {
		out := make([]tlog.Hash, len(at))
		for i, x := range at {
			out[i] = stored[x]
		}
		return out, nil
	})
	for n := range int64(300) {
		want, err := tlog.TreeHash(n, reader)
		if err != nil || n > 0 && want != tr.root() {
			t.Fatalf("%d leaves: %s, want %s, %v", n, tr.root(), want, err)
		}
		leaf := []byte(strconv.FormatInt(n, 10))
		more, err := tlog.StoredHashes(n, leaf, reader)
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, more...)
		tr.add(leaf)
	}
}

func TestWhatIsTakenIsThereOnceAndInOrder(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	if got, err := l.Tail(protocol.Tail{After: -10}); err != nil || len(got.Lines) != 0 || got.Position != -1 {
		t.Fatalf("%+v, %v", got, err)
	}
	add(t, l, "writer", 1, 3)
	add(t, l, "writer", 2, 4) // 2 and 3 again: the answer was lost
	add(t, l, "reviewer", 1, 1)
	if _, err := l.Append(t.Context(), "pair", "writer", protocol.Append{List: "b", Records: recs(1, 2)}); err != nil {
		t.Fatal(err) // another list of the same gateway
	}
	check := func(l *Log) {
		t.Helper()
		got, err := l.Tail(protocol.Tail{After: -100})
		if err != nil || len(got.Lines) != 8 || got.Position != 7 {
			t.Fatalf("%+v, %v", got, err)
		}
		var seqs []string
		for i, x := range got.Lines {
			if x.Index != int64(i) || x.Team != "pair" {
				t.Errorf("%+v", x)
			}
			seqs = append(seqs, x.Agent+strconv.FormatUint(x.Seq, 10))
		}
		if s := strings.Join(seqs, " "); s != "writer1 writer2 writer3 writer4 writer5 reviewer1 writer1 writer2" {
			t.Error(s)
		}
		one, err := l.Tail(protocol.Tail{After: 3, Agent: "reviewer"})
		if err != nil || len(one.Lines) != 1 || one.Lines[0].Index != 5 || one.Position != 7 {
			t.Errorf("%+v, %v", one, err)
		}
		if two, err := l.Tail(protocol.Tail{After: one.Position}); err != nil || len(two.Lines) != 0 || two.Position != 7 {
			t.Errorf("%+v, %v", two, err)
		}
		if v := l.Verify(protocol.Verify{Witnesses: []protocol.Head{l.Head()}}); v.Problem != "" || v.Lines != 8 || v.Covers != 8 || v.Root != l.Head().Root {
			t.Errorf("%+v", v)
		}
	}
	check(l)
	head := l.Head()
	_ = l.Close()
	l = open(t, dir, head)
	check(l)
	add(t, l, "writer", 5, 1) // is there already
	check(l)
}

func TestACheckpointIsASignedNote(t *testing.T) {
	l := open(t, t.TempDir())
	add(t, l, "writer", 1, 5)
	v := l.Verify(protocol.Verify{})
	key, err := note.NewVerifier(v.Key)
	if err != nil {
		t.Fatal(err)
	}
	n, err := note.Open([]byte(v.Checkpoint), note.VerifierList(key))
	if err != nil || n.Text != "bulkhead-audit\n5\n"+v.Root+"\n" {
		t.Errorf("%+v, %v", n, err)
	}
}

// A captured gateway has its own token, and may say what it likes in a record: it
// stands under its own name all the same, and takes no number of another's.
func TestARecordStandsUnderWhoWroteIt(t *testing.T) {
	l := open(t, t.TempDir())
	forged := protocol.Append{List: "a", Records: []protocol.Record{{Seq: 1, Record: []byte(`{"team":"pair","agent":"editor","kind":"tool","verdict":"allowed","target":"forged"}`)}}}
	for _, agent := range []string{"writer", "editor"} { // the same list and number
		if taken, err := l.Append(t.Context(), "pair", agent, forged); err != nil || taken.Seq != 1 {
			t.Fatalf("%s: %v %v", agent, taken, err)
		}
	}
	lines, err := l.Tail(protocol.Tail{Agent: "writer", After: -10})
	if err != nil || len(lines.Lines) != 1 || lines.Lines[0].Agent != "writer" {
		t.Errorf("%+v %v", lines, err)
	}
	if lines, err = l.Tail(protocol.Tail{Agent: "editor", After: -10}); err != nil || len(lines.Lines) != 1 {
		t.Errorf("%+v %v", lines, err)
	}
	if _, err := l.Append(t.Context(), "pair", "writer", forged); err != nil { // sent again
		t.Fatal(err)
	}
	if n := l.Head().Lines; n != 2 {
		t.Errorf("%d lines: a number was taken twice", n)
	}
}

func TestBadRecordsAreNotTaken(t *testing.T) {
	l := open(t, t.TempDir())
	for name, q := range map[string]protocol.Append{
		"none":         {List: "a"},
		"too many":     {List: "a", Records: recs(1, protocol.MaxRecords+1)},
		"no list":      {Records: recs(1, 1)},
		"a long list":  {List: strings.Repeat("x", 65), Records: recs(1, 1)},
		"number 0":     {List: "a", Records: recs(0, 1)},
		"numbers fall": {List: "a", Records: append(recs(5, 1), recs(4, 1)...)},
		"a string":     {List: "a", Records: []protocol.Record{{Seq: 1, Record: []byte(`"x"`)}}},
		"null":         {List: "a", Records: []protocol.Record{{Seq: 1, Record: []byte(`null`)}}},
		"no JSON":      {List: "a", Records: []protocol.Record{{Seq: 1, Record: []byte("{}\n{\"checkpoint\":\"x\"}")}}},
	} {
		if _, err := l.Append(t.Context(), "pair", "writer", q); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if l.Head().Lines != 0 {
		t.Error("something is in the log")
	}
}

func TestALongRecordIsCutAndStopsNobody(t *testing.T) {
	l := open(t, t.TempDir())
	q := protocol.Append{List: "a", Records: recs(1, 3)}
	q.Records[1].Record = []byte(`{"target":"` + strings.Repeat("x", protocol.MaxRecord) + `"}`)
	if taken, err := l.Append(t.Context(), "pair", "writer", q); err != nil || taken.Seq != 3 {
		t.Fatalf("%v, %v", taken, err)
	}
	raw := string(read(t, logFile(l.dir)))
	if l.Head().Lines != 3 || len(raw) > protocol.MaxRecord || !strings.Contains(raw, `"detail":"cut, since the record had `) {
		t.Errorf("%d lines in %d bytes", l.Head().Lines, len(raw))
	}
}

func TestAFullDiskStopsWhoFilledItFirst(t *testing.T) {
	l := open(t, t.TempDir())
	var left atomic.Uint64
	left.Store(2 * lowFree)
	l.free = func() (uint64, error) { return left.Load(), nil }
	long := recs(1, 20)
	for i := range long {
		long[i].Record = []byte(`{"target":"` + strings.Repeat("x", 1000) + `"}`)
	}
	give := func(agent string, q []protocol.Record) error {
		_, err := l.Append(t.Context(), "pair", agent, protocol.Append{List: "a", Records: q})
		return err
	}
	for _, agent := range []string{"writer", "reviewer"} {
		if err := give(agent, recs(1, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := give("writer", append(recs(2, 1), long[2:]...)); err != nil {
		t.Fatal(err)
	}
	left.Store(lowFree - 1)
	if err := give("writer", recs(50, 1)); err != nil {
		t.Errorf("what it wrote does not matter to the disk: %v", err)
	}
	l.enough = 1000
	if err := give("writer", recs(100, 1)); err == nil || !strings.Contains(err.Error(), "more than its share") {
		t.Errorf("who filled the disk: %v", err)
	}
	if err := give("reviewer", recs(100, 1)); err != nil {
		t.Errorf("who did not: %v", err)
	}
	left.Store(minFree - 1)
	if err := give("reviewer", recs(200, 1)); err == nil || !strings.Contains(err.Error(), "are free") {
		t.Errorf("nothing is left: %v", err)
	}
	left.Store(lowFree)
	if err := give("writer", recs(100, 1)); err != nil {
		t.Errorf("there is room again: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	bytes := maps.Clone(l.state.bytes)
	if l = open(t, l.dir); !maps.Equal(l.state.bytes, bytes) || len(bytes) != 2 {
		t.Errorf("read anew: %v, before: %v", l.state.bytes, bytes)
	}
}

// sample writes three batches and gives where each ends.
func sample(t testing.TB, dir string) (raw []byte, ends []int, heads []protocol.Head) {
	t.Helper()
	l, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	ends, heads = []int{0}, []protocol.Head{l.Head()}
	for i := range 3 {
		if _, err := l.Append(t.Context(), "pair", "writer", protocol.Append{List: "a", Records: recs(1+2*i, 2)}); err != nil {
			t.Fatal(err)
		}
		ends, heads = append(ends, len(read(t, logFile(dir)))), append(heads, l.Head())
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return read(t, logFile(dir)), ends, heads
}

func TestACutLogIsNoticed(t *testing.T) {
	dir := t.TempDir()
	raw, ends, heads := sample(t, dir)
	for cut := 0; cut < len(raw); cut++ {
		batches := 0
		for ends[batches+1] <= cut {
			batches++
		}
		// What root has witnessed must be there.
		if _, _, err := scanned(t, dir, raw[:cut], heads[1:]); err == nil {
			t.Errorf("cut to %d bytes: it is taken", cut)
		}
		// Without a witness this is what a crash leaves: whole batches stand.
		head, size, err := scanned(t, dir, raw[:cut], heads[1:batches+1])
		if err != nil || head != heads[batches] || size != ends[batches] {
			t.Errorf("cut to %d bytes: %+v, %d, %v; want %+v", cut, head, size, err, heads[batches])
		}
		if cut%397 != 0 {
			continue
		}
		write(t, logFile(dir), raw[:cut])
		if _, err := Open(dir, heads[1:]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("cut to %d bytes: it is opened, %v", cut, err)
		}
		l, err := Open(dir, heads[1:batches+1]) // and it goes on
		if err != nil {
			t.Fatalf("cut to %d bytes: %v", cut, err)
		}
		add(t, l, "writer", 1, 6)
		if v := l.Verify(protocol.Verify{Witnesses: heads[1 : batches+1]}); v.Problem != "" || v.Lines != 6 {
			t.Errorf("cut to %d bytes, and on: %+v", cut, v)
		}
		_ = l.Close()
	}
}

// scanned reads a log from memory, under the key of dir.
func scanned(t testing.TB, dir string, raw []byte, witnesses []protocol.Head) (protocol.Head, int, error) {
	t.Helper()
	key, err := note.NewVerifier(strings.TrimSpace(string(read(t, filepath.Join(dir, "key.pub")))))
	if err != nil {
		t.Fatal(err)
	}
	s := newState(key)
	size, err := scan(bytes.NewReader(raw), s, witnesses, func(*entry, int64) {})
	return protocol.Head{Lines: s.tree.n, Root: s.tree.root().String()}, int(size), err
}

func TestAChangedByteIsNoticed(t *testing.T) {
	dir := t.TempDir()
	raw, _, heads := sample(t, dir)
	for at := range raw {
		for _, x := range []byte{0x01, 0x20, 0x80} {
			bad := slices.Clone(raw)
			bad[at] ^= x
			if head, _, err := scanned(t, dir, bad, heads[1:]); err == nil {
				t.Errorf("byte %d ^ %x: it is taken with %+v", at, x, head)
			}
		}
	}
}

func TestARewrittenLogIsNoticed(t *testing.T) {
	dir := t.TempDir()
	_, _, heads := sample(t, dir)
	// Who has the account writes the whole log anew with its own key.
	if err := os.Remove(logFile(dir)); err != nil {
		t.Fatal(err)
	}
	l, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	add(t, l, "writer", 1, 20)
	if v := l.Verify(protocol.Verify{}); v.Problem != "" {
		t.Error(v.Problem)
	}
	if v := l.Verify(protocol.Verify{Witnesses: heads[1:]}); !strings.Contains(v.Problem, "witnessed") {
		t.Errorf("verify: %+v", v)
	}
	_ = l.Close()
	if _, err := Open(dir, heads[1:]); !errors.Is(err, ErrCorrupt) {
		t.Errorf("it is opened: %v", err)
	}
}

func TestAChangeWhileItRunsIsNoticedByVerify(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	add(t, l, "writer", 1, 5)
	raw := read(t, logFile(dir))
	f, err := os.OpenFile(logFile(dir), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.WriteAt([]byte("3"), int64(bytes.Index(raw, []byte("mem_set"))+3)); err != nil {
		t.Fatal(err)
	}
	if v := l.Verify(protocol.Verify{}); v.Problem == "" {
		t.Errorf("%+v", v)
	}
}

func TestKeysThatDoNotFitAreNotUsed(t *testing.T) {
	dir := t.TempDir()
	sample(t, dir)
	key, public := read(t, filepath.Join(dir, "key")), read(t, filepath.Join(dir, "key.pub"))
	other := t.TempDir()
	sample(t, other)
	for name, change := range map[string]func(){
		"no key":        func() { _ = os.Remove(filepath.Join(dir, "key")) },
		"another key":   func() { write(t, filepath.Join(dir, "key"), read(t, filepath.Join(other, "key"))) },
		"no public key": func() { _ = os.Remove(filepath.Join(dir, "key.pub")) },
		"another pair": func() {
			write(t, filepath.Join(dir, "key"), read(t, filepath.Join(other, "key")))
			write(t, filepath.Join(dir, "key.pub"), read(t, filepath.Join(other, "key.pub")))
		},
		"no text": func() { write(t, filepath.Join(dir, "key"), []byte("x")) },
	} {
		change()
		if l, err := Open(dir, nil); err == nil {
			t.Errorf("%s: it is opened", name)
			_ = l.Close()
		}
		write(t, filepath.Join(dir, "key"), key)
		write(t, filepath.Join(dir, "key.pub"), public)
	}
	_ = open(t, dir)
}

// After a power cut blocks of the last write may be zeros although later ones
// are there.
func TestZerosInTheLastWriteAreACrash(t *testing.T) {
	dir := t.TempDir()
	raw, ends, heads := sample(t, dir)
	torn := slices.Clone(raw)
	clear(torn[ends[2]+10 : ends[2]+40])
	write(t, logFile(dir), torn)
	l, err := Open(dir, heads[1:3])
	if err != nil {
		t.Fatal(err)
	}
	if l.Head() != heads[2] {
		t.Errorf("%+v", l.Head())
	}
	_ = l.Close()
	torn = slices.Clone(raw)
	clear(torn[ends[1]+10 : ends[1]+40]) // before one that was answered
	write(t, logFile(dir), torn)
	if _, err := Open(dir, nil); !errors.Is(err, ErrCorrupt) {
		t.Errorf("zeros in the middle: %v", err)
	}
}

func TestManyWriteAtOnce(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	var work sync.WaitGroup
	for a := range 8 {
		work.Go(func() {
			for i := range 20 {
				if _, err := l.Append(t.Context(), "pair", "agent"+strconv.Itoa(a), protocol.Append{List: "a", Records: recs(1+5*i, 5)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	if v := l.Verify(protocol.Verify{}); v.Problem != "" || v.Lines != 800 {
		t.Errorf("%+v", v)
	}
	position, n := int64(-1), 0
	for {
		got, err := l.Tail(protocol.Tail{After: max(position, 0), Limit: 100})
		if position < 0 {
			got, err = l.Tail(protocol.Tail{After: -800, Limit: 100})
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Lines) == 0 {
			break
		}
		n, position = n+len(got.Lines), got.Position
	}
	if n != 800 {
		t.Errorf("%d lines by pages", n)
	}
}

// writeUntilKilled tells each number once it was taken.
func writeUntilKilled(dir string) {
	l, err := Open(dir, nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	from := 1
	for s := range l.state.seqs {
		from = int(l.state.seqs[s]) + 1 // #nosec G115 -- small
	}
	for ; ; from++ {
		if _, err := l.Append(context.Background(), "pair", "writer", protocol.Append{List: "a", Records: recs(from, 1)}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(from)
	}
}

func TestWhatWasTakenSurvivesAKill(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	last := 0
	for round := range 5 {
		c := exec.CommandContext(t.Context(), self) // #nosec G204 -- this test
		c.Env = append(os.Environ(), asWriter+"="+dir)
		c.Stderr = os.Stderr
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		s := bufio.NewScanner(out)
		for range 10 + 7*round { // then it is in the middle of the next
			if !s.Scan() {
				t.Fatal("it ended by itself")
			}
			if last, err = strconv.Atoi(s.Text()); err != nil {
				t.Fatal(err)
			}
		}
		_ = c.Process.Kill()
		for s.Scan() {
			if last, err = strconv.Atoi(s.Text()); err != nil {
				t.Fatal(err)
			}
		}
		_ = c.Wait()
		l, err := Open(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		if v := l.Verify(protocol.Verify{}); v.Problem != "" || v.Lines < int64(last) {
			t.Errorf("round %d: told of %d: %+v", round, last, v)
		}
		last = int(l.Head().Lines)
		_ = l.Close()
	}
	if last < 50 {
		t.Errorf("%d lines", last)
	}
}

func FuzzScan(f *testing.F) {
	dir := f.TempDir()
	raw, ends, _ := sample(f, dir)
	public := strings.TrimSpace(string(read(f, filepath.Join(dir, "key.pub"))))
	f.Add(raw)
	f.Add(raw[:ends[2]])
	f.Add(append(slices.Clone(raw[:ends[1]]), "{\"index\":2"...))
	f.Add([]byte("\x00\x00{\"checkpoint\":\"\"}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		key, err := note.NewVerifier(public)
		if err != nil {
			t.Fatal(err)
		}
		s := newState(key)
		size, err := scan(bytes.NewReader(data), s, nil, func(*entry, int64) {})
		if err != nil {
			return
		}
		// Only what was written under this key is taken, to the byte.
		if !bytes.HasPrefix(raw, data[:size]) || !slices.Contains(ends, int(size)) {
			t.Errorf("%q is taken up to %d", data, size)
		}
	})
}
