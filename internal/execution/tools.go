package execution

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/sqlite"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
)

// maxListed bounds a list.
const maxListed = 100

// maxAnswers bounds the results that are shown at once, in bytes: the last ones.
const maxAnswers = 4 << 20

var idPattern = regexp.MustCompile(`x[a-z2-7]{8}`)

// Shown is an execution as its caller sees it.
type Shown struct {
	ID      string    `json:"executionId"`
	State   State     `json:"state"`
	Created time.Time `json:"createdAt"`
	Changed time.Time `json:"updatedAt"`
	Detail  string    `json:"detail,omitempty"`
	Steps   []Step    `json:"steps,omitempty"`
	Tool    string    `json:"tool,omitempty"`  // in a list: of its first step
	Count   int       `json:"count,omitempty"` // in a list: of its steps
}

// Step is one of its steps.
type Step struct {
	N        int             `json:"step"` // from 1
	Tool     string          `json:"tool"`
	State    string          `json:"state"`
	Until    *time.Time      `json:"waitsUntil,omitempty"`
	Approved string          `json:"approved,omitempty"`
	Began    *time.Time      `json:"startedAt,omitempty"`
	Over     *time.Time      `json:"endedAt,omitempty"`
	Answer   json.RawMessage `json:"result,omitempty"`
	Error    *deny.Envelope  `json:"error,omitempty"`
}

// Tools are the rows of the group.
func (e *Executions) Tools() []tool.Tool {
	id := tool.Field{
		Name: "executionId", Aliases: []string{"id"}, Type: tool.String, Required: true, Min: 1, Max: 40, Shown: true, Doc: "As the call that was kept, or execution_list, gave it",
		Pattern: idPattern, PatternDoc: "an id is x and eight of a-z and 2-7",
	}
	all := []tool.Tool{
		{
			Name: "execution_inspect", Run: e.inspect, Fields: []tool.Field{id, {Name: "step", Type: tool.Integer, Min: 1, Max: maxSteps, Shown: true, Doc: "Only this step; without it all, with results of 4 MiB, the last ones"}},
			Summary: "Say how an execution stands: its state (queued, running, waiting_for_user, paused, completed, partially_completed, failed, cancelled) and of each step the result, or why there is none.",
		},
		{
			Name: "execution_list", Run: e.list, Summary: "List your executions, the newest first.",
			Fields: []tool.Field{
				{
					Name: "state", Type: tool.String, Shown: true, Doc: "Only those in this state",
					Enum: []string{string(Queued), string(Running), string(Waiting), string(Paused), string(Completed), string(Partial), string(Failed), string(Cancelled)},
				},
				{Name: "limit", Type: tool.Integer, Min: 1, Max: maxListed, Default: int64(20), Doc: "How many at most"},
			},
		},
		{
			Name: "execution_cancel", Effect: true, Run: e.acts(cancelled), Fields: []tool.Field{id},
			Summary: "Take back an execution: what waits or has not begun is not done; a step that is being done is stopped where it can be.",
		},
		{
			Name: "execution_start", Effect: true, Run: e.start, MaxInput: maxStart,
			Summary: "Have several calls of tools done one after the other, by themselves, and go on without waiting: answers an executionId for execution_inspect. Each step is judged as a call by itself when its turn comes; one that a person has to approve has the execution wait.",
			Fields: []tool.Field{
				{
					Name: "steps", Type: tool.Array, Required: true, Min: 1, Max: maxSteps, Doc: "The calls, in order",
					Items: &tool.Field{Type: tool.Object, Fields: []tool.Field{
						{Name: "tool", Type: tool.String, Required: true, Min: 1, Max: 64, Shown: true, Doc: "The tool's name; not execution_* nor proc_schedule"},
						{Name: "input", Type: tool.Any, Max: maxInput, Doc: "Its input, an object"},
					}},
				},
				{Name: "stopOnError", Type: tool.Boolean, Default: true, Doc: "Whether steps after one that fails are left out"},
			},
		},
		{
			Name: "execution_pause", Effect: true, Run: e.acts(paused), Fields: []tool.Field{id},
			Summary: "Have an execution not go on after the step that is being done.",
		},
		{Name: "execution_resume", Effect: true, Run: e.acts(resumed), Fields: []tool.Field{id}, Summary: "Have a paused execution go on."},
		{
			Name: "execution_retry", Effect: true, Run: e.acts(retried), Fields: []tool.Field{id},
			Summary: "Try the steps again that were not done, or were undone, in order, of an execution that has ended. Steps that were done are not done again; look first whether one was of which it says that it may or may not have been.",
		},
		{
			Name: "execution_rollback", Effect: true, Run: e.rollback, Fields: []tool.Field{id},
			Summary: "Undo the steps of an execution that has ended, the last first, and say of each: undone, cannot be undone, not undone, nothing to undo. Changes of mem values and memories, vectors, files up to 512 KiB and rows of SQL can be undone while nothing else has changed them since, and tables that are empty; what went out cannot.",
		},
	}
	for i := range all {
		all[i].Group = tool.Executions
	}
	return all
}

// own loads an execution that the caller may see: the agent itself sees all of them,
// who shows a token those that were asked with it.
func own(t *store.Tx, id string, who tool.Caller) (*execution, error) {
	x, err := load(t, id)
	if err != nil {
		return nil, err
	}
	if who.Token != "" && x.who.Token != who.Token {
		return nil, missing(id)
	}
	return x, nil
}

func (e *Executions) inspect(ctx context.Context, c *tool.Call) (any, error) {
	var out *Shown
	err := e.cfg.Store.View(ctx, func(t *store.Tx) error {
		x, err := own(t, c.In.String("executionId"), c.Caller)
		if err != nil {
			return err
		}
		n := int(c.In.Int("step")) // 0: all
		if n > len(x.steps) {
			return tool.Refuse(deny.ToolMissing, x.id, fmt.Sprintf("it has %d steps, and no step %d", len(x.steps), n), "leave step out to see all")
		}
		out, err = x.shown(t, n)
		return err
	})
	return out, err
}

func when(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// shown gives the execution with what its steps answered, or, unless only is 0, with that
// step alone.
func (x *execution) shown(t *store.Tx, only int) (*Shown, error) {
	out := &Shown{ID: x.id, State: x.state, Created: x.created, Changed: x.changed, Detail: x.why}
	for i := range x.steps {
		s := &x.steps[i]
		if only != 0 && s.n != only {
			continue
		}
		one := Step{N: s.n, Tool: s.tool, State: s.state, Until: when(s.expires), Approved: s.approved, Began: when(s.began), Over: when(s.over)}
		if s.reason != nil {
			env := s.reason.Envelope()
			one.Error = &env
		}
		out.Steps = append(out.Steps, one)
	}
	left := int64(maxAnswers)
	for i := range slices.Backward(out.Steps) {
		one := &out.Steps[i]
		size, err := t.Int("SELECT coalesce(length(answer), 0) FROM step WHERE execution = ? AND n = ?", x.id, one.N)
		if err != nil {
			return nil, err
		}
		if size > left {
			if one.Answer, err = json.Marshal(map[string]any{"notShown": true, "bytes": size}); err != nil {
				return nil, err
			}
			continue
		}
		left -= size
		err = t.Query("SELECT answer FROM step WHERE execution = ? AND n = ?", func(row []sqlite.Value) error {
			one.Answer = sqlite.Blob(row[0])
			return nil
		}, x.id, one.N)
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (e *Executions) list(ctx context.Context, c *tool.Call) (any, error) {
	out := []Shown{}
	more := false
	limit := int(c.In.Int("limit"))
	err := e.cfg.Store.View(ctx, func(t *store.Tx) error {
		out, more = out[:0], false
		return t.Query("SELECT e.id, e.state, e.created, e.changed, (SELECT tool FROM step WHERE execution = e.id AND n = 1), (SELECT count(*) FROM step WHERE execution = e.id)"+
			" FROM execution e WHERE (?1 = '' OR e.state = ?1) AND (?2 = '' OR e.token = ?2) ORDER BY e.created DESC, e.id LIMIT ?3", func(row []sqlite.Value) error {
			if len(out) == limit {
				more = true
				return nil
			}
			out = append(out, Shown{
				ID: sqlite.Text(row[0]), State: State(sqlite.Text(row[1])), Created: at(sqlite.Int(row[2])), Changed: at(sqlite.Int(row[3])),
				Tool: sqlite.Text(row[4]), Count: int(sqlite.Int(row[5])),
			})
			return nil
		}, c.In.String("state"), c.Caller.Token, limit+1)
	})
	return map[string]any{"executions": out, "more": more}, err
}

// stopped ends the call of an execution that is under way, if there is one.
func (e *Executions) stopped(id string) {
	e.mu.Lock()
	if w := e.active[id]; w != nil && w.cancel != nil {
		w.cancel()
	}
	e.mu.Unlock()
	e.poke()
}
