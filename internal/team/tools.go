package team

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/tool/toolname"
)

// What an agent's tools get unless the manifest says otherwise, and bounds.
const (
	defaultRate    = toolname.DefaultRate
	defaultMemory  = 100 << 20
	defaultStorage = 256 << 20

	maxRate                      = 100_000
	minToolMemory, maxToolMemory = 1 << 20, 16 << 30
	minStorage, maxStorage       = 1 << 20, 4 << 40
	defaultCodeMemory            = 512 << 20
	defaultCodePIDs              = 64
	// DefaultCodeOutput is what is kept of an output of code.
	DefaultCodeOutput            = 1 << 20
	minCodeOutput, maxCodeOutput = 1 << 10, 8 << 20

	maxWebhooks = 32
	toolsUsage  = "{allow: [mem, fs, db, net]}"
)

// Tools is what an agent's gateway serves it, beside messages
// (docs/contracts/tools.md).
type Tools struct {
	Allow         []string // groups and names; empty: every group but proc and execution
	RatePerMinute int64    // calls, over all tools
	MemoryBytes   int64    // of mem, vec and events
	StorageBytes  int64    // of fs and db
	Webhooks      []string // URLs to which notify_send may post
	CodeImage     string   `json:",omitempty"` // what proc runs in; empty: proc is refused
	// What one piece of code may take; 0: as [Tools.CodeLimits] says.
	CodeMemoryBytes int64 `json:",omitempty"`
	CodePIDs        int64 `json:",omitempty"` // processes and threads
	CodeOutputBytes int64 `json:",omitempty"` // kept of stdout, and of stderr
}

// CodeLimits are what one piece of code may take.
func (t *Tools) CodeLimits() (memory, pids, output int64) {
	return cmp.Or(t.CodeMemoryBytes, defaultCodeMemory), cmp.Or(t.CodePIDs, defaultCodePIDs), cmp.Or(t.CodeOutputBytes, DefaultCodeOutput)
}

// Allowed gives the groups and names that the agent may call. That of messages
// is not among them: it comes with having messages.
func (t *Tools) Allowed() []string {
	if t == nil {
		return nil
	}
	if len(t.Allow) > 0 {
		return slices.Clone(t.Allow)
	}
	var out []string
	for _, g := range toolname.Groups() {
		if g != toolname.Talk && g != toolname.Code && g != toolname.Executions {
			out = append(out, string(g))
		}
	}
	return out
}

// WithDefaults fills in what the manifest left open.
func (t Tools) WithDefaults() Tools {
	t.RatePerMinute = cmp.Or(t.RatePerMinute, defaultRate)
	t.MemoryBytes = cmp.Or(t.MemoryBytes, defaultMemory)
	t.StorageBytes = cmp.Or(t.StorageBytes, defaultStorage)
	return t
}

// GatewayDiskBytes is what the gateway of an agent with tools needs of the
// host's disk beside what every gateway has: what is counted as memory takes up
// to as much again in pages, indexes and the database's log.
func (t *Tools) GatewayDiskBytes() int64 {
	if t == nil {
		return 0
	}
	d := t.WithDefaults()
	return 2*d.MemoryBytes + d.StorageBytes
}

// tools reads the tools of an agent or of the defaults. What is left open stays
// zero until the two are merged ([defaults.fill]).
func (r *reader) tools(p place) *Tools {
	if p.node == nil {
		return nil
	}
	t := &Tools{}
	f := r.fields(p, toolsUsage, toolsKeys...)
	t.Allow = r.toolNames(f["allow"])
	t.RatePerMinute = r.quantity(f["ratePerMinute"], "a number like 100", "1 to 100000", whole, 1, maxRate)
	t.MemoryBytes = r.quantity(f["memory"], "a size like 100Mi", "1Mi to 16Gi", bytesOf, minToolMemory, maxToolMemory)
	t.StorageBytes = r.quantity(f["storage"], "a size like 256Mi", "1Mi to 4Ti", bytesOf, minStorage, maxStorage)
	t.Webhooks = r.webhooks(f["webhooks"])
	if f["code"].node != nil {
		code := r.fields(f["code"], "{image: toolchain}", codeKeys...)
		t.CodeMemoryBytes = r.quantity(code["memory"], "a size like 512Mi", "16Mi to 1Ti", bytesOf, minMemory, maxMemory)
		t.CodePIDs = r.quantity(code["pids"], "a number like 64", "8 to 32768", whole, minPIDs, maxPIDs)
		t.CodeOutputBytes = r.quantity(code["output"], "a size like 1Mi", "1Ki to 8Mi", bytesOf, minCodeOutput, maxCodeOutput)
		r.need(f["code"], code, "image", "name the image that code runs in, like {image: toolchain}")
		if s, ok := r.text(code["image"], "the name of an image"); ok {
			if !imageName().MatchString(s) || strings.Contains(s, "..") {
				r.fault(code["image"], "use a name that `bulkhead image list` shows: a-z, 0-9, . _ and -", "%q cannot be an image's name", clip(s))
			}
			t.CodeImage = s
		}
	}
	return t
}

func (r *reader) toolNames(p place) []string {
	var groups, known, out []string
	for _, g := range toolname.Groups() {
		if g != toolname.Talk {
			groups = append(groups, string(g))
			known = append(append(known, string(g)), toolname.Of(g)...)
		}
	}
	what := "groups and tools, like [" + strings.Join(groups, ", ") + "]"
	items := r.list(p, len(known), what)
	if at, ok := r.resolve(p); ok && isSequence(at.node) && len(items) == 0 {
		r.fault(p, "remove the key tools when the agent shall have none", "no tool is listed")
	}
	for _, item := range items {
		s, ok := r.text(item, "a group or a tool, like mem or mem_get")
		s = strings.TrimPrefix(s, toolname.Prefix)
		group, _, single := strings.Cut(s, "_")
		switch {
		case !ok:
		case s == string(toolname.Talk) || group == string(toolname.Talk):
			r.fault(item, "remove it, and give the agent channels or messages", "%s is what every agent with messages has", clip(s))
		case !contains(known, s):
			mend := "name a group (" + strings.Join(groups, ", ") + ") or a tool of docs/contracts/tools.md"
			if near := nearest(s, known); near != "" {
				mend = "did you mean " + near + "?"
			}
			r.fault(item, mend, "%q is no tool", clip(s))
		case contains(out, s) || single && contains(out, group):
			r.fault(item, "remove one of the two", "%s is listed already", s)
		default:
			out = append(out, s)
		}
	}
	return out
}

// webhooks reads where notify_send may post to. That their hosts are listed is
// checked when the egress is known ([reader.checkTools]).
func (r *reader) webhooks(p place) []string {
	var out []string
	for _, item := range r.list(p, maxWebhooks, `one URL per entry, like ["https://hooks.example.com/x"]`) {
		s, ok := r.text(item, "a URL, like https://hooks.example.com/x")
		if !ok {
			continue
		}
		u, err := url.Parse(s)
		switch {
		case err != nil || u.Scheme != "https" || u.Hostname() == "" || u.Opaque != "" || strings.ContainsAny(s, " \t\n"):
			r.fault(item, "write it like https://hooks.example.com/x", "%q is not an https URL", clip(s))
		case u.User != nil || u.Fragment != "":
			r.fault(item, "write scheme, host, path and query only", "%q holds a user or a fragment", clip(u.Redacted()))
		case contains(out, s):
			r.fault(item, "remove one of the two", "%s is listed twice", clip(s))
		default:
			out = append(out, s)
		}
	}
	return out
}

// checkTools checks what an agent's tools have to do with the rest of it, once
// that is known. p is where the manifest speaks of tools.
func (r *reader) checkTools(p place, a *Agent) {
	if a.Tools == nil {
		return
	}
	if a.Tools.CodeImage == "" && slices.ContainsFunc(a.Tools.Allow, func(s string) bool {
		return s == string(toolname.Code) || toolname.GroupOf(s) == toolname.Code
	}) {
		r.fault(p, "add a line like code: {image: toolchain}", "proc is allowed, and no image says what code runs in")
	}
	for _, s := range a.Tools.Webhooks {
		u, err := url.Parse(s)
		if err != nil {
			continue // told
		}
		port, err := strconv.ParseUint(cmp.Or(u.Port(), "443"), 10, 16)
		if err != nil || !slices.ContainsFunc(a.Egress, func(d Destination) bool { return d.Covers(u.Hostname(), uint16(port)) }) { // #nosec G115 -- 16 bits
			r.fault(p, "add "+clip(u.Hostname())+":"+clip(cmp.Or(u.Port(), "443"))+" to egress of "+clip(a.Name), "the webhook %s leads to a host that is not listed", clip(s))
		}
	}
}

// merge gives the tools of an agent whose defaults are d.
func (t *Tools) merge(d *Tools) *Tools {
	if t == nil {
		t = d
	}
	if t == nil {
		return nil
	}
	m := *t
	if d != nil {
		if len(m.Allow) == 0 {
			m.Allow = slices.Clone(d.Allow)
		}
		if m.Webhooks == nil {
			m.Webhooks = slices.Clone(d.Webhooks)
		}
		m.RatePerMinute = cmp.Or(m.RatePerMinute, d.RatePerMinute)
		m.MemoryBytes = cmp.Or(m.MemoryBytes, d.MemoryBytes)
		m.StorageBytes = cmp.Or(m.StorageBytes, d.StorageBytes)
		m.CodeImage = cmp.Or(m.CodeImage, d.CodeImage)
		m.CodeMemoryBytes = cmp.Or(m.CodeMemoryBytes, d.CodeMemoryBytes)
		m.CodePIDs = cmp.Or(m.CodePIDs, d.CodePIDs)
		m.CodeOutputBytes = cmp.Or(m.CodeOutputBytes, d.CodeOutputBytes)
	}
	m = m.WithDefaults()
	return &m
}

// toolDiff lists what differs of the tools of an agent, in the words of a plan.
func toolDiff(old, new *Tools) []string {
	var why []string
	switch {
	case old == nil && new == nil:
		return nil
	case old == nil:
		why, old = append(why, "tools: + "+strings.Join(new.Allowed(), ", ")), new
	case new == nil:
		return append(why, "tools: - "+strings.Join(old.Allowed(), ", "))
	}
	why = append(why, setDiff("tools.allow", old.Allowed(), new.Allowed())...)
	one := func(field, a, b string) {
		if a != b {
			why = append(why, field+": "+dash(a)+" -> "+dash(b))
		}
	}
	one("tools.ratePerMinute", number(old.RatePerMinute, ""), number(new.RatePerMinute, ""))
	one("tools.memory", size(old.MemoryBytes), size(new.MemoryBytes))
	one("tools.storage", size(old.StorageBytes), size(new.StorageBytes))
	one("tools.code.image", old.CodeImage, new.CodeImage)
	if old.CodeImage != "" && new.CodeImage != "" {
		oldMemory, oldPIDs, oldOutput := old.CodeLimits()
		memory, pids, output := new.CodeLimits()
		one("tools.code.memory", size(oldMemory), size(memory))
		one("tools.code.pids", number(oldPIDs, ""), number(pids, ""))
		one("tools.code.output", size(oldOutput), size(output))
	}
	return append(why, setDiff("tools.webhooks", old.Webhooks, new.Webhooks)...)
}
