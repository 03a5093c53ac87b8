package team

import (
	"regexp"
	"strings"
	"sync"

	"bulkhead/internal/layout"
)

// lazily compiles an expression when it is first used: compiling all of them
// would be a fifth of the start of every command that reads no manifest.
func lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// name is the form of team, agent and channel names. 31 characters leave room
// for nothing more in an account name; longer ones are hashed by layout.
var name = lazily(`^[a-z][a-z0-9_-]{0,30}$`)

// imageName is the form of names in the image store: one folder, never a path.
var imageName = lazily(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// variable is the form of an environment variable's name.
var variable = lazily(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// reserved names mean something else in commands, addresses or accounts.
var reserved = []string{
	"adapter", "all", "audit", "bulkhead", layout.AdapterName, "control", "dialer", "front", "gateway", "host", "launcher",
	"localhost", "operator", "operators", "resolver", "root", "runtime", "shim", "team", "topics", "warden",
}

// setByUs are variables that every runtime gets from Bulkhead; another value
// would lead clients around the gateway and into a refusal.
var setByUs = []string{"HOME", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "HOSTNAME"}

// IsName says whether this has the form of a team's or an agent's name.
func IsName(s string) bool { return name().MatchString(s) }

func (r *reader) name(p place, what string) string {
	s, ok := r.text(p, "a name like writer")
	if !ok {
		return ""
	}
	r.checkName(p, what, s)
	return s
}

func (r *reader) checkName(p place, what, s string) {
	switch {
	case !name().MatchString(s):
		r.fault(p, "use 1 to 31 of a-z, 0-9, _ and -, beginning with a letter", "%q cannot be %s's name", clip(s), what)
	case contains(reserved, s):
		r.fault(p, "choose another name", "%q is a reserved name", s)
	}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// nearest gives the known word that s was probably meant to be, or "".
func nearest(s string, known []string) string {
	if len(s) > 40 {
		return ""
	}
	best, dist := "", 3
	if len(s) < 4 {
		dist = 2
	}
	for _, k := range known {
		if d := distance(strings.ToLower(s), strings.ToLower(k)); d < dist {
			best, dist = k, d
		}
	}
	return best
}

// distance is the Levenshtein distance of two short words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
