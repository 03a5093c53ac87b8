package proc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/primitive/proc"
	"bulkhead/internal/record"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
)

type journal struct {
	mu  sync.Mutex
	all []record.Record
}

func (j *journal) Write(_ context.Context, r record.Record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.all = append(j.all, r)
	return nil
}

func (j *journal) Note(r record.Record) { _ = j.Write(context.Background(), r) }

// stage is a gateway with a schedule and one more tool, which notes who calls.
type stage struct {
	t     *testing.T
	d     *tool.Dispatcher
	tools *proc.Tools
	store *store.Store
	tasks *proc.Tasks

	mu     sync.Mutex
	called []tool.Caller
	at     []time.Time
	hold   chan struct{} // while it is not nil, calls wait for it
}

func newStage(t *testing.T, path string, good func(tool.Caller) error) *stage {
	t.Helper()
	s := &stage{t: t}
	var err error
	if s.store, err = store.Open(t.Context(), store.Config{Path: path}); err != nil {
		t.Fatal(err)
	}
	if s.tasks, err = proc.OpenTasks(t.Context(), s.store, path+".json"); err != nil {
		t.Fatal(err)
	}
	s.tools = proc.New(proc.Config{
		Tasks: s.tasks, Good: good,
		Call: func(ctx context.Context, who tool.Caller, name string, in []byte) (json.RawMessage, *deny.Reason) {
			return s.d.Call(ctx, who, name, in)
		},
		Check: func(name string, in []byte, who tool.Caller) *deny.Reason { return s.d.Check(name, in, who) },
	})
	table, err := tool.NewTable(append(s.tools.List(), tool.Tool{
		Name: "mem_get", Group: tool.Memory, Fields: []tool.Field{{Name: "n", Type: tool.Integer, Required: true}},
		Run: func(_ context.Context, c *tool.Call) (any, error) {
			s.mu.Lock()
			s.called, s.at = append(s.called, c.Caller), append(s.at, time.Now().UTC())
			hold := s.hold
			s.mu.Unlock()
			if hold != nil {
				<-hold
			}
			return map[string]any{}, nil
		},
	})...)
	if err != nil {
		t.Fatal(err)
	}
	s.d = tool.New(tool.Config{Table: table, Journal: &journal{}, Allowed: []string{"proc", "mem"}, Rate: 1000})
	return s
}

var owner = tool.Caller{Team: "pair", Agent: "writer", Token: "jti-1", Domains: []string{"api.example.com"}, Rate: 7}

func (s *stage) schedule(who tool.Caller, input map[string]any) (map[string]any, *deny.Reason) {
	s.t.Helper()
	raw, err := json.Marshal(input)
	if err != nil {
		s.t.Fatal(err)
	}
	out, reason := s.d.Call(s.t.Context(), who, "proc_schedule", raw)
	var m map[string]any
	if reason == nil {
		if err := json.Unmarshal(out, &m); err != nil {
			s.t.Fatal(err)
		}
	}
	return m, reason
}

func (s *stage) start() (stop func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() { done <- s.tools.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
		s.close()
	}
}

// close lets another gateway have the store.
func (s *stage) close() {
	if err := s.store.Close(); err != nil {
		s.t.Error(err)
	}
}

func (s *stage) calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.called)
}

func allGood(tool.Caller) error { return nil }

func TestATaskIsItsOwnersCallAndSurvivesRestarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "system.db")
	synctest.Test(t, func(t *testing.T) { // the clock begins at midnight
		s := newStage(t, path, allGood)
		stop := s.start()
		made, reason := s.schedule(owner, map[string]any{"expression": "*/10 * * * *", "tool": "agentos.mem_get", "input": map[string]int{"n": 1}})
		if reason != nil || made["taskId"] == "" || made["next"] != "2000-01-01T00:10:00Z" {
			t.Fatal(made, reason)
		}
		time.Sleep(35 * time.Minute)
		synctest.Wait()
		if s.calls() != 3 {
			t.Fatalf("%d calls in 35 minutes", s.calls())
		}
		for i, who := range s.called {
			if who.Token != owner.Token || strings.Join(who.Domains, " ") != "api.example.com" || who.Rate != 7 || who.Agent != "writer" {
				t.Errorf("it was called as %+v", who)
			}
			if s.at[i].Minute() != 10*(i+1) {
				t.Errorf("called at %s", s.at[i])
			}
		}
		stop()
		// Away for a while: the last of what was missed is made up for, once.
		time.Sleep(37 * time.Minute) // 01:12
		s = newStage(t, path, allGood)
		stop = s.start()
		synctest.Wait()
		if s.calls() != 1 {
			t.Errorf("%d calls after 37 minutes away", s.calls())
		}
		time.Sleep(9 * time.Minute) // 01:21
		synctest.Wait()
		if s.calls() != 2 {
			t.Errorf("%d calls after the next time", s.calls())
		}
		stop()
	})
}

func TestWhatWasMissedLongAgoIsLeftOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "system.db")
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, path, allGood)
		if _, reason := s.schedule(owner, map[string]any{"expression": "@daily", "tool": "mem_get", "input": map[string]int{"n": 1}}); reason != nil {
			t.Fatal(reason)
		}
		time.Sleep(26 * time.Hour) // 02:00
		stop := s.start()
		time.Sleep(time.Hour)
		synctest.Wait()
		if s.calls() != 0 {
			t.Error("a time of two hours ago was made up for")
		}
		time.Sleep(21 * time.Hour) // midnight
		synctest.Wait()
		if s.calls() != 1 {
			t.Errorf("%d calls at the next time", s.calls())
		}
		stop()
	})
}

func TestATaskThatStillRunsIsLeftOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "system.db")
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, path, allGood)
		s.hold = make(chan struct{})
		stop := s.start()
		if _, reason := s.schedule(owner, map[string]any{"expression": "* * * * *", "tool": "mem_get", "input": map[string]int{"n": 1}}); reason != nil {
			t.Fatal(reason)
		}
		time.Sleep(10*time.Minute + time.Second)
		synctest.Wait()
		if s.calls() != 1 {
			t.Errorf("%d calls while the first runs", s.calls())
		}
		close(s.hold)
		time.Sleep(time.Minute)
		synctest.Wait()
		if s.calls() != 2 {
			t.Errorf("%d calls after it has ended", s.calls())
		}
		stop()
	})
}

func TestATaskEndsWithItsOwnersToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "system.db")
	synctest.Test(t, func(t *testing.T) {
		var good error
		s := newStage(t, path, func(tool.Caller) error { return good })
		stop := s.start()
		every := map[string]any{"expression": "* * * * *", "tool": "mem_get", "input": map[string]int{"n": 1}}
		if _, reason := s.schedule(owner, every); reason != nil {
			t.Fatal(reason)
		}
		time.Sleep(61 * time.Second)
		synctest.Wait()
		// As long as it cannot be told nothing is called, and nothing is over.
		good = fmt.Errorf("%w: told nothing", proc.ErrNotKnown)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if s.calls() != 1 {
			t.Errorf("%d calls while nobody knows", s.calls())
		}
		good = nil
		time.Sleep(5 * time.Second) // of what was missed one call is made up for
		synctest.Wait()
		if s.calls() != 2 {
			t.Errorf("%d calls once it is known", s.calls())
		}
		good = errors.New("revoked")
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if s.calls() != 2 {
			t.Errorf("%d calls", s.calls())
		}
		good = nil
		out, reason := s.schedule(tool.Caller{Team: "pair", Agent: "writer"}, map[string]any{"action": "list"})
		if reason != nil || len(out["tasks"].([]any)) != 0 {
			t.Errorf("a task outlives its token: %v, %v", out, reason)
		}
		all, _, err := s.store.Spool().Recent(t.Context(), time.Time{}, 100)
		if err != nil || !slices.ContainsFunc(all, func(r record.Record) bool {
			return r.Verdict == record.Denied && r.Target == "mem_get" && r.Token == owner.Token && r.Reason != nil && r.Reason.Code == deny.BadToken && strings.Contains(r.Detail, " is over")
		}) {
			t.Errorf("its end is not on record: %+v, %v", all, err)
		}
		if _, reason := s.schedule(owner, every); reason != nil {
			t.Fatal(reason)
		}
		stop()
		// A gateway that knows nothing of tokens runs nothing of one.
		s = newStage(t, path, nil)
		stop = s.start()
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if s.calls() != 0 {
			t.Error("an unknown token's task was called")
		}
		stop()
	})
}

// Earlier builds kept tasks in a file.
func TestTasksOfAFileAreTakenOverOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "system.db")
	former := `[{"taskId":"t-1","expression":"@daily","tool":"mem_get","input":{"n":1},"owner":{"Team":"pair","Agent":"writer","Token":"","Domains":null,"Rate":0},"created":"2026-01-01T00:00:00Z","runs":3,"failed":1},
{"taskId":"t-2","expression":"@daily","tool":"mem_get","owner":{"Team":"pair","Agent":"writer","Token":"jti","Domains":[],"Rate":0},"created":"2026-01-01T00:00:00Z","runs":0,"failed":0}]`
	if err := os.WriteFile(path+".json", []byte(former), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newStage(t, path, allGood)
	list, err := s.tasks.All(t.Context())
	if err != nil || len(list) != 2 || list[0].ID != "t-1" || list[0].Runs != 3 || list[1].Owner.Token != "jti" || list[1].Owner.Domains == nil || list[0].Owner.Domains != nil {
		t.Fatalf("%+v, %v", list, err)
	}
	if _, err := os.Stat(path + ".json"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is there still: %v", err)
	}
	if err := s.tasks.Update(t.Context(), "t-1", func(x *proc.Task) { x.Failed = 9 }); err != nil {
		t.Fatal(err)
	}
	s.close()
	// As after a crash before the file was removed.
	if err := os.WriteFile(path+".json", []byte(former), 0o600); err != nil {
		t.Fatal(err)
	}
	s = newStage(t, path, allGood)
	if list, err = s.tasks.All(t.Context()); err != nil || len(list) != 2 || list[0].Failed != 9 {
		t.Errorf("%+v, %v", list, err)
	}
	s.close()
	for name, text := range map[string]string{"no JSON": "x", "no id": `[{"tool":"mem_get"}]`, "an id twice": `[{"taskId":"t"},{"taskId":"t"}]`} {
		if err := os.WriteFile(path+".json", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		st, err := store.Open(t.Context(), store.Config{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := proc.OpenTasks(t.Context(), st, path+".json"); err == nil || !strings.Contains(err.Error(), "move the file away") {
			t.Errorf("%s: %v", name, err)
		}
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAScheduleIsBoundedAndItsOwners(t *testing.T) {
	s := newStage(t, filepath.Join(t.TempDir(), "system.db"), allGood)
	defer s.close()
	owner := tool.Caller{Team: "pair", Agent: "writer", Token: "jti-1"}
	other := tool.Caller{Team: "pair", Agent: "writer", Token: "jti-2"}
	self := tool.Caller{Team: "pair", Agent: "writer"}
	for _, bad := range []map[string]any{
		{"expression": "* * *", "tool": "mem_get"},
		{"expression": "0 0 30 2 *", "tool": "mem_get"},
		{"expression": "* * * * *"},
		{"tool": "mem_get"},
		{"expression": "* * * * *", "tool": "proc_schedule"},
		{"expression": "* * * * *", "tool": "agentos.proc_schedule"},
		{"expression": "* * * * *", "tool": "agentos.agentos.proc_schedule"},
		{"expression": "* * * * *", "tool": "agentos.agentos.execution_start"},
		{"expression": "* * * * *", "tool": "agentos.agentos.agentos.mem_get"},
		{"expression": "* * * * *", "tool": "execution_start"},
		{"expression": "* * * * *", "tool": "agentos.execution_retry"},
		{"action": "run"},
		{"expression": "* * * * *", "tool": "mem_get", "input": map[string]string{"x": strings.Repeat("v", 64<<10)}},
		{"expression": "* * * * *", "tool": "mem_get", "owner": "x"},
	} {
		if _, reason := s.schedule(owner, bad); reason == nil || reason.Code != deny.ToolInvalid || len(reason.Fields) == 0 {
			t.Errorf("%.80v: %v", bad, reason)
		}
	}
	id := ""
	for range 32 {
		out, reason := s.schedule(owner, map[string]any{"cron": "@daily", "tool": "mem_get", "input": map[string]int{"n": 1}})
		if reason != nil {
			t.Fatal(reason)
		}
		id = out["taskId"].(string)
	}
	if _, reason := s.schedule(owner, map[string]any{"expression": "@daily", "tool": "mem_get", "input": map[string]int{"n": 1}}); reason == nil || reason.Code != deny.ToolQuota {
		t.Error(reason)
	}
	for who, want := range map[*tool.Caller]int{&owner: 32, &other: 0, &self: 32} {
		out, reason := s.schedule(*who, map[string]any{"action": "list"})
		if reason != nil || len(out["tasks"].([]any)) != want {
			t.Errorf("%+v sees %v %v", who, out, reason)
		}
	}
	if _, reason := s.schedule(other, map[string]any{"action": "delete", "taskId": id}); reason == nil || reason.Code != deny.ToolMissing {
		t.Error("somebody else's task was deleted")
	}
	for _, want := range []bool{true, false} {
		if _, reason := s.schedule(owner, map[string]any{"action": "delete", "taskId": id}); (reason == nil) != want {
			t.Error(reason)
		}
	}
}

func FuzzTaskFile(f *testing.F) {
	f.Add([]byte(`[{"taskId":"t-1","expression":"* * * * *","tool":"mem_get","owner":{"Team":"a"},"created":"2026-01-01T00:00:00Z"}]`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := filepath.Join(t.TempDir(), "tasks")
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := store.Open(t.Context(), store.Config{Path: path + ".db"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		tasks, err := proc.OpenTasks(t.Context(), s, path)
		if err != nil {
			if _, err := os.Stat(path); err != nil {
				t.Fatalf("what was refused is gone: %v", err)
			}
			return
		}
		before, err := tasks.All(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := tasks.Put(t.Context(), proc.Task{ID: "added"}, nil); err != nil {
			t.Fatal(err)
		}
		after, err := tasks.All(t.Context())
		if err != nil || len(after) < len(before) || len(after) > len(before)+1 {
			t.Fatalf("%d tasks became %d: %v", len(before), len(after), err)
		}
	})
}

// What could not be done when its time comes is refused before.
func TestATaskIsCheckedWhenItIsMade(t *testing.T) {
	s := newStage(t, filepath.Join(t.TempDir(), "system.db"), nil)
	for input, want := range map[string]string{
		`"tool":"mem_gett","input":{"n":1}`:        "tools.invalid tool: there is no such tool",
		`"tool":"mem_get"`:                         "tools.invalid input.n: it is missing",
		`"tool":"mem_get","input":{"n":"x","m":1}`: "tools.invalid input.m: there is no such field; input.n: an integer is wanted",
		`"tool":"fs_write","input":{}`:             "tools.not_allowed ",
		`"tool":"mem_get","input":{"n":1}`:         "",
	} {
		_, r := s.d.Call(t.Context(), tool.Caller{Agent: "a"}, "proc_schedule", []byte(`{"expression":"* * * * *",`+input+`}`))
		got := ""
		if r != nil {
			var all []string
			for _, f := range r.Fields {
				all = append(all, f.Name+": "+f.Why)
			}
			slices.Sort(all)
			got = string(r.Code) + " " + strings.Join(all, "; ")
		}
		if got != want {
			t.Errorf("%s: %q, want %q", input, got, want)
		}
	}
}
