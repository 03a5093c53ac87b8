package tool

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"bulkhead/internal/deny"
	"bulkhead/internal/tool/toolname"
)

// Group is a set of tools that the manifest allows or not as one.
type Group = toolname.Group

// The groups (docs/contracts/tools.md).
const (
	Memory  = toolname.Memory
	Vectors = toolname.Vectors
	Files   = toolname.Files
	SQL     = toolname.SQL
	Network = toolname.Network
	Events  = toolname.Events
	Code    = toolname.Code
	Notices = toolname.Notices
	Talk    = toolname.Talk

	Executions = toolname.Executions
)

// DefaultInput is how much JSON a tool takes unless it says otherwise, in bytes.
const DefaultInput = 1 << 20

// Prefix may stand before every name.
const Prefix = toolname.Prefix

// Tool is one row of the table.
type Tool struct {
	Name    string // as in "mem_set"
	Group   Group
	Summary string // for the model that chooses among tools: one or two sentences
	Fields  []Field
	// Effect says that the tool changes something, so that its record must be
	// durable before the answer. A tool that forgets to take or begin its
	// record has it written by the table. One that mostly reads is without it,
	// and begins a call that turns out to change something.
	Effect bool
	// MaxInput bounds the bytes of its input's JSON; 0: DefaultInput.
	MaxInput int64
	// Scope is what a grant for calls of this tool can be bound to, beside the very
	// input: "https://api.example.com:443" of a URL. It is never empty: an input whose
	// destination cannot be told is refused, as the tool would. nil: there is none.
	Scope func(in Input) (string, *deny.Reason)
	// Run does it. The answer is marshalled as JSON, but an [Answer]. A *deny.Reason in the error's
	// chain is what the agent gets; any other error is told as tools.failed,
	// without its text, which goes to the log.
	Run func(ctx context.Context, c *Call) (any, error)
}

// Answer is an answer of a tool that is JSON already, to the byte as encoding/json
// would write it. It is given as it is.
type Answer json.RawMessage

// Caller is who calls, known before the body is read.
type Caller struct {
	Team, Agent string
	// Token is the id (jti) of the token shown, when it was one of control's.
	Token string
	// Key and Expires (Unix seconds) are that token's, by which it is told later
	// whether it is still good.
	Key     string
	Expires int64
	// Domains narrow what net tools may reach, below the manifest; nil: the
	// manifest alone decides.
	Domains []string
	// Rate is the calls per minute that the token allows, when it is fewer than
	// the table's; 0: the table's.
	Rate int
	// Quota is what the token allows of the agent's quotas.
	Quota Quota
}

// Table is the tools of one agent's gateway. It does not change once made.
type Table struct {
	tools map[string]*Tool
	names []string
}

// NewTable makes a table. Two tools of one name, or one whose name is not one
// of its group's, are mistakes of the program.
func NewTable(tools ...Tool) (*Table, error) {
	t := &Table{tools: make(map[string]*Tool, len(tools))}
	for _, tool := range tools {
		if tool.Run == nil || tool.Group == "" || toolname.GroupOf(tool.Name) != tool.Group {
			return nil, fmt.Errorf("tool %q does not belong to group %q, or does nothing", tool.Name, tool.Group)
		}
		if t.tools[tool.Name] != nil {
			return nil, fmt.Errorf("two tools are named %q", tool.Name)
		}
		t.tools[tool.Name] = &tool
		t.names = append(t.names, tool.Name)
	}
	slices.Sort(t.names)
	return t, nil
}

// Find gives the tool of a bare name; nil: there is none. It takes no [Prefix]: who
// has judged a name without it would be given the tool of another one.
func (t *Table) Find(name string) *Tool { return t.tools[name] }

// All gives every tool, by name.
func (t *Table) All() []*Tool {
	out := make([]*Tool, len(t.names))
	for i, n := range t.names {
		out[i] = t.tools[n]
	}
	return out
}

// Refuse makes a reason of the tools' layer.
func Refuse(code deny.Code, what, why, mend string) *deny.Reason {
	return &deny.Reason{Layer: deny.LayerTools, Code: code, What: what, Why: why, Mend: mend}
}
