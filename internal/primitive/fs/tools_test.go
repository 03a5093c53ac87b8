package fs

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/primitive/storage"
	"bulkhead/internal/record"
	"bulkhead/internal/tool"
)

// journal keeps records, as a gateway's store does.
type journal struct {
	mu      sync.Mutex
	records []record.Record
}

func (j *journal) Write(_ context.Context, r record.Record) error { j.Note(r); return nil }

func (j *journal) Note(r record.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.records = append(j.records, r)
}

func dispatcher(t testing.TB, w *world) (*tool.Dispatcher, *journal) {
	t.Helper()
	table, err := tool.NewTable(w.Tools()...)
	if err != nil {
		t.Fatal(err)
	}
	j := &journal{}
	return tool.New(tool.Config{Table: table, Journal: j, Allowed: []string{"fs"}, Rate: 1 << 20}), j
}

// call gives the answer, or the code of the refusal.
func call(t *testing.T, d *tool.Dispatcher, name, input string) string {
	t.Helper()
	out, r := d.Call(t.Context(), tool.Caller{Team: "t", Agent: "a"}, name, []byte(input))
	if r != nil {
		return string(r.Code)
	}
	return string(out)
}

func TestTheToolsAnswerInTheShapesOfTheContract(t *testing.T) {
	w := open(t, t.TempDir(), roomy)
	d, j := dispatcher(t, w)
	for _, c := range []struct{ name, input, want string }{
		{"fs_write", `{"path":"n/a.txt","data":"aGVsbG8="}`, `{"path":"n/a.txt","type":"file","sizeBytes":5,"contentType":"text/plain; charset=utf-8","modifiedAt":"`},
		{"agentos.fs_write", `{"path":"n/b.json","content":"e30=","contentType":"application/json"}`, `{"path":"n/b.json","type":"file","sizeBytes":2,"contentType":"application/json","modifiedAt":"`},
		{"fs_write", `{"path":"t.md","text":"grüße"}`, `{"path":"t.md","type":"file","sizeBytes":7,`},
		{"fs_read", `{"path":"n/a.txt"}`, `{"path":"n/a.txt","data":"aGVsbG8=","contentType":"text/plain; charset=utf-8","sizeBytes":5}`},
		{"fs_read", `{"path":"t.md","as":"text"}`, `{"path":"t.md","text":"grüße","contentType":"text/markdown; charset=utf-8","sizeBytes":7}`},
		{"fs_read", `{"path":"n/a.txt","offset":1,"length":3}`, `{"path":"n/a.txt","data":"ZWxs","contentType":"text/plain; charset=utf-8","sizeBytes":5}`},
		{"fs_read", `{"path":"n/a.txt","offset":9}`, `{"path":"n/a.txt","data":"","contentType":"text/plain; charset=utf-8","sizeBytes":5}`},
		{"fs_read", `{"path":"t.md","as":"text","length":3}`, "tools.conflict"},
		{"fs_list", `{}`, `{"path":".","entries":[{"name":"n","path":"n","type":"directory","sizeBytes":0,"modifiedAt":"`},
		{"fs_list", `{"path":"n"}`, `{"path":"n","entries":[{"name":"a.txt","path":"n/a.txt","type":"file","sizeBytes":5,"modifiedAt":"`},
		{"fs_list", `{"path":"t.md"}`, "tools.conflict"},
		{"fs_mkdir", `{"path":"x/y"}`, `{"path":"x/y","created":true}`},
		{"fs_mkdir", `{"path":"x/y"}`, `{"path":"x/y","created":false}`},
		{"fs_mkdir", `{"path":"t.md"}`, "tools.conflict"},
		{"fs_stat", `{"path":"x"}`, `{"path":"x","type":"directory","sizeBytes":0,"modifiedAt":"`},
		{"fs_stat", `{"path":"nowhere"}`, "tools.missing"},
		{"fs_read", `{"path":"x"}`, "tools.conflict"},
		{"fs_write", `{"path":"x","text":""}`, "tools.conflict"},
		{"fs_write", `{"path":"t.md/x","text":""}`, "tools.conflict"},
		{"fs_write", `{"path":".","text":""}`, "tools.conflict"},
		{"fs_write", `{"path":"z"}`, "tools.invalid"},
		{"fs_write", `{"path":"z","text":"a","data":"YQ=="}`, "tools.invalid"},
		{"fs_write", `{"path":"z","data":"no base64!"}`, "tools.invalid"},
		{"fs_write", `{"path":"../z","text":"a"}`, "tools.unsafe"},
		{"fs_delete", `{"path":"."}`, "tools.unsafe"},
		{"fs_delete", `{"path":"n"}`, "tools.conflict"},
		{"fs_delete", `{"path":"n","recursive":true}`, `{"path":"n","deleted":true}`},
		{"fs_delete", `{"path":"n"}`, "tools.missing"},
	} {
		if got := call(t, d, c.name, c.input); !strings.HasPrefix(got, c.want) || c.want[0] == '{' && strings.HasSuffix(c.want, "}") && got != c.want {
			t.Errorf("%s %s\n got %s\nwant %s", c.name, c.input, got, c.want)
		}
	}
	for i, r := range j.records {
		if r.Verdict == record.Allowed && r.Target == "fs_mkdir" && (i == 0 || j.records[i-1].Verdict != record.Started) {
			t.Errorf("an effect without a record of its start: %+v", r)
		}
		if s := string(r.Input); strings.Contains(s, "hello") || strings.Contains(s, "aGVsbG8") || strings.Contains(s, "gr") && strings.Contains(s, "text\":\"") {
			t.Errorf("a record holds content: %s", s)
		}
	}
}

// TestEveryCaseOfTheListThroughTheTools has each refused path tried by every
// tool, and each good one written and read.
func TestEveryCaseOfTheListThroughTheTools(t *testing.T) {
	w := open(t, t.TempDir(), roomy)
	d, _ := dispatcher(t, w)
	for _, c := range pathCases(t) {
		in, err := json.Marshal(map[string]string{"path": c.path})
		if err != nil {
			t.Fatal(err)
		}
		write := strings.TrimSuffix(string(in), "}") + `,"text":"x"}`
		if p, _ := Parse("test", c.path); c.verdict == "ok" {
			if !p.Root() {
				if got := call(t, d, "fs_write", write); !strings.HasPrefix(got, "{") && got != "tools.conflict" && got != "tools.unsafe" {
					t.Errorf("%.60q: %s", c.path, got)
				}
			}
			continue
		}
		for _, name := range []string{"fs_write", "fs_read", "fs_list", "fs_delete", "fs_mkdir", "fs_stat"} {
			input := string(in)
			if name == "fs_write" {
				input = write
			}
			if got := call(t, d, name, input); got != "tools.unsafe" && got != "tools.invalid" {
				t.Errorf("%s %.60q: %.200s", name, c.path, got)
			}
		}
	}
	w.agrees(t)
}

func TestWhatIsTooLargeForJSONSaysWhereToGo(t *testing.T) {
	w := open(t, t.TempDir(), storage.Limits{Bytes: 1 << 30, Files: 10})
	d, _ := dispatcher(t, w)
	who := tool.Caller{Team: "t", Agent: "a"}
	if _, r := d.Call(t.Context(), who, "fs_write", []byte(`{"path":"a","data":"`+base64.StdEncoding.EncodeToString(make([]byte, MaxInline+1))+`"}`)); r == nil || r.Code != deny.ToolInvalid {
		t.Error(r)
	}
	// Fewer characters than the limit, but more bytes.
	if _, r := d.Call(t.Context(), who, "fs_write", []byte(`{"path":"a","text":"`+strings.Repeat("é", MaxInline/2+1)+`"}`)); r == nil || r.Code != deny.ToolTooLarge || !strings.Contains(r.Mend, "/v1/files/") {
		t.Error(r)
	}
	big := bytes.NewReader(make([]byte, MaxInline+1))
	if _, r := d.Call(WithBody(t.Context(), big, int64(big.Len())), who, "fs_write", []byte(`{"path":"a"}`)); r != nil {
		t.Fatal(r)
	}
	if _, r := d.Call(t.Context(), who, "fs_read", []byte(`{"path":"a"}`)); r == nil || r.Code != deny.ToolTooLarge || !strings.Contains(r.Mend, "/v1/files/") {
		t.Error(r)
	}
	if _, r := d.Call(t.Context(), who, "fs_read", fmt.Appendf(nil, `{"path":"a","offset":1,"length":%d}`, MaxInline)); r != nil {
		t.Error(r)
	}
	over := bytes.NewReader(nil)
	if _, r := d.Call(WithBody(t.Context(), over, MaxFile+1), who, "fs_write", []byte(`{"path":"a"}`)); r == nil || r.Code != deny.ToolTooLarge {
		t.Error(r)
	}
}
