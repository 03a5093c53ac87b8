package proc_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/primitive/proc"
	"bulkhead/internal/record"
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

	mu     sync.Mutex
	called []tool.Caller
	at     []time.Time
	hold   chan struct{} // while it is not nil, calls wait for it
}

func newStage(t *testing.T, path string, good func(tool.Caller) error) *stage {
	t.Helper()
	s := &stage{t: t}
	s.tools = proc.New(proc.Config{
		Tasks: proc.NewFileTasks(path), Good: good,
		Call: func(ctx context.Context, who tool.Caller, name string, in []byte) (json.RawMessage, *deny.Reason) {
			return s.d.Call(ctx, who, name, in)
		},
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
	}
}

func (s *stage) calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.called)
}

func allGood(tool.Caller) error { return nil }

func TestATaskIsItsOwnersCallAndSurvivesRestarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tasks.json")
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
	path := filepath.Join(t.TempDir(), "tasks.json")
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
	path := filepath.Join(t.TempDir(), "tasks.json")
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
	path := filepath.Join(t.TempDir(), "tasks.json")
	synctest.Test(t, func(t *testing.T) {
		revoked := false
		s := newStage(t, path, func(tool.Caller) error {
			if revoked {
				return errors.New("revoked")
			}
			return nil
		})
		stop := s.start()
		if _, reason := s.schedule(owner, map[string]any{"expression": "* * * * *", "tool": "mem_get", "input": map[string]int{"n": 1}}); reason != nil {
			t.Fatal(reason)
		}
		time.Sleep(61 * time.Second)
		synctest.Wait()
		revoked = true
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if s.calls() != 1 {
			t.Errorf("%d calls", s.calls())
		}
		out, _ := s.schedule(owner, map[string]any{"action": "list"})
		if task := out["tasks"].([]any)[0].(map[string]any); task["failed"].(float64) != 3 || task["runs"].(float64) != 4 {
			t.Errorf("%v", task)
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

func TestAScheduleIsBoundedAndItsOwners(t *testing.T) {
	s := newStage(t, filepath.Join(t.TempDir(), "tasks.json"), allGood)
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
	if _, reason := s.schedule(owner, map[string]any{"expression": "@daily", "tool": "mem_get"}); reason == nil || reason.Code != deny.ToolQuota {
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
		tasks := proc.NewFileTasks(path)
		before, err := tasks.All(t.Context())
		if err != nil {
			return
		}
		if err := tasks.Put(t.Context(), proc.Task{ID: "added"}); err != nil {
			t.Fatal(err)
		}
		after, err := tasks.All(t.Context())
		if err != nil || len(after) < len(before) || len(after) > len(before)+1 {
			t.Fatalf("%d tasks became %d: %v", len(before), len(after), err)
		}
	})
}
