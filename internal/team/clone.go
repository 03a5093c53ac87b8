package team

import (
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// refs are branches and tags as far as they need no quoting anywhere
// (git-check-ref-format(1) allows more).
var refs = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._/+-]{0,199}$`) })

// Clone gives the repository that the workspace begins with, and the branch or tag,
// empty for the default one. ok is false when it begins with a folder, or empty.
func (a *Agent) Clone() (repository, ref string, ok bool) {
	if !isURL(a.Workspace) {
		return "", "", false
	}
	repository, ref, _ = strings.Cut(a.Workspace, "#")
	return repository, ref, true
}

func isURL(s string) bool { return strings.Contains(s, "://") }

// workspace reads what an agent's workspace begins with.
func (r *reader) workspace(p place) string {
	s, ok := r.pathText(p, "a folder, like ./project, or the https URL of a git repository")
	if !ok {
		return ""
	}
	const instead = "write https://HOST/PATH.git, or https://HOST/PATH.git#BRANCH; what needs a key you clone yourself (git clone URL project), and write ./project"
	if strings.HasPrefix(s, "git@") {
		r.fault(p, instead, "%q is cloned over SSH", clip(s))
		return ""
	}
	if !isURL(s) {
		return r.folder(p)
	}
	if why := badClone(s); why != "" {
		if u, err := url.Parse(s); err == nil {
			s = u.Redacted() // a password in it is shown to nobody
		}
		r.fault(p, instead, "%q cannot be cloned: %s", clip(s), why)
		return ""
	}
	return s
}

// CloneHost gives the host:port that a clone of the URL reaches.
func CloneHost(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = "443"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// maxURL is longer than any that a forge gives out.
const maxURL = 2000

func badClone(s string) string {
	if len(s) > maxURL {
		return "it has " + strconv.Itoa(len(s)) + " bytes"
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return "it is no URL"
	case !strings.HasPrefix(s, "https://"):
		return "only https tells who answers"
	case u.User != nil:
		return "it holds credentials"
	case u.Hostname() == "" || u.Opaque != "":
		return "it names no host"
	case u.RawQuery != "" || u.ForceQuery:
		return "it has a query"
	case strings.Trim(u.Path, "/") == "":
		return "it has no path"
	case strings.HasSuffix(s, "#"), u.Fragment != "" && (!refs().MatchString(u.Fragment) || strings.Contains(u.Fragment, "..") || u.EscapedFragment() != u.Fragment):
		return "what follows the # is no branch or tag"
	}
	// What cannot be listed under egress cannot be reached from the clone's walls.
	if _, err := ParseDestination(CloneHost(u)); err != nil {
		return err.Error()
	}
	// Nothing that a terminal, a log or git reads as something else.
	for _, c := range s {
		if c <= ' ' || c > '~' || strings.ContainsRune("\"'`\\<>|;$", c) {
			return "it holds a character that belongs escaped"
		}
	}
	return ""
}
