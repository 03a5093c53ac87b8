package tool

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
)

// book is a journal in memory that can fail: what the dispatcher does then is
// what is tested here. internal/store is the real one.
type book struct {
	mu     sync.Mutex
	lines  []string
	broken bool
	fields int // of the last reason
	why    string
}

func (b *book) add(r record.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken {
		return errors.New("disk")
	}
	code := ""
	if r.Reason != nil {
		code = " " + string(r.Reason.Code)
		b.fields, b.why = len(r.Reason.Fields), r.Reason.Why
	}
	b.lines = append(b.lines, string(r.Verdict)+" "+r.Target+code)
	return nil
}

func (b *book) Write(_ context.Context, r record.Record) error { return b.add(r) }

func (b *book) Note(r record.Record) {
	r.Target = "noted:" + r.Target
	_ = b.add(r)
}

func serve(t *testing.T, b *book, tools ...Tool) *Dispatcher {
	t.Helper()
	table, err := NewTable(tools...)
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{Table: table, Journal: b, Allowed: []string{"mem", "fs_read"}, Rate: 50})
}

func TestEveryCallIsOnRecordAsWhatItWas(t *testing.T) {
	b := &book{}
	ran := 0
	d := serve(
		t, b,
		Tool{Name: "mem_get", Group: Memory, Run: func(context.Context, *Call) (any, error) { ran++; return 1, nil }},
		Tool{Name: "mem_set", Group: Memory, Effect: true, Run: func(context.Context, *Call) (any, error) { ran++; return 1, nil }},
		Tool{Name: "mem_incr", Group: Memory, Effect: true, Run: func(_ context.Context, c *Call) (any, error) { c.Take(); return 1, nil }},
		Tool{Name: "mem_delete", Group: Memory, Effect: true, Run: func(_ context.Context, c *Call) (any, error) { c.Take(); return nil, errors.New("private") }},
		Tool{Name: "mem_expire", Group: Memory, Effect: true, Run: func(ctx context.Context, c *Call) (any, error) { return 1, c.Begin(ctx) }},
		Tool{Name: "mem_list", Group: Memory, Run: func(context.Context, *Call) (any, error) { panic("private") }},
		Tool{Name: "mem_recall", Group: Memory, Run: func(context.Context, *Call) (any, error) {
			return nil, Refuse(deny.ToolMissing, "w", "y", "m")
		}},
		Tool{Name: "mem_history", Group: Memory, Run: func(context.Context, *Call) (any, error) { return func() {}, nil }},
		Tool{Name: "fs_read", Group: Files, Run: func(context.Context, *Call) (any, error) { return 1, nil }},
		Tool{Name: "fs_write", Group: Files, Run: func(context.Context, *Call) (any, error) { ran = 100; return 1, nil }},
	)
	for _, c := range []struct {
		name, input string
		code        deny.Code
		lines       string
	}{
		{"mem_get", `{}`, "", "allowed noted:mem_get"},
		{"agentos.mem_get", ``, "", "allowed noted:mem_get"},
		{"mem_set", `{}`, "", "allowed mem_set"},
		{"mem_incr", `{}`, "", ""}, // the tool has it
		{"mem_delete", `{}`, deny.ToolFailed, "failed mem_delete"},
		{"mem_expire", `{}`, "", "started mem_expire; allowed mem_expire"},
		{"mem_list", `{}`, deny.ToolFailed, "failed mem_list"},
		{"mem_recall", `{}`, deny.ToolMissing, "denied mem_recall tools.missing"},
		{"mem_history", `{}`, deny.ToolFailed, "failed mem_history"},
		{"mem_get", `{"x":1}`, deny.ToolInvalid, "denied mem_get tools.invalid"},
		{"mem_get", `{"x":"` + strings.Repeat("a", DefaultInput) + `"}`, deny.ToolTooLarge, "denied mem_get tools.too_large"},
		{"fs_read", `{}`, "", "allowed noted:fs_read"},
		{"fs_write", `{}`, deny.ToolNotAllowed, "denied fs_write tools.not_allowed"},
		{"db_query", `{}`, deny.ToolNotAllowed, "denied db_query tools.not_allowed"},
		{"mem_forget", `{}`, deny.ToolNotAllowed, "denied mem_forget tools.not_allowed"}, // not served here
		{"rm", `{}`, deny.ToolUnknown, "denied (unknown) tools.unknown"},
	} {
		b.lines = nil
		_, reason := d.Call(t.Context(), Caller{Agent: "a"}, c.name, []byte(c.input))
		code := deny.Code("")
		if reason != nil {
			code = reason.Code
			if strings.Contains(reason.Error(), "private") {
				t.Errorf("%s tells the agent too much: %v", c.name, reason)
			}
		}
		if got := strings.Join(b.lines, "; "); code != c.code || got != c.lines {
			t.Errorf("%s %.20s: %q, %s; want %q, %s", c.name, c.input, got, code, c.lines, c.code)
		}
	}
	if ran != 3 {
		t.Errorf("tools ran %d times", ran)
	}
}

// "failed" is of what was allowed and did not work, "denied" of what was refused.
func TestWhatWasAllowedAndDidNotWorkIsNotDenied(t *testing.T) {
	for code, want := range map[deny.Code]string{
		deny.Unreachable: "failed", deny.NameUnresolved: "failed", deny.PinFailed: "failed", deny.UpstreamRefused: "failed",
		deny.ToolTimeout: "failed", deny.ToolUnavailable: "failed", deny.ToolFailed: "failed",
		deny.NotListed: "denied", deny.SpecialRange: "denied", deny.TooMany: "denied", deny.ToolMissing: "denied", deny.ToolQuota: "denied", deny.ToolUnsafe: "denied",
	} {
		b := &book{}
		d := serve(t, b, Tool{Name: "mem_get", Group: Memory, Run: func(context.Context, *Call) (any, error) { return nil, Refuse(code, "w", "y", "m") }})
		_, reason := d.Call(t.Context(), Caller{Agent: "a"}, "mem_get", []byte(`{}`))
		if got := strings.Join(b.lines, "; "); reason == nil || got != want+" mem_get "+string(code) {
			t.Errorf("%s: %s, %v", code, got, reason)
		}
	}
}

func TestARecordHasAReasonWithoutWhatItQuotes(t *testing.T) {
	b := &book{}
	r := Refuse(deny.ToolInvalid, "w", "SECRET", "m")
	r.Kept = Refuse(deny.ToolInvalid, "w", "left out", "m")
	r.Kept.Fields = make([]deny.Field, 1000)
	d := serve(t, b, Tool{Name: "mem_get", Group: Memory, Run: func(context.Context, *Call) (any, error) { return nil, r }})
	_, reason := d.Call(t.Context(), Caller{Agent: "a"}, "mem_get", []byte(`{}`))
	if reason == nil || reason.Why != "SECRET" || b.why != "left out" || b.fields != MaxFaults {
		t.Errorf("%v; on record %q with %d fields", reason, b.why, b.fields)
	}
}

func TestReasonsNameAsManyFieldsAsAreWorthReading(t *testing.T) {
	b := &book{}
	d := serve(t, b, Tool{Name: "mem_set", Group: Memory, Effect: true, Run: func(context.Context, *Call) (any, error) {
		r := Refuse(deny.ToolInvalid, "w", "y", "m")
		r.Fields = make([]deny.Field, 100_000)
		return nil, r
	}})
	_, reason := d.Call(t.Context(), Caller{Agent: "a"}, "mem_set", []byte(`{}`))
	if reason == nil || len(reason.Fields) != MaxFaults || b.fields != MaxFaults {
		t.Errorf("%d fields on record; %.200v", b.fields, reason)
	}
}

func TestNothingIsAnsweredThatIsNotOnRecord(t *testing.T) {
	b := &book{broken: true}
	d := serve(
		t, b,
		Tool{Name: "mem_set", Group: Memory, Effect: true, Run: func(context.Context, *Call) (any, error) { return 1, nil }},
	)
	for _, name := range []string{"mem_set", "rm", "fs_write"} {
		if out, reason := d.Call(t.Context(), Caller{}, name, nil); reason == nil || reason.Code != deny.ToolUnavailable {
			t.Errorf("%s: %s, %v", name, out, reason)
		}
	}
}

func TestTheRateComesBeforeTheInput(t *testing.T) {
	b := &book{}
	d := serve(t, b, Tool{Name: "mem_get", Group: Memory, Run: func(context.Context, *Call) (any, error) { return 1, nil }})
	for i := range 60 {
		_, reason := d.Call(t.Context(), Caller{Rate: 10}, "mem_get", []byte("no JSON"))
		want := deny.ToolInvalid
		if i >= 10 {
			want = deny.ToolRate
		}
		if reason == nil || reason.Code != want || want == deny.ToolRate && (reason.RetryAfter < 1 || reason.RetryAfter > 60) {
			t.Fatalf("call %d: %v", i, reason)
		}
	}
}

func TestTablesThatAreMistakes(t *testing.T) {
	run := func(context.Context, *Call) (any, error) { return nil, nil }
	for name, tools := range map[string][]Tool{
		"another group": {{Name: "mem_get", Group: Files, Run: run}},
		"no such name":  {{Name: "mem_shred", Group: Memory, Run: run}},
		"nothing to do": {{Name: "mem_get", Group: Memory}},
		"twice":         {{Name: "mem_get", Group: Memory, Run: run}, {Name: "mem_get", Group: Memory, Run: run}},
	} {
		if _, err := NewTable(tools...); err == nil {
			t.Errorf("%s: it was made", name)
		}
	}
}
