package execution

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"bulkhead/internal/deny"
	"bulkhead/internal/govern"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
	"bulkhead/internal/tool/toolname"
)

// Bounds of an execution of several steps.
const (
	maxSteps = 50
	maxStart = 4 << 20 // bytes of all inputs
	maxOpen  = 32      // of one caller, that have not ended
)

// start keeps several calls. They are checked as far as they can be before their turn:
// every failing field of every step is named.
func (e *Executions) start(ctx context.Context, c *tool.Call) (any, error) {
	x := &execution{id: govern.NewID("x"), state: Queued, who: c.Caller, stop: c.In.Bool("stopOnError")}
	inputs, reason := e.steps(x, c)
	if reason != nil {
		return nil, reason
	}
	err := e.cfg.Store.Update(ctx, func(t *store.Tx) error {
		if err := tooMany(t, c.Caller.Token); err != nil {
			return err
		}
		t.Record(c.Take())
		return x.insert(t, inputs)
	})
	if err != nil {
		return nil, err
	}
	e.poke()
	return map[string]any{"executionId": x.id, "state": x.state}, nil
}

func (e *Executions) steps(x *execution, c *tool.Call) (inputs [][]byte, reason *deny.Reason) {
	calls := e.cfg.Calls()
	if calls == nil {
		return nil, tool.Refuse(deny.ToolUnavailable, c.Tool.Name, "the tools are not open", "try again")
	}
	var faults []deny.Field
	fault := func(n int, name, format string, args ...any) {
		at := fmt.Sprintf("steps[%d]", n-1)
		if name != "" {
			at += "." + name
		}
		faults = append(faults, deny.Field{Name: at, Why: fmt.Sprintf(format, args...)})
	}
	for i, one := range c.In.List("steps") {
		in, ok := one.(tool.Input)
		if !ok {
			continue // the table has only objects there
		}
		n := i + 1
		name := strings.TrimPrefix(in.String("tool"), tool.Prefix)
		raw := []byte(in.Raw("input"))
		if len(raw) == 0 {
			raw = []byte("{}")
		}
		t := calls.Find(name)
		switch {
		case toolname.GroupOf(name) == tool.Executions:
			fault(n, "tool", "an execution has no executions as its steps")
			continue
		case name == "proc_schedule":
			fault(n, "tool", "an execution makes no tasks")
			continue
		case t == nil && toolname.GroupOf(name) == "":
			fault(n, "tool", "there is no such tool")
			continue
		case t == nil || !calls.Allows(t):
			return nil, tool.Refuse(deny.ToolNotAllowed, fmt.Sprintf("%s, step %d", name, n), "the manifest does not give this tool to the agent", toolname.Mend(toolname.GroupOf(name), e.cfg.Agent))
		case !bytes.HasPrefix(bytes.TrimSpace(raw), []byte("{")):
			fault(n, "input", "it is no object")
			continue
		}
		parsed, bad := t.Parse(raw)
		if bad != nil {
			for _, f := range bad.Fields {
				fault(n, "input."+f.Name, "%s", f.Why)
			}
			continue
		}
		a, bad := asked(t, parsed, c.Caller.Token)
		if bad != nil {
			for _, f := range bad.Fields {
				fault(n, "input."+f.Name, "%s", f.Why)
			}
			if len(bad.Fields) == 0 {
				fault(n, "input", "%s", bad.Why)
			}
			continue
		}
		x.steps = append(x.steps, step{n: n, tool: t.Name, digest: a.Digest, scope: a.Scope, state: pending})
		inputs = append(inputs, raw)
	}
	if len(faults) > 0 {
		r := tool.Refuse(deny.ToolInvalid, c.Tool.Name, "steps are not what their tools take", "mend the fields that are named")
		r.Fields = faults // the table names as many as are worth reading
		return nil, r
	}
	return inputs, nil
}
