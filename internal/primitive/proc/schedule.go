package proc

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/tool"
	"bulkhead/internal/tool/toolname"
)

// Bounds of the schedule.
const (
	maxTasks     = 32
	maxTaskInput = 64 << 10 // bytes of one task's input
	makeUp       = time.Hour
	// look is how often the clock is looked at, at least: it may be set.
	look = time.Minute
	// soon is when a task is looked at again of which cannot be told whether its
	// owner may still call.
	soon = 2 * time.Second
)

// ErrNotKnown says that it is not known at the moment whether a token is good:
// the gateway has just started, or control is away.
var ErrNotKnown = errors.New("whether the owner's token is still good is not known")

// Caller calls a tool as somebody ([tool.Dispatcher.Call]).
type Caller func(ctx context.Context, who tool.Caller, name string, input []byte) (json.RawMessage, *deny.Reason)

// schedule calls tasks when their time comes.
type schedule struct {
	cfg     Config
	changed chan struct{} // has one when a task was added

	mu      sync.Mutex // guards busy, and changes of what cfg.Tasks holds
	busy    map[string]bool
	working sync.WaitGroup
}

func newSchedule(cfg Config) *schedule {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &schedule{cfg: cfg, changed: make(chan struct{}, 1), busy: map[string]bool{}}
}

// run calls what is due until ctx ends.
func (s *schedule) run(ctx context.Context) error {
	if s.cfg.Tasks == nil {
		<-ctx.Done()
		return nil
	}
	defer s.working.Wait()
	for {
		wait, err := s.due(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			s.cfg.Log.ErrorContext(ctx, "the schedule cannot be read", "error", err)
			wait = look
		}
		t := time.NewTimer(min(wait, look))
		select {
		case <-t.C:
		case <-s.changed:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// due begins every task whose time has come, and says when the next one's does.
func (s *schedule) due(ctx context.Context) (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, err := s.cfg.Tasks.All(ctx)
	if err != nil {
		return 0, err
	}
	now := s.cfg.Now()
	wait := look
	for _, t := range list {
		at, next, err := t.times(now)
		if err != nil { // it was parsed when it was taken
			s.cfg.Log.ErrorContext(ctx, "a task cannot be read", "task", t.ID, "error", err)
			continue
		}
		wait = min(wait, next.Sub(now))
		if at.IsZero() {
			continue
		}
		switch err := s.good(t.Owner); {
		case errors.Is(err, ErrNotKnown):
			wait = min(wait, soon) // its time is not used: it is made up for, within [makeUp]
			continue
		case err != nil:
			s.cfg.Log.WarnContext(ctx, "a task is over with its owner's token", "task", t.ID, "tool", t.Tool, "token", t.Owner.Token, "why", err)
			if err := s.cfg.Tasks.Delete(ctx, t.ID, t.over(now, err)); err != nil {
				return 0, err
			}
			continue
		}
		t.Last = at
		if s.busy[t.ID] {
			if err := s.cfg.Tasks.Put(ctx, t, nil); err != nil {
				return 0, err
			}
			continue
		}
		t.Runs++
		if err := s.cfg.Tasks.Put(ctx, t, nil); err != nil { // before the call: no time is used twice
			return 0, err
		}
		s.busy[t.ID] = true
		s.working.Go(func() { s.call(ctx, t) })
	}
	return max(wait, 0), nil
}

// over is the record that the task is not called any more, since its owner's token is not
// good.
func (t Task) over(now time.Time, why error) *record.Record {
	return &record.Record{
		SchemaVersion: record.SchemaVersion, Time: now.UTC(), Team: t.Owner.Team, Agent: t.Owner.Agent, Kind: record.Tool, Verdict: record.Denied,
		Target: t.Tool, Token: t.Owner.Token, Detail: "task " + t.ID + " is over",
		Reason: tool.Refuse(deny.BadToken, t.Tool, "the token of the task's owner is not good any more: "+why.Error(), "make the task again with another token"),
	}
}

// times gives the latest time of the task that has come and was not used, zero
// when there is none, and the next one.
func (t Task) times(now time.Time) (due, next time.Time, err error) {
	c, err := ParseCron(t.Expression)
	if err != nil {
		return due, next, err
	}
	from := t.Created
	if t.Last.After(from) {
		from = t.Last
	}
	if from.After(now) { // the clock was set back: nothing is due that was
		return due, c.Next(from), nil
	}
	if oldest := now.Add(-makeUp); from.Before(oldest) {
		from = oldest
	}
	for next = c.Next(from); !next.IsZero() && !next.After(now); next = c.Next(next) {
		due = next
	}
	if next.IsZero() {
		return due, next, errors.New("it has no next time")
	}
	return due, next, nil
}

// call makes one call, as the task's owner.
func (s *schedule) call(ctx context.Context, t Task) {
	_, reason := s.cfg.Call(ctx, t.Owner, t.Tool, t.Input)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, t.ID)
	if reason == nil {
		return
	}
	s.cfg.Log.WarnContext(ctx, "a scheduled call failed", "task", t.ID, "tool", t.Tool, "error", reason)
	// Who stops the gateway does not keep what happened from being counted.
	if err := s.cfg.Tasks.Update(context.WithoutCancel(ctx), t.ID, func(o *Task) { o.Failed++ }); err != nil {
		s.cfg.Log.ErrorContext(ctx, "the schedule cannot be written", "task", t.ID, "error", err)
	}
}

// good says whether the owner may still call tools.
func (s *schedule) good(who tool.Caller) error {
	if s.cfg.Good != nil {
		return s.cfg.Good(who)
	}
	if who.Token != "" {
		return ErrNotKnown
	}
	return nil
}

func (s *schedule) tool() tool.Tool {
	return tool.Tool{
		Name: "proc_schedule", Group: tool.Code, Effect: true, Run: s.change,
		Summary: "Have a tool called at the times of a cron expression (minute hour day month weekday, UTC), as yourself; answers a taskId. " +
			"action list shows your tasks, action delete ends one.",
		Fields: []tool.Field{
			{Name: "action", Type: tool.String, Enum: []string{"create", "list", "delete"}, Default: "create", Shown: true},
			{Name: "expression", Aliases: []string{"cron"}, Type: tool.String, Max: maxExpression, Shown: true, Doc: "of create: like 0 7 * * mon-fri"},
			{Name: "tool", Type: tool.String, Max: 64, Shown: true, Doc: "of create: the name of a tool"},
			{Name: "input", Type: tool.Object, Max: maxTaskInput, Doc: "of create: the tool's input"},
			{Name: "taskId", Type: tool.String, Max: 64, Shown: true, Doc: "of delete"},
		},
	}
}

// Scheduled is a task as its owner sees it.
type Scheduled struct {
	TaskID     string    `json:"taskId"`
	Expression string    `json:"expression"`
	Tool       string    `json:"tool"`
	Next       time.Time `json:"next"`
	Last       time.Time `json:"last,omitzero"`
	Runs       int64     `json:"runs"`
	Failed     int64     `json:"failed"`
}

func (s *schedule) change(ctx context.Context, c *tool.Call) (any, error) {
	if s.cfg.Tasks == nil {
		return nil, tool.Refuse(deny.ToolUnavailable, c.What(), "this gateway keeps no schedule", "give the agent a disk for its tools")
	}
	switch c.In.String("action") {
	case "list":
		return s.list(ctx, c)
	case "delete":
		return s.remove(ctx, c)
	}
	return s.create(ctx, c)
}

func (s *schedule) create(ctx context.Context, c *tool.Call) (any, error) {
	now := s.cfg.Now()
	t := Task{
		ID: "t-" + strings.ToLower(rand.Text()[:12]), Expression: c.In.String("expression"), Tool: strings.TrimPrefix(c.In.String("tool"), tool.Prefix),
		Input: c.In.Raw("input"), Owner: c.Caller, Created: now.UTC(),
	}
	var faults []deny.Field
	cron, err := ParseCron(t.Expression)
	if err != nil {
		faults = append(faults, deny.Field{Name: "expression", Why: err.Error()})
	}
	switch t.Tool {
	case "":
		faults = append(faults, deny.Field{Name: "tool", Why: "it is missing"})
	case "proc_schedule":
		faults = append(faults, deny.Field{Name: "tool", Why: "a task does not make tasks"})
	}
	if strings.HasPrefix(t.Tool, tool.Prefix) { // the call would take it for the name behind it
		faults = append(faults, deny.Field{Name: "tool", Why: "there is no such tool"})
	}
	if toolname.GroupOf(t.Tool) == tool.Executions {
		faults = append(faults, deny.Field{Name: "tool", Why: "a task does one call; an execution that makes a task could make them without end"})
	}
	if len(faults) == 0 && s.cfg.Check != nil {
		input := []byte(t.Input)
		if len(input) == 0 {
			input = []byte("{}")
		}
		switch r := s.cfg.Check(t.Tool, input, c.Caller); {
		case r == nil:
		case r.Code == deny.ToolUnknown:
			faults = append(faults, deny.Field{Name: "tool", Why: r.Why})
		case len(r.Fields) == 0:
			return nil, r
		default:
			for _, f := range r.Fields {
				faults = append(faults, deny.Field{Name: "input." + f.Name, Why: f.Why})
			}
		}
	}
	if len(faults) > 0 {
		r := tool.Refuse(deny.ToolInvalid, c.What(), "the input is not what this tool takes", "mend the fields that are named")
		r.Fields = faults
		return nil, r
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list, err := s.cfg.Tasks.All(ctx)
	if err != nil {
		return nil, err
	}
	if len(list) >= maxTasks {
		return nil, tool.Refuse(deny.ToolQuota, c.What(), fmt.Sprintf("the agent has %d tasks, as many as it may", maxTasks), "delete one; action list shows them")
	}
	by := c.Take()
	if err := s.cfg.Tasks.Put(ctx, t, &by); err != nil {
		return nil, err
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
	return t.shown(cron.Next(now)), nil
}

func (t Task) shown(next time.Time) Scheduled {
	return Scheduled{TaskID: t.ID, Expression: t.Expression, Tool: t.Tool, Next: next, Last: t.Last, Runs: t.Runs, Failed: t.Failed}
}

// mine says whether who may see and end a task: who made it, and the agent
// itself, who holds no token.
func (t Task) mine(who tool.Caller) bool { return who.Token == "" || who.Token == t.Owner.Token }

func (s *schedule) list(ctx context.Context, c *tool.Call) (any, error) {
	list, err := s.cfg.Tasks.All(ctx)
	if err != nil {
		return nil, err
	}
	out := []Scheduled{}
	for _, t := range list {
		if !t.mine(c.Caller) {
			continue
		}
		_, next, err := t.times(s.cfg.Now())
		if err != nil {
			return nil, fmt.Errorf("task %s: %w", t.ID, err)
		}
		out = append(out, t.shown(next))
	}
	return map[string]any{"tasks": out}, nil
}

func (s *schedule) remove(ctx context.Context, c *tool.Call) (any, error) {
	id := c.In.String("taskId")
	s.mu.Lock()
	defer s.mu.Unlock()
	list, err := s.cfg.Tasks.All(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range list {
		if t.ID != id || !t.mine(c.Caller) {
			continue
		}
		by := c.Take()
		if err := s.cfg.Tasks.Delete(ctx, id, &by); err != nil {
			return nil, err
		}
		return map[string]any{"taskId": id, "deleted": true}, nil
	}
	return nil, tool.Refuse(deny.ToolMissing, id, "there is no such task of yours", "action list shows which there are")
}
