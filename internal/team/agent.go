package team

import (
	"strconv"
	"strings"
)

const (
	maxRole     = 4000
	maxCommand  = 256
	maxChannels = 64
	maxPorts    = 64
)

// agent reads one agent and merges the defaults into it.
func (r *reader) agent(e entry, d defaults) *Agent {
	a := &Agent{Name: e.name}
	f := r.fields(e.val, "the agent's settings, like {image: pi, command: [pi]}",
		agentKeys...)
	if s, ok := r.text(f["role"], "what the agent is for, in words"); ok {
		if at, ok := r.resolve(f["role"]); ok && bare(at.node) {
			r.fault(at, "write what the agent is for, in words", "this is %s, not words", kindOf(at.node))
		}
		if len(s) > maxRole {
			r.fault(f["role"], "keep it under "+strconv.Itoa(maxRole)+" bytes", "the role is %d bytes long", len(s))
		}
		a.Role = s
	}
	if f == nil {
		return a
	}
	r.root(e, f, a)
	a.Mode = Mode(r.choice(f["mode"], modes...))
	a.Terminal = r.choice(f["terminal"], truths...) == "true"
	a.Engine = r.choice(f["engine"], engines...)
	a.OCI = r.choice(f["ociRuntime"], ociRuntimes...)
	a.Command = r.command(f["command"])
	a.Env = r.env(f["env"])
	a.Secrets = r.secrets(f["secrets"], a.Env)
	a.Workspace = r.workspace(f["workspace"])
	a.Knowledge = r.folder(f["knowledge"])
	r.unserved(f)
	a.Mounts = r.mounts(f["mounts"])
	a.Ports = r.ports(f["ports"])
	a.Channels = r.channels(f["channels"])
	a.Messages = r.messages(e.name, f["messages"])
	if f["limits"].node != nil {
		a.Limits = r.limits(f["limits"])
	}
	a.Tools = r.tools(f["tools"])
	var askedEgress place
	a.Ask, askedEgress = r.ask(f["ask"])
	own := r.egress(f["egress"])
	a.Egress = r.merge(d.egress, own)
	if len(a.Egress) > maxEgress {
		r.fault(f["egress"], "keep at most "+strconv.Itoa(maxEgress), "there are %d destinations with those of defaults", len(a.Egress))
	}
	a.Hosts = r.hosts(f["hosts"], a.Egress)
	d.fill(a)
	toolsAt := f["tools"]
	if toolsAt.node == nil {
		toolsAt = e.keyed()
	}
	r.checkTools(toolsAt, a)
	r.checkAsk(f["ask"], a)
	r.askEgress(askedEgress, a)
	if l := a.Limits.WithDefaults(); !r.faulty(f["limits"]) && l.Inodes > l.DiskBytes/minBytesPerInode {
		r.fault(f["limits"], "write fewer inodes, or a larger disk: one inode needs at least 1Ki", "%d inodes do not fit on a disk of %d bytes", l.Inodes, l.DiskBytes)
	}
	if f["terminal"].node != nil && !a.Terminal && !r.faulty(f["terminal"]) && a.Mode == ModeSession {
		r.fault(f["terminal"], "remove the line", "a session's command has a terminal always: `bulkhead attach` starts it")
	}
	if a.Engine == "cell" && a.OCI != "" && !r.faulty(f["engine"]) {
		r.fault(f["ociRuntime"], "remove it, or write engine: podman", "the cell engine uses no OCI runtime")
	}
	if len(a.Command) == 0 && a.Mode != ModeSession && f["command"].node == nil && !r.faulty(f["mode"]) {
		r.need(e.keyed(), f, "command", "add a line like command: [pi, --offline], or mode: session")
	}
	return a
}

// unserved refuses the keys of layers that are designed and not built, so that a
// plan is not green for what cannot be put in force.
func (r *reader) unserved(f map[string]place) {
	if p := f["secrets"]; p.node != nil && !r.faulty(p) {
		r.fault(p, "remove them, and give the agent a credential file in its workspace if you must", "this build does not deliver secrets")
	}
	if p := f["knowledge"]; p.node != nil && !r.faulty(p) {
		r.fault(p, "remove it, or mount the folder read-only under mounts", "this build has no knowledge vaults")
	}
}

// keyed is the agent as a place whose position is its name.
func (e entry) keyed() place { return place{e.key.node, e.val.path} }

// root reads what the agent's file system is made from.
func (r *reader) root(e entry, f map[string]place, a *Agent) {
	image, rootfs := f["image"], f["rootfs"]
	switch {
	case image.node != nil && rootfs.node != nil:
		r.fault(rootfs, "keep one of the two", "image and rootfs are both set")
		return
	case image.node == nil && rootfs.node == nil:
		r.need(e.keyed(), f, "image", "add a line like image: pi, or rootfs: /absolute/path")
		return
	}
	if s, ok := r.text(image, "the name of an image"); ok {
		if !imageName().MatchString(s) || strings.Contains(s, "..") {
			r.fault(image, "use a name that `bulkhead image list` shows: a-z, 0-9, . _ and -", "%q cannot be an image's name", clip(s))
			return
		}
		a.Image = s
	}
	if s, ok := r.absolute(rootfs); ok && r.hostFolder(rootfs, s) {
		a.Rootfs = s
	}
}

// command reads the words of a command. A word is taken as it is written.
func (r *reader) command(p place) []string {
	var out []string
	items := r.list(p, maxCommand, "one word per entry, like [pi, --offline]")
	if at, ok := r.resolve(p); ok && isSequence(at.node) && len(items) == 0 {
		r.fault(p, "write at least the program", "the command is empty")
	}
	for i, item := range items {
		s, ok := r.text(item, "one word; quote it if it is text")
		switch {
		case !ok:
		case i == 0 && strings.TrimSpace(s) == "":
			r.fault(item, "write the program first", "the program's name is empty")
		case looksSecret("", s):
			r.fault(item, "give the agent a credential file in its workspace, and let the program read that", "this word looks like a secret, and commands can be read by others")
		default:
			out = append(out, s)
		}
	}
	return out
}

// ports reads the TCP ports on which the agent listens.
func (r *reader) ports(p place) []uint16 {
	var out []uint16
	lines := map[uint16]int{}
	for _, item := range r.list(p, maxPorts, "one port per entry, like [8080]") {
		s, ok := r.text(item, "a port, like 8080")
		if !ok {
			continue
		}
		port, problem, mend := portOf(s)
		if problem != "" {
			r.fault(item, mend, "%s", problem)
			continue
		}
		if line, dup := lines[port]; dup {
			r.fault(item, "remove one of the two", "port %d is listed already in line %d", port, line)
			continue
		}
		lines[port], _ = position(item.node)
		out = append(out, port)
	}
	return out
}

// channels reads the names of the message channels that the agent joins.
func (r *reader) channels(p place) []string {
	var out []string
	for _, item := range r.list(p, maxChannels, "one channel per entry, like [all-agents]") {
		s, ok := r.text(item, "a channel, like all-agents")
		switch {
		case !ok:
		case !name().MatchString(s):
			r.fault(item, "use 1 to 31 of a-z, 0-9, _ and -, beginning with a letter", "%q cannot be a channel's name", clip(s))
		case contains(out, s):
			r.fault(item, "remove one of the two", "%s is listed twice", s)
		default:
			out = append(out, s)
		}
	}
	return out
}

// choice reads one of a few words; "" when it is absent or wrong.
func (r *reader) choice(p place, words ...string) string {
	s, ok := r.text(p, "one of: "+strings.Join(words, ", "))
	if !ok {
		return ""
	}
	if !contains(words, s) {
		mend := "write one of: " + strings.Join(words, ", ")
		if near := nearest(s, words); near != "" {
			mend = "did you mean " + near + "?"
		}
		r.fault(p, mend, "%q is not known", clip(s))
		return ""
	}
	return s
}
