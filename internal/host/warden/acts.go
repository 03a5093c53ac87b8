package warden

import (
	"encoding/json"
	"fmt"
	"path"
	"strconv"
	"sync"
	"time"

	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

// What an operator does inside of an agent leaves a record of kind exec in the
// warden's log, and for those who watch: one when it begins and, where the warden
// sees the end, one with how it ended. Of a command they have the program and how
// many arguments it got: arguments may be secrets.

// act is one thing that an operator does inside.
type act struct {
	c      *call
	a      *agentRun
	target string // what it is done to: a program, a port, the workspace
	what   string // "exec in runtime, 2 arguments"
	begun  bool
}

// Bounds of what is kept: of a program's name, and of how it ended.
const (
	maxProgram = 64
	maxHow     = 300
)

// command is the act of running argv, which is not empty.
func (c *call) command(a *agentRun, what string, argv []string) *act {
	program := path.Base(argv[0])
	if len(program) > maxProgram {
		program = program[:maxProgram]
	}
	switch n := len(argv) - 1; n {
	case 1:
		what += ", 1 argument"
	default:
		what += fmt.Sprintf(", %d arguments", n)
	}
	return &act{c: c, a: a, target: program, what: what}
}

func (x *act) by() string {
	return ", by the operator with user id " + strconv.FormatUint(uint64(x.c.uid), 10)
}

// begin is called before anything of it happens.
func (x *act) begin() {
	x.begun = true
	x.tell(record.Started, x.what+x.by(), 0)
}

// end says how it ended: err is why it failed, else how has it in words.
func (x *act) end(how string, err error) {
	if !x.begun {
		return
	}
	v := record.Allowed
	if err != nil {
		v, how = record.Failed, err.Error()
	}
	if len(how) > maxHow { // a shim said it, which the agent may have taken over
		how = how[:maxHow]
	}
	x.tell(v, x.what+" ended: "+how+x.by(), 0)
}

func (x *act) tell(v record.Verdict, detail string, count uint64) {
	x.c.w.events.emit(record.Record{
		Team: x.a.Place.Team, Agent: x.a.Place.Name, Kind: record.Exec, Verdict: v, Target: x.target, Detail: detail, Count: count,
	})
	x.c.w.log.Info("an operator acts inside", "kind", record.Exec, "verdict", v, "team", x.a.Place.Team, "agent", x.a.Place.Name,
		"target", x.target, "what", detail, "uid", x.c.uid, "count", max(count, 1))
}

// exitHow is how a command ended, by what its shim says.
func exitHow(m wire.Message) (how string, err error) {
	switch m.Verb {
	case wire.VerbExited:
		var e wire.ExecExited
		if err := json.Unmarshal(m.Body, &e); err != nil {
			return "", fmt.Errorf("the shim's word of it does not decode: %w", err)
		}
		return exitWords(e.Code, e.Signal), nil
	case wire.VerbError:
		var f wire.Failure
		if err := json.Unmarshal(m.Body, &f); err != nil {
			return "", fmt.Errorf("the shim's word of it does not decode: %w", err)
		}
		return "", &fault{f}
	}
	return "the operator left", nil
}

func exitWords(code int, signal string) string {
	how := "exit " + strconv.Itoa(code)
	if signal != "" {
		how += ", " + signal
	}
	return how
}

// forwardFold is within which an operator's connections to one port make one
// record: a page in a browser makes dozens.
const forwardFold = time.Minute

// forwarded counts connections that operators were given to ports of agents.
type forwarded struct {
	mu   sync.Mutex
	last map[forwardKey]*forwardCount
}

type forwardKey struct {
	account string
	port    uint16
	uid     uint32
}

type forwardCount struct {
	told time.Time
	n    uint64 // since
}

// count says whether this connection makes a record, and of how many it is.
func (f *forwarded) count(k forwardKey, now time.Time) (n uint64, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last == nil {
		f.last = map[forwardKey]*forwardCount{}
	}
	c := f.last[k]
	if c == nil {
		for old, o := range f.last { // those of agents that are gone
			if now.Sub(o.told) > time.Hour {
				delete(f.last, old)
			}
		}
		c = &forwardCount{}
		f.last[k] = c
	}
	c.n++
	if now.Sub(c.told) < forwardFold {
		return 0, false
	}
	n, c.told, c.n = c.n, now, 0
	return n, true
}
