package team

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"bulkhead/internal/tool/toolname"
)

// Guests says that agents without a runtime may be made while the team runs,
// over POST /admin/agents of front, and bounds what any of them can be given.
type Guests struct {
	Token       HostFile // what whoever makes them has to show; root's, mode 0600
	Max         int64    // guests of the team
	Awake       int64    // whose gateways run at a time
	Idle        time.Duration
	Egress      []Destination
	Tools       *Tools
	Connections int64 // of each, open at a time

	// The team's, as of its agents.
	Upstream *Upstream  `json:",omitempty"`
	CAFiles  []HostFile `json:",omitempty"`
}

// Guest is a request for one.
type Guest struct {
	Agent *Agent
	// For is how long its token lives; 0: as long as tokens do.
	For time.Duration
	// NewToken ends the tokens that an existing guest has, and gives one.
	NewToken bool
}

// MaxGuests bounds the guests of one host: so many ranges of ids are set aside.
const MaxGuests = 4096

// Bounds and defaults of guests.
const (
	maxAwake, defaultAwake = 256, 32
	minIdle, maxIdle       = 5 * time.Second, 24 * time.Hour
	defaultIdle            = 2 * time.Minute
	maxGuestLife           = 366 * 24 * time.Hour // token.MaxLife
	maxGuestRequest        = 256 << 10
	guestsUsage            = "{adminTokenFile: /etc/bulkhead/admin.token, max: 100, tools: {allow: [mem], memory: 4Mi, storage: 16Mi}}"
)

// guests reads the ceiling. It has to be stated: nothing of it that opens
// something has a default.
func (r *reader) guests(p place) *Guests {
	if p.node == nil {
		return nil
	}
	f := r.fields(p, "a ceiling like "+guestsUsage, guestsKeys...)
	r.need(p, f, "adminTokenFile", "name the file of the token, like adminTokenFile: /etc/bulkhead/admin.token")
	r.need(p, f, "max", "say how many there may be, like max: 100")
	r.need(p, f, "tools", "say what they may be given, like tools: {allow: [mem], memory: 4Mi, storage: 16Mi}")
	g := &Guests{Token: r.hostFile(f["adminTokenFile"])}
	g.Max = r.quantity(f["max"], "a number like 100", "1 to "+strconv.Itoa(MaxGuests), whole, 1, MaxGuests)
	g.Awake = cmp.Or(r.quantity(f["awake"], "a number like 32", "1 to "+strconv.Itoa(maxAwake), whole, 1, maxAwake), defaultAwake)
	g.Idle = defaultIdle
	if s, ok := r.text(f["idle"], "a time like 2m"); ok {
		d, err := time.ParseDuration(s)
		if err != nil || d < minIdle || d > maxIdle {
			r.fault(f["idle"], "write a time from 5s to 24h, like 2m", "%q is not a time in that range", clip(s))
		}
		g.Idle = d
	}
	g.Egress = r.merge(r.egress(f["egress"]))
	g.Connections = defaultConnections
	if f["limits"].node != nil {
		g.Connections = r.guestLimits(f["limits"], defaultConnections)
	}
	g.Tools = r.guestTools(f["tools"])
	return g
}

// guestTools reads the tools of the ceiling, all of whose bounds are stated.
func (r *reader) guestTools(p place) *Tools {
	t := r.tools(p)
	if t == nil {
		return nil
	}
	at, ok := r.resolve(p)
	if !ok || !isMapping(at.node) {
		return t
	}
	for key, missing := range map[string]bool{"allow": len(t.Allow) == 0, "memory": t.MemoryBytes == 0, "storage": t.StorageBytes == 0} {
		if missing {
			r.fault(p, "write it, like {allow: [mem], memory: 4Mi, storage: 16Mi}", "the ceiling of guests' tools does not state %s", key)
		}
	}
	if t.CodeImage != "" || slices.ContainsFunc(t.Allow, isCode) {
		r.fault(p, "remove proc and code; code runs for the agents of the manifest", "guests have no code tools")
	}
	d := t.WithDefaults()
	return &d
}

func isCode(s string) bool { return s == string(toolname.Code) || toolname.GroupOf(s) == toolname.Code }

// guestLimits reads the one limit that a guest has beside those of its tools.
func (r *reader) guestLimits(p place, most int64) int64 {
	f := r.fields(p, "limits like {connections: 16}", guestLimitKeys...)
	return cmp.Or(r.quantity(f["connections"], "a number like 16", "1 to "+strconv.FormatInt(most, 10), whole, 1, most), most)
}

// ParseGuest reads the body of POST /admin/agents, JSON, by the code that reads
// manifests, and holds it against the ceiling. What it leaves open it gets of
// the ceiling, but for egress, of which it gets none. The error is a [Faults]
// whose paths are the fields of the request.
func (g *Guests) ParseGuest(body []byte) (*Guest, error) {
	const file = "request"
	one := func(problem, mend string) error { return Faults{{File: file, Problem: problem, Mend: mend}} }
	switch {
	case len(body) > maxGuestRequest:
		return nil, one(fmt.Sprintf("the request has more than %d bytes", maxGuestRequest), "name fewer destinations")
	case !json.Valid(body):
		return nil, one("the request is not JSON", `send an object like {"name": "app1", "tools": {"allow": ["mem"]}}`)
	}
	r := &reader{file: file, dir: "/", anchors: map[string]ast.Node{}}
	out := &Guest{}
	if root := r.tree(body); root != nil {
		out = r.guest(place{node: root}, g)
	}
	if len(r.presets) > 0 {
		r.faults = append(r.faults, Fault{File: file, Path: "egress", Problem: "presets are read in manifests only", Mend: "list each destination as host:port"})
	}
	if len(r.faults) > 0 {
		return nil, r.faults.sorted()
	}
	return out, nil
}

func (r *reader) guest(p place, ceiling *Guests) *Guest {
	f := r.fields(p, `the guest's settings, like {"name": "app1"}`, guestKeys...)
	r.need(p, f, "name", `add "name": "app1"`)
	a := &Agent{Name: r.name(f["name"], "an agent"), Mode: ModeSession, Engine: "cell", Guest: true, Upstream: ceiling.Upstream, CAFiles: ceiling.CAFiles}
	out := &Guest{Agent: a, NewToken: r.boolean(f["newToken"])}
	if s := r.quantity(f["expiresIn"], "seconds, like 86400", "1 to "+strconv.Itoa(int(maxGuestLife/time.Second)), whole, 1, int64(maxGuestLife/time.Second)); s > 0 {
		out.For = time.Duration(s) * time.Second
	}
	a.Egress = r.merge(r.egress(f["egress"]))
	a.Limits.Connections = ceiling.Connections
	if f["limits"].node != nil {
		a.Limits.Connections = r.guestLimits(f["limits"], ceiling.Connections)
	}
	t := r.tools(f["tools"])
	if t != nil && t.CodeImage != "" {
		r.fault(f["tools"], "remove code", "guests have no code tools")
	}
	a.Tools = t.merge(ceiling.Tools)
	if t == nil || t.Webhooks == nil {
		a.Tools.Webhooks = nil // they would want egress that was not asked for
	}
	r.checkTools(f["tools"], a)
	for _, fault := range ceiling.Exceeded(a) {
		fault.File = r.file
		r.faults = append(r.faults, fault)
	}
	return out
}

// Exceeded says by what a guest is more than the ceiling: one fault for each
// field. A guest that was made under a higher ceiling is held against the one
// of now before it wakes.
func (g *Guests) Exceeded(a *Agent) Faults {
	var out Faults
	add := func(path, mend, format string, args ...any) {
		out = append(out, Fault{Path: path, Problem: fmt.Sprintf(format, args...), Mend: mend})
	}
	const inManifest = "ask for less; or raise front.guests.%s in bulkhead.yaml"
	for _, d := range a.Egress {
		if !slices.ContainsFunc(g.Egress, func(c Destination) bool { return c.includes(d) }) {
			add("egress", fmt.Sprintf(inManifest, "egress"), "%s is not within what guests may be given", d.Target())
		}
	}
	allowed := g.Tools.Allowed()
	for _, s := range a.Tools.Allowed() {
		if !slices.Contains(allowed, s) && !slices.Contains(allowed, string(toolname.GroupOf(s))) {
			add("tools.allow", fmt.Sprintf(inManifest, "tools.allow"), "%s is not within what guests may be given", s)
		}
	}
	for _, n := range []struct {
		path       string
		have, most int64
	}{
		{"tools.ratePerMinute", a.Tools.RatePerMinute, g.Tools.RatePerMinute},
		{"tools.memory", a.Tools.MemoryBytes, g.Tools.MemoryBytes},
		{"tools.storage", a.Tools.StorageBytes, g.Tools.StorageBytes},
		{"limits.connections", a.Limits.Connections, g.Connections},
	} {
		if n.have > n.most {
			add(n.path, fmt.Sprintf(inManifest, n.path), "%d is more than the %d that guests may be given", n.have, n.most)
		}
	}
	return out
}

// PlainGuest says whether an agent has nothing that a request for a guest cannot
// ask for.
func (a *Agent) PlainGuest() bool {
	plain := Agent{Name: a.Name, Mode: ModeSession, Engine: "cell", Guest: true, Egress: a.Egress, Limits: Limits{Connections: a.Limits.Connections}, Tools: a.Tools, Upstream: a.Upstream, CAFiles: a.CAFiles}
	return name().MatchString(a.Name) && !contains(reserved, a.Name) && a.Tools != nil && a.Tools.CodeImage == "" && reflect.DeepEqual(*a, plain)
}

// includes says whether everything that o covers is covered by d, as strictly.
func (d Destination) includes(o Destination) bool {
	if d.SNI == SNIExact && o.SNI != SNIExact {
		return false
	}
	if o.Wild() {
		return d.Wild() && d.Port == o.Port && (d.Host == o.Host || strings.HasSuffix(o.Host[1:], d.Host[1:]))
	}
	host := o.Host
	if host == "" {
		host = o.Address.String()
	}
	return d.Covers(host, o.Port)
}
