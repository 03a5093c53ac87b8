package team

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// MaxFaults bounds how many faults of one manifest are told at once.
const MaxFaults = 200

// Fault is one thing that is wrong with a manifest, and where.
type Fault struct {
	File    string `json:"file"`
	Line    int    `json:"line"`           // from 1; 0 when the fault has no place
	Column  int    `json:"column"`         // from 1, in characters
	Path    string `json:"path,omitempty"` // "agents.writer.egress[2]"; empty for the file itself
	Problem string `json:"problem"`
	Mend    string `json:"mend"`
}

// String gives the fault as one line:
//
//	bulkhead.yaml:12:9: agents.writer.egress[0]: "*" would allow everything; to mend: list each host:port
func (f Fault) String() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", f.Line, f.Column)
	}
	b.WriteString(": ")
	if f.Path != "" {
		b.WriteString(f.Path + ": ")
	}
	b.WriteString(f.Problem + "; to mend: " + f.Mend)
	return b.String()
}

// Faults is every fault of one manifest, in the order of the file. It is the
// only error type that [Parse] returns.
type Faults []Fault

// Error gives one fault per line.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, one := range f {
		lines[i] = one.String()
	}
	return strings.Join(lines, "\n")
}

// sorted orders the faults by place, drops repeats (an alias that is used
// twice is faulty once) and bounds their number.
func (f Faults) sorted() Faults {
	slices.SortStableFunc(f, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	f = slices.Compact(f)
	if len(f) > MaxFaults {
		rest := len(f) - MaxFaults
		last := f[MaxFaults]
		f = append(f[:MaxFaults:MaxFaults], Fault{
			File: last.File, Line: last.Line, Column: last.Column,
			Problem: fmt.Sprintf("%d more faults from here on are not shown", rest),
			Mend:    "mend the ones above first",
		})
	}
	return f
}
