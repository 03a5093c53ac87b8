package containerfile

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/image"
)

// Kinds of steps.
const (
	KindRun     = "RUN"
	KindCopy    = "COPY"
	KindWorkdir = "WORKDIR"
)

// Scratch is the base that is empty.
const Scratch = "scratch"

// defaultPath is PATH in a step, until ENV says otherwise.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Plan is what a Containerfile asks for.
type Plan struct {
	Base  string   `json:"base"` // Scratch, a name of the store, or a reference with its digest
	Steps []Step   `json:"steps"`
	Notes []string `json:"-"` // what was taken and is not used, with its place
}

// Pulled says whether the base is an image of a registry.
func (p *Plan) Pulled() bool { return strings.Contains(p.Base, "@") }

// Step is one thing to do; it stands for itself.
type Step struct {
	Kind string   `json:"kind"`
	Line int      `json:"line"`
	Text string   `json:"text"`           // the instruction, for people
	Argv []string `json:"argv,omitempty"` // RUN
	Env  []string `json:"env,omitempty"`  // RUN: NAME=value
	Dir  string   `json:"dir"`            // the working folder, absolute

	Sources []string `json:"sources,omitempty"` // COPY: paths and patterns in the context
	Dest    string   `json:"dest,omitempty"`    // COPY: absolute
	Folder  bool     `json:"folder,omitempty"`  // COPY: Dest is a folder, whatever is there
}

type parser struct {
	file   string
	faults []error
	plan   *Plan
	global map[string]string // ARGs before FROM
	env    map[string]string // ENV and ARG, as the next step sees them
	dir    string
	shell  []string
	from   bool
}

// notUsed are the instructions that describe how an image runs. Value: what does it instead.
var notUsed = map[string]string{
	"LABEL": "images have no labels", "EXPOSE": "the manifest's ports say it", "VOLUME": "the manifest says what an agent can write",
	"HEALTHCHECK": "nothing in an image is run unasked", "USER": "steps run as the build's own root, agents as the id that the host gives them",
	"ENTRYPOINT": "the manifest's command says what runs", "CMD": "the manifest's command says what runs", "STOPSIGNAL": "the shim stops what runs",
}

// refused are instructions with their own mend.
var refused = map[string]string{
	"ADD":        "use COPY for files of the context, and RUN with --egress for what is downloaded",
	"ONBUILD":    "write the instruction into the file that needs it",
	"MAINTAINER": "write a comment",
}

// Parse reads a Containerfile; file is its name in faults. All faults are
// reported at once, each a *[Fault].
func Parse(file, text string) (*Plan, error) {
	p := &parser{file: file, plan: &Plan{}, global: map[string]string{}, dir: "/", shell: []string{"/bin/sh", "-c"}}
	if i := strings.IndexByte(text, 0); i >= 0 || len(text) > maxFile {
		p.fault(place{1, 1}, fmt.Sprintf("a NUL, or more than %d bytes", maxFile), "this is no Containerfile")
		return nil, p.err()
	}
	for _, l := range p.scan(text) {
		p.instruction(l)
	}
	if !p.from && len(p.faults) == 0 {
		p.fault(place{1, 1}, "no FROM", "begin with FROM NAME or FROM REGISTRY/REPOSITORY@sha256:DIGEST")
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	return p.plan, nil
}

func (p *parser) instruction(l logical) {
	n := strings.IndexAny(l.text, " \t")
	if n < 0 {
		n = len(l.text)
	}
	name, rest := strings.ToUpper(l.text[:n]), l.from(n).trim()
	at := l.start()
	if !p.from && name != "FROM" && name != "ARG" {
		p.fault(at, name+" before FROM", "begin with FROM; only ARG may stand before it")
		p.from, p.env = true, startEnv() // say it once
	}
	if rest.text == "" {
		p.fault(at, name+" says nothing", "give it arguments, or leave it out")
		return
	}
	why, ignored := notUsed[name]
	switch {
	case name == "FROM":
		p.base(at, rest)
	case name == "RUN":
		p.run(l, rest)
	case name == "COPY":
		p.copy(l, rest)
	case name == "ENV":
		p.setEnv(rest)
	case name == "ARG":
		p.arg(rest)
	case name == "WORKDIR":
		p.workdir(l, rest)
	case name == "SHELL":
		if argv, ok := list(rest); ok && len(argv) > 0 && argv[0] != "" {
			p.shell = argv
		} else {
			p.fault(rest.start(), "not a list", `write SHELL ["/bin/sh", "-c"]`)
		}
	case ignored:
		p.plan.Notes = append(p.plan.Notes, fmt.Sprintf("%s:%d:%d: %s is not used: %s", p.file, at.line, at.column, name, why))
	case refused[name] != "":
		p.fault(at, name+" is not supported", refused[name])
	default:
		p.fault(at, fmt.Sprintf("%.40q is not an instruction that is understood", l.text[:n]), "use FROM, RUN, COPY, ENV, ARG, WORKDIR, SHELL")
	}
}

func startEnv() map[string]string { return map[string]string{"PATH": defaultPath} }

func (p *parser) base(at place, rest logical) {
	again := p.from
	p.from, p.env = true, startEnv()
	if again {
		p.fault(at, "a second FROM", "one stage is supported: build the other one as an image of its own and COPY from the context")
		return
	}
	words := fields(rest)
	if p.flags(words, "FROM") {
		return
	}
	if len(words) != 1 && (len(words) != 3 || !strings.EqualFold(words[1].text, "AS")) {
		p.fault(rest.start(), "FROM takes one image", "write FROM NAME or FROM REGISTRY/REPOSITORY@sha256:DIGEST")
		return
	}
	base := p.expand(words[0], p.global)
	switch {
	case base.text == Scratch:
	case strings.Contains(base.text, "@"):
		if _, err := image.ParseReference(base.text); err != nil {
			p.fault(base.at, err.Error(), "write the registry's name as well (docker.io/library/debian@sha256:…)")
		}
	case strings.ContainsAny(base.text, ":/"):
		p.fault(base.at, fmt.Sprintf("%.200q has no digest", base.text), "a tag can be moved: write REGISTRY/REPOSITORY@sha256:DIGEST (skopeo inspect docker://… shows it), or a name that bulkhead image list shows")
	default:
		if err := image.CheckName(base.text); err != nil {
			p.fault(base.at, err.Error(), "write a name that bulkhead image list shows")
		}
	}
	p.plan.Base = base.text
}

// flags refuses --flags, and says whether there was one.
func (p *parser) flags(words []logical, of string) (found bool) {
	mends := map[string]string{
		"--chown": "leave it out: everything in an image belongs to root", "--chmod": "use RUN chmod",
		"--from": "one stage is supported: COPY takes files of the context", "--platform": "leave it out: images are for this host's architecture",
	}
	for _, w := range words {
		name, _, _ := strings.Cut(w.text, "=")
		if !strings.HasPrefix(name, "--") {
			return found
		}
		found = true
		mend := mends[name]
		if mend == "" {
			mend = "leave it out"
		}
		p.fault(w.start(), fmt.Sprintf("%s with %.40s", of, name), mend)
	}
	return found
}

func (p *parser) hereDoc(rest logical) bool {
	for i := 0; ; i += 2 {
		n := strings.Index(rest.text[i:], "<<")
		if n < 0 {
			return false
		}
		i += n
		after := strings.TrimLeft(strings.TrimPrefix(rest.text[i+2:], "-"), `"'`)
		if after != "" && isName(after[:1]) {
			p.fault(rest.at[i], "a here-doc", "put the text into a file of the context and COPY it, or use printf")
			return true
		}
	}
}

// step adds a step with what holds for it.
func (p *parser) step(kind string, l logical) *Step {
	s := Step{Kind: kind, Line: l.start().line, Text: l.text, Dir: p.dir}
	p.plan.Steps = append(p.plan.Steps, s)
	return &p.plan.Steps[len(p.plan.Steps)-1]
}

func (p *parser) run(l, rest logical) {
	if p.flags(fields(rest), "RUN") || p.hereDoc(rest) {
		return
	}
	argv, exec := list(rest)
	if exec && (len(argv) == 0 || argv[0] == "") {
		p.fault(rest.start(), "an empty command", `write RUN ["program", "argument"]`)
		return
	}
	if !exec {
		argv = append(slices.Clone(p.shell), rest.text)
	}
	s := p.step(KindRun, l)
	s.Argv = argv
	for _, name := range slices.Sorted(maps.Keys(p.env)) {
		s.Env = append(s.Env, name+"="+p.env[name])
	}
}

func (p *parser) copy(l, rest logical) {
	parts := fields(rest)
	if p.flags(parts, "COPY") || p.hereDoc(rest) {
		return
	}
	var words []word
	if argv, ok := list(rest); ok {
		for _, a := range argv {
			words = append(words, word{a, rest.start()})
		}
	} else {
		for _, f := range parts {
			words = append(words, p.expand(f, p.env))
		}
	}
	if len(words) < 2 {
		p.fault(rest.start(), "COPY takes sources and a destination", "write COPY SOURCE... DESTINATION")
		return
	}
	var sources []string
	for _, w := range words[:len(words)-1] {
		clean := path.Clean("/" + w.text)[1:] // as the format has it, "/x" is x of the context
		if clean == "" {
			clean = "."
		}
		if slices.Contains(strings.Split(w.text, "/"), "..") || w.text == "" {
			p.fault(w.at, fmt.Sprintf("%.200q leads out of the context", w.text), "name a file below the folder that is built")
		}
		if _, err := path.Match(clean, ""); err != nil {
			p.fault(w.at, fmt.Sprintf("%.200q is no pattern", w.text), "close the [")
		}
		sources = append(sources, clean)
	}
	dest := words[len(words)-1]
	if dest.text == "" {
		p.fault(dest.at, "an empty destination", "write . for the working folder")
	}
	s := p.step(KindCopy, l)
	s.Sources, s.Dest = sources, p.below(dest.text)
	s.Folder = len(sources) > 1 || strings.HasSuffix(dest.text, "/") || path.Base(dest.text) == "." || path.Base(dest.text) == ".."
}

// below gives a path of the image, from the working folder on.
func (p *parser) below(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(p.dir, name)
}

func (p *parser) workdir(l, rest logical) {
	w := p.expand(rest, p.env)
	if w.text == "" {
		p.fault(rest.start(), "an empty folder", "write WORKDIR /folder")
		return
	}
	p.dir = p.below(w.text)
	p.step(KindWorkdir, l)
}

// setEnv reads NAME=value pairs, or NAME and the rest of the line.
func (p *parser) setEnv(rest logical) {
	parts := fields(rest)
	if !strings.Contains(parts[0].text, "=") {
		p.fault(rest.start(), "ENV without =", "write ENV NAME=value")
		return
	}
	values := maps.Clone(p.env) // one instruction sees the values before it
	for _, part := range parts {
		if name, value, ok := p.pair(part); ok {
			values[name] = p.expand(value, p.env).text
		}
	}
	p.env = values
}

func (p *parser) pair(part logical) (name string, value logical, ok bool) {
	name, _, ok = strings.Cut(part.text, "=")
	if !ok || !isName(name) {
		p.fault(part.start(), fmt.Sprintf("%.40q is not NAME=value", part.text), "quote a value that has blanks in it")
		return "", logical{}, false
	}
	return name, part.from(len(name) + 1), true
}

// arg reads NAME=default. After FROM, NAME alone takes the default that stands before it.
func (p *parser) arg(rest logical) {
	into := p.env
	if !p.from {
		into = p.global
	}
	for _, part := range fields(rest) {
		if value, ok := p.global[part.text]; ok && p.from {
			p.env[part.text] = value
			continue
		}
		if isName(part.text) {
			p.fault(part.start(), part.text+" has no default", "write ARG "+part.text+"=default: a build takes no arguments")
			continue
		}
		if name, value, ok := p.pair(part); ok {
			into[name] = p.expand(value, into).text
		}
	}
}
