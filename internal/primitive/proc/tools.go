package proc

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/tool"
	"bulkhead/internal/wire"
)

// Bounds and defaults of time, in milliseconds.
const (
	minMillis      = 100
	maxMillis      = 300_000 // of proc_execute
	defaultMillis  = 30_000
	defaultSpawned = 3_600_000 // of proc_spawn
)

// maxInput bounds the JSON that holds code, whose quotes and line ends are
// escaped in it.
const maxInput = 4 << 20

// maxExecuting bounds how many proc_execute run at a time; others wait. The
// launcher has places for them beside those of maxSpawned.
const maxExecuting = 4

// Config is what the tools work with.
type Config struct {
	// Socket is the path of the launcher's socket for code, as the gateway sees
	// it (gatewayconfig.Config.CodeSocket).
	Socket string
	// Output bounds what is kept of stdout, and of stderr, in bytes; 0:
	// DefaultOutput.
	Output int
	// Tasks keeps what is scheduled. Nil: nothing can be.
	Tasks *Tasks
	// Call calls a tool as somebody, by the gateway's own table
	// (tool.Dispatcher.Call), for what is scheduled.
	Call Caller
	// Check says why such a call could not be done, before it is scheduled
	// (tool.Dispatcher.Check). Nil: it is seen when its time comes.
	Check func(name string, input []byte, who tool.Caller) *deny.Reason
	// Good says whether who scheduled a task may still call tools: the token is
	// not over or revoked. An error that wraps [ErrNotKnown] says that this cannot
	// be told now; with any other the task is over. Nil: who holds no token is the
	// agent itself, and of others it cannot be told.
	Good func(who tool.Caller) error
	Log  *slog.Logger
	Now  func() time.Time // for tests; nil: time.Now
}

// Tools are the rows of the proc tools. Close ends what they run.
type Tools struct {
	spawner   *spawner
	processes *processes
	executing chan struct{}
	schedule  *schedule
}

// New makes the tools; the launcher is reached on demand. Run runs what is
// scheduled.
func New(cfg Config) *Tools {
	s := &spawner{path: cfg.Socket, output: cmp.Or(cfg.Output, DefaultOutput)}
	return &Tools{spawner: s, processes: newProcesses(s), executing: make(chan struct{}, maxExecuting), schedule: newSchedule(cfg)}
}

// Run calls scheduled tools until ctx ends, and waits for those that it began.
func (t *Tools) Run(ctx context.Context) error { return t.schedule.run(ctx) }

// Close kills what was spawned and waits for it.
func (t *Tools) Close() {
	t.processes.close()
	t.spawner.close()
}

// List gives the rows of the table.
func (t *Tools) List() []tool.Tool {
	code := tool.Field{Name: "code", Type: tool.String, Required: true, Min: 1, Max: wire.MaxCode, Doc: "the program's text"}
	language := tool.Field{Name: "language", Type: tool.String, Required: true, Enum: wire.CodeLanguages(), Shown: true}
	id := func(required bool) tool.Field {
		return tool.Field{Name: "processId", Aliases: []string{"pid"}, Type: tool.String, Required: required, Min: 1, Max: 64, Shown: true, Doc: "as proc_spawn answered it"}
	}
	timeout := func(most, usual int64) tool.Field {
		return tool.Field{Name: "timeout", Aliases: []string{"timeoutMs"}, Type: tool.Integer, Min: minMillis, Max: most, Default: usual, Shown: true, Doc: "milliseconds after which it is killed"}
	}
	const cell = " It has no network and starts with an empty home folder and /tmp, which are gone when it ends."
	return []tool.Tool{
		{
			Name: "proc_execute", Group: tool.Code, Effect: true, MaxInput: maxInput, Run: t.execute,
			Summary: "Run code (python, javascript or bash) and wait for its end; answers stdout, stderr and exitCode." + cell,
			Fields:  []tool.Field{code, language, timeout(maxMillis, defaultMillis)},
		},
		{
			Name: "proc_spawn", Group: tool.Code, Effect: true, MaxInput: maxInput, Run: t.spawn,
			Summary: fmt.Sprintf("Start code that goes on running, at most %d at a time; answers its processId for proc_list and proc_kill.", maxSpawned) + cell,
			Fields:  []tool.Field{code, language, timeout(wire.MaxCodeDuration.Milliseconds(), defaultSpawned)},
		},
		{
			Name: "proc_kill", Group: tool.Code, Effect: true, Run: t.kill,
			Summary: "End a spawned process and everything that it started; answers when none of it is left.",
			Fields:  []tool.Field{id(true)},
		},
		{
			Name: "proc_list", Group: tool.Code, Run: t.list,
			Summary: "List spawned processes that run or ended of late; with processId, one of them with what it has printed.",
			Fields:  []tool.Field{id(false)},
		},
		t.schedule.tool(),
	}
}

func request(c *tool.Call) (wire.CodeRequest, *deny.Reason) {
	q := wire.CodeRequest{Language: c.In.String("language"), Code: c.In.String("code"), Limits: wire.CodeLimits{Millis: c.In.Int("timeout")}}
	if len(q.Code) > wire.MaxCode {
		r := tool.Refuse(deny.ToolInvalid, c.What(), "the input is not what this tool takes", "send less code")
		r.Fields = []deny.Field{{Name: "code", Why: fmt.Sprintf("it has %d bytes; at most %d are taken", len(q.Code), wire.MaxCode)}}
		return q, r
	}
	return q, nil
}

func (t *Tools) execute(ctx context.Context, c *tool.Call) (any, error) {
	q, reason := request(c)
	if reason != nil {
		return nil, reason
	}
	select {
	case t.executing <- struct{}{}:
		defer func() { <-t.executing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := c.Begin(ctx); err != nil {
		return nil, err
	}
	p, err := begin(ctx, t.spawner, q)
	if err != nil {
		return nil, err
	}
	// Who hangs up ends the code.
	stop := context.AfterFunc(ctx, p.run.kill)
	defer stop()
	p.follow()
	if p.err != nil {
		return nil, p.err
	}
	return p.ended(), nil
}

// Spawned is the answer of proc_spawn.
type Spawned struct {
	ProcessID string `json:"processId"`
}

func (t *Tools) spawn(ctx context.Context, c *tool.Call) (any, error) {
	q, reason := request(c)
	if reason != nil {
		return nil, reason
	}
	if err := c.Begin(ctx); err != nil {
		return nil, err
	}
	p, err := t.processes.spawn(ctx, q)
	if err != nil {
		return nil, err
	}
	return Spawned{ProcessID: p.id}, nil
}

// Killed is the answer of proc_kill.
type Killed struct {
	ProcessID string `json:"processId"`
	Killed    bool   `json:"killed"` // false: it had ended by itself
	ExitCode  int    `json:"exitCode"`
}

func (t *Tools) kill(ctx context.Context, c *tool.Call) (any, error) {
	p, reason := t.processes.find(c.In.String("processId"))
	if reason != nil {
		return nil, reason
	}
	if err := c.Begin(ctx); err != nil {
		return nil, err
	}
	was := p.over()
	if !was {
		p.run.kill()
		select {
		case <-p.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if p.err != nil {
		return nil, p.err
	}
	return Killed{ProcessID: p.id, Killed: !was && p.exit.Signal != "", ExitCode: p.exit.Code}, nil
}

// Listed is one entry of proc_list.
type Listed struct {
	ProcessID  string    `json:"processId"`
	Language   string    `json:"language"`
	State      string    `json:"state"` // running or exited
	StartedAt  time.Time `json:"startedAt"`
	DurationMs int64     `json:"durationMs"`
	ExitCode   *int      `json:"exitCode,omitempty"`
	TimedOut   bool      `json:"timedOut,omitempty"`
	StdoutSize int64     `json:"stdoutBytes"`
	StderrSize int64     `json:"stderrBytes"`
	Stdout     *string   `json:"stdout,omitempty"`
	Stderr     *string   `json:"stderr,omitempty"`
}

func (t *Tools) list(_ context.Context, c *tool.Call) (any, error) {
	list := t.processes.all()
	one := c.In.String("processId")
	if one != "" {
		p, reason := t.processes.find(one)
		if reason != nil {
			return nil, reason
		}
		list = []*process{p}
	}
	out := []Listed{}
	for _, p := range list {
		l := Listed{
			ProcessID: p.id, Language: p.language, State: "running", StartedAt: p.since.UTC(), DurationMs: time.Since(p.since).Milliseconds(),
			StdoutSize: p.stdout.size(), StderrSize: p.stderr.size(),
		}
		if p.over() {
			l.State, l.DurationMs, l.ExitCode, l.TimedOut = "exited", p.exit.Microsecs/1000, &p.exit.Code, p.exit.TimedOut
		}
		if one != "" {
			stdout, stderr := p.stdout.text(), p.stderr.text()
			l.Stdout, l.Stderr = &stdout, &stderr
		}
		out = append(out, l)
	}
	return map[string]any{"processes": out}, nil
}
