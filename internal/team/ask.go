package team

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/tool/toolname"
)

// What an agent's approvals are unless the manifest says otherwise, and bounds.
const (
	defaultAskExpire           = 24 * time.Hour
	minAskExpire, maxAskExpire = time.Minute, 30 * 24 * time.Hour
	defaultAskWaiting          = 16
	maxAskWaiting              = 64

	askUsage = "{tools: [net_http_post]}"
)

// Ask is which tool calls of an agent a person has to approve before they are
// done (docs/contracts/approvals.md).
type Ask struct {
	Tools   []string      // groups and names, all of which the agent may call
	Egress  []Destination `json:",omitempty"` // asked for before they are reached; covered by the agent's egress
	Expire  time.Duration `json:",omitempty"` // after which nobody decided; 0: 24 h
	Waiting int64         `json:",omitempty"` // calls that wait at a time; 0: 16
}

// WithDefaults fills in what the manifest left open.
func (a Ask) WithDefaults() Ask {
	a.Expire = cmp.Or(a.Expire, defaultAskExpire)
	a.Waiting = cmp.Or(a.Waiting, defaultAskWaiting)
	return a
}

// Asks says whether a call of the tool waits for a person. a may be nil.
func (a *Ask) Asks(name string) bool {
	return a != nil && (slices.Contains(a.Tools, name) || slices.Contains(a.Tools, string(toolname.GroupOf(name))))
}

// Reaches says whether a destination waits for a person. a may be nil.
func (a *Ask) Reaches(host string, port uint16) bool {
	return a != nil && slices.ContainsFunc(a.Egress, func(d Destination) bool { return d.Covers(host, port) })
}

// ask reads which calls a person has to approve. That the agent may make them is
// checked when its tools are known ([reader.checkAsk]). egress is where it names
// destinations, for [reader.askEgress].
func (r *reader) ask(p place) (_ *Ask, egress place) {
	if p.node == nil {
		return nil, place{}
	}
	a := &Ask{}
	f := r.fields(p, askUsage, askKeys...)
	if f == nil {
		return a, place{}
	}
	if f["egress"].node == nil {
		r.need(p, f, "tools", "name the tools that a person approves, like "+askUsage+", or destinations under egress")
	}
	var names []string
	for _, g := range toolname.Groups() {
		if g != toolname.Talk && g != toolname.Executions {
			names = append(names, string(g))
		}
	}
	items := r.list(f["tools"], maxAsked, "groups and tools, like [net_http_post, notify]")
	if at, ok := r.resolve(f["tools"]); ok && isSequence(at.node) && len(items) == 0 {
		r.fault(f["tools"], "remove the key ask when nothing is to be approved", "no tool is listed")
	}
	for _, item := range items {
		s, ok := r.text(item, "a group or a tool, like notify or net_http_post")
		s = strings.TrimPrefix(s, toolname.Prefix)
		group := toolname.GroupOf(s)
		if toolname.Of(toolname.Group(s)) != nil {
			group = toolname.Group(s)
		}
		switch {
		case !ok:
		case group == "":
			mend := "name a group (" + strings.Join(names, ", ") + ") or a tool of docs/contracts/tools.md"
			if near := nearest(s, askable()); near != "" {
				mend = "did you mean " + near + "?"
			}
			r.fault(item, mend, "%q is no tool", clip(s))
		case group == toolname.Talk:
			r.fault(item, "remove it; messages.to and messages.critical say who may be written to", "messages cannot be asked for")
		case group == toolname.Executions:
			r.fault(item, "remove it; each step of an execution is asked for by its own tool", "%s cannot be asked for", s)
		case contains(a.Tools, s) || s != string(group) && contains(a.Tools, string(group)):
			r.fault(item, "remove one of the two", "%s is listed already", s)
		default:
			a.Tools = append(a.Tools, s)
		}
	}
	if s, ok := r.text(f["expire"], "a time like 24h"); ok {
		d, err := time.ParseDuration(s)
		if err != nil || d < minAskExpire || d > maxAskExpire {
			r.fault(f["expire"], "write a time from 1m to 720h, like 24h", "%q is not a time in that range", clip(s))
		}
		a.Expire = d
	}
	a.Waiting = r.quantity(f["waiting"], "a number like 16", "1 to 64", whole, 1, maxAskWaiting)
	return a, f["egress"]
}

// maxAsked is more than there are groups and tools.
const maxAsked = 100

// askable are the groups and tools that may be asked for.
func askable() (out []string) {
	for _, g := range toolname.Groups() {
		if g != toolname.Talk && g != toolname.Executions {
			out = append(append(out, string(g)), toolname.Of(g)...)
		}
	}
	return out
}

// alike are the tools that do what a tool does, some of it for all of them: while one
// of these is not asked for, who may not do it does it in another way. Tools that call
// others (proc_schedule, execution_start) are not among them, since each such call is
// asked for by itself; nor are the methods of net, which a server tells apart, and
// whose destinations the runtime's own proxy reaches anyway.
var alike = map[string][]string{
	"db_query":       {"db_transaction"},
	"db_transaction": {"db_query"},
	"db_insert":      {"db_query", "db_transaction"},
	"db_update":      {"db_query", "db_transaction"},
	"db_delete":      {"db_query", "db_transaction"},
	"mem_set":        {"mem_incr"},              // a number
	"mem_incr":       {"mem_set"},               // the sum
	"mem_delete":     {"mem_set", "mem_expire"}, // by a value, or a second
	"mem_expire":     {"mem_set", "mem_delete"}, // a value has a time to live
	"mem_forget":     {"mem_remember"},          // 20 versions are kept
	"vec_delete":     {"vec_upsert"},            // of the same id
	"fs_delete":      {"fs_write"},              // nothing, over what was there
	"fs_mkdir":       {"fs_write"},              // makes folders that are missing
	"proc_execute":   {"proc_spawn"},
	"proc_spawn":     {"proc_execute"},
}

// maxAskedHosts bounds ask.egress as egress is bounded.
const maxAskedHosts = maxEgress

// askEgress reads which destinations wait for a person. Each is covered by the agent's
// egress; a host without a port stands for all of its ports there.
func (r *reader) askEgress(p place, a *Agent) {
	if p.node == nil || a.Ask == nil {
		return
	}
	items := r.list(p, maxAskedHosts, "destinations of egress, like [api.example.com:443]")
	if at, ok := r.resolve(p); ok && isSequence(at.node) && len(items) == 0 {
		r.fault(p, "remove egress when no destination is to be approved", "no destination is listed")
	}
	open := r.with == nil && len(r.presets) > 0 // which hosts a preset stands for is not known from the file alone
	for _, item := range items {
		s, ok := r.text(item, "a destination of egress, like api.example.com:443")
		if !ok {
			continue
		}
		found, fault := askedOf(s, a.Egress)
		switch {
		case fault != nil:
			r.fault(item, fault.mend, "%s", fault.problem)
		case len(found) == 0 && !open:
			r.fault(item, "list it under egress of "+clip(a.Name)+", or remove it from ask.egress", "ask.egress names %s, which %s may not reach at all", clip(s), clip(a.Name))
		}
		for _, d := range found {
			if slices.ContainsFunc(a.Ask.Egress, func(o Destination) bool { return o.Target() == d.Target() }) {
				r.fault(item, "remove one of the two", "%s is listed already", d.Target())
				continue
			}
			a.Ask.Egress = append(a.Ask.Egress, d)
		}
	}
}

// askedOf gives the destinations that one entry of ask.egress means, of those that are
// covered by egress.
func askedOf(s string, egress []Destination) (out []Destination, _ *destinationFault) {
	d, fault := destination(s)
	if fault == nil {
		if slices.ContainsFunc(egress, func(e Destination) bool { return e.contains(d) }) {
			out = append(out, d)
		}
		return out, nil
	}
	any, bad := destination(s + ":1") // a host without a port
	if bad != nil {
		return nil, fault
	}
	for _, e := range egress {
		any.Port = e.Port
		if e.contains(any) && !slices.ContainsFunc(out, func(o Destination) bool { return o.Port == any.Port }) {
			out = append(out, any)
		}
	}
	return out, nil
}

// contains says whether d covers all that o does.
func (d Destination) contains(o Destination) bool {
	if o.Wild() && d.Target() != o.Target() {
		return d.Wild() && d.Covers(strings.TrimPrefix(o.Host, "*."), o.Port)
	}
	if o.Wild() || d.Target() == o.Target() {
		return d.Target() == o.Target()
	}
	return o.Host != "" && d.Covers(o.Host, o.Port)
}

// checkAsk refuses to ask for what the agent may not call at all, and for what it may
// do in another way unasked. p is where the manifest speaks of it.
func (r *reader) checkAsk(p place, a *Agent) {
	if a.Ask == nil {
		return
	}
	if a.Tools == nil {
		r.fault(p, "add tools: {allow: [...]} to agents."+clip(a.Name)+", or remove ask", "%s has no tools that could be asked for", clip(a.Name))
		return
	}
	allowed := a.Tools.Allowed()
	for _, s := range a.Ask.Tools {
		group := toolname.GroupOf(s)
		of := []string{s}
		if group == "" { // a group: one of its tools is enough
			group, of = toolname.Group(s), toolname.Of(toolname.Group(s))
		}
		if !contains(allowed, string(group)) && !slices.ContainsFunc(of, func(one string) bool { return contains(allowed, one) }) {
			r.fault(p, "add "+s+" to tools.allow of "+clip(a.Name)+", or remove it from ask.tools", "ask.tools names %s, which %s may not call at all", s, clip(a.Name))
			continue
		}
		var unasked []string
		for _, one := range alike[s] { // a group that is asked for is asked for whole
			if (contains(allowed, one) || contains(allowed, string(toolname.GroupOf(one)))) && !a.Ask.Asks(one) {
				unasked = append(unasked, one)
			}
		}
		if len(unasked) > 0 {
			names := strings.Join(unasked, " and ")
			r.fault(p, "add "+names+" to ask.tools (or the group "+string(group)+"), or leave it out of tools.allow of "+clip(a.Name), "ask.tools names %s, but %s may do the same by %s without asking", s, clip(a.Name), names)
		}
	}
}

func targets(of []Destination) (out []string) {
	for _, d := range of {
		out = append(out, d.Target())
	}
	return out
}

// askDiff lists what differs of what is asked for, in the words of a plan.
func askDiff(old, new *Ask) []string {
	if old == nil && new == nil {
		return nil
	}
	var a, b Ask
	if old != nil {
		a = old.WithDefaults()
	}
	if new != nil {
		b = new.WithDefaults()
	}
	why := setDiff("ask.tools", a.Tools, b.Tools)
	why = append(why, setDiff("ask.egress", targets(a.Egress), targets(b.Egress))...)
	if old != nil && new != nil {
		if a.Expire != b.Expire {
			why = append(why, "ask.expire: "+a.Expire.String()+" -> "+b.Expire.String())
		}
		if a.Waiting != b.Waiting {
			why = append(why, "ask.waiting: "+number(a.Waiting, "")+" -> "+number(b.Waiting, ""))
		}
	}
	return why
}
