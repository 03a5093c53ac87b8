package team

import "slices"

// The presets of an egress list: words that stand for the destinations of one
// client. All but github are expanded from that client's own configuration on
// the operator's host when `up` runs, so that company mirrors work and no
// registry's host is written here (docs/decisions/0030).
const (
	PresetNPM    = "npm"
	PresetPyPI   = "pypi"
	PresetGo     = "go"
	PresetDebian = "debian"
	PresetGitHub = "github"
)

var presets = []string{PresetNPM, PresetPyPI, PresetGo, PresetDebian, PresetGitHub}

// Presets are the words that an egress list takes beside destinations.
func Presets() []string { return slices.Clone(presets) }

// Expansions are destinations ("host:port") by preset.
type Expansions map[string][]string

// ParseWith is Parse with the presets expanded: each that the manifest names
// must be in with, and stands for those destinations. A destination that is
// listed by hand as well keeps what the hand wrote.
func ParseWith(path string, data []byte, with Expansions) (*Manifest, error) {
	if with == nil {
		with = Expansions{}
	}
	return parse(path, data, with)
}

// preset reads one word of an egress list. ok is false when it is no preset.
func (r *reader) preset(p place, word string) (out []listed, ok bool) {
	if !slices.Contains(presets, word) {
		return nil, false
	}
	if !slices.Contains(r.presets, word) {
		r.presets = append(r.presets, word)
		slices.Sort(r.presets)
	}
	if r.with == nil { // a look at the file alone
		return nil, true
	}
	targets := r.with[word]
	if len(targets) == 0 {
		r.fault(p, "use the bulkhead program of the warden's build; or list the hosts themselves", "the preset %s was not expanded", word)
		return nil, true
	}
	for _, t := range targets {
		d, err := ParseDestination(t)
		if err != nil {
			r.fault(p, "correct the configuration of "+word+", or list the hosts themselves", "the preset %s stands for %s", word, err)
			continue
		}
		if d.Wild() {
			r.fault(p, "list the hosts themselves", "the preset %s stands for the wildcard %s", word, d.Target())
			continue
		}
		d.Line, d.Position = r.at(p)
		d.Position += ", preset " + word
		out = append(out, listed{place: p, Destination: d, preset: word})
	}
	return out, true
}
