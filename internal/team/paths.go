package team

import (
	"path"
	"path/filepath"
	"strings"
)

const maxMounts = 64

// hostReserved are folders of the host that no agent may see any part of:
// kernel interfaces, and Bulkhead's own state and sockets (layout.Default).
var hostReserved = []string{
	"/proc", "/sys", "/dev", "/run", "/var/run", "/boot",
	"/var/lib/bulkhead", "/etc/bulkhead", "/etc/shadow", "/etc/gshadow", "/root/.ssh",
}

// targetReserved are places inside a container that Bulkhead fills itself, or
// whose content the agent may change (so that a mount there could be moved).
var targetReserved = []string{
	"/proc", "/sys", "/dev", "/.bulkhead", "/run", "/tmp", "/home", "/workspace",
	"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf",
}

// mounts reads the read-only mounts of one agent.
func (r *reader) mounts(p place) []Mount {
	var out []Mount
	var targets, hosts []string
	for _, item := range r.list(p, maxMounts, "{host: /data/ref, path: /ref}") {
		f := r.fields(item, "{host: /data/ref, path: /ref}", mountKeys...)
		r.need(item, f, "host", "name the folder of the host, like host: /data/ref")
		r.need(item, f, "path", "name the place inside, like path: /ref")
		host, hostOK := r.absolute(f["host"])
		if hostOK {
			hostOK = r.hostFolder(f["host"], host)
		}
		target, targetOK := r.absolute(f["path"])
		if targetOK {
			if target == "/" {
				r.fault(f["path"], "choose another place, like /ref", "/ is the agent's own root")
				targetOK = false
			} else if where := meets(target, targetReserved); where != "" {
				r.fault(f["path"], "choose another place, like /ref", "%s is reserved for Bulkhead", where)
				targetOK = false
			} else if where := meets(target, targets); where != "" {
				r.fault(f["path"], "keep mounts beside one another", "%s overlaps the mount at %s", clip(target), clip(where))
			}
			targets = append(targets, target)
		}
		if hostOK && contains(hosts, host) {
			r.fault(f["host"], "mount it once", "%s is mounted already", clip(host))
		}
		hosts = append(hosts, host)
		if hostOK && targetOK {
			out = append(out, Mount{Host: host, Target: target})
		}
	}
	return out
}

// meets gives the entry of list that equals p, lies above it or lies below it.
func meets(p string, list []string) string {
	for _, q := range list {
		if p == q || strings.HasPrefix(p, q+"/") || strings.HasPrefix(q, p+"/") || p == "/" {
			return q
		}
	}
	return ""
}

// pathText reads a path as it is written. A number or a boolean without quotes
// is a slip, although a file could have it as its name; so is "", which as a
// relative path would stand for the manifest's own folder.
func (r *reader) pathText(p place, what string) (string, bool) {
	at, ok := r.resolve(p)
	if !ok {
		return "", false
	}
	if bare(at.node) {
		r.fault(at, "write "+what+"; quote it if that is its name", "this is %s, not a path", kindOf(at.node))
		return "", false
	}
	s, ok := r.text(at, what)
	if ok && strings.TrimSpace(s) == "" {
		r.fault(at, "remove the line, or write "+what, "the path is empty")
		return "", false
	}
	return s, ok
}

// absolute reads a path that is absolute and in its shortest form.
func (r *reader) absolute(p place) (string, bool) {
	s, ok := r.pathText(p, "an absolute path")
	if !ok {
		return "", false
	}
	switch {
	case !strings.HasPrefix(s, "/"):
		r.fault(p, "write the whole path from /", "%q is not absolute", clip(s))
		return "", false
	case path.Clean(s) != s || strings.ContainsAny(s, "\n\t"):
		r.fault(p, "write "+clip(path.Clean(s)), "%q is not in its shortest form", clip(s))
		return "", false
	}
	return s, true
}

// folder reads a folder of the host, absolute or beside the manifest.
func (r *reader) folder(p place) string {
	s, ok := r.pathText(p, "a folder, like ./project")
	if !ok {
		return ""
	}
	short := path.Clean(s)
	if trimmed := strings.TrimPrefix(s, "./"); trimmed != short && s != "." && s != "./" || strings.ContainsAny(s, "\n\t") {
		r.fault(p, "write "+clip(short), "%q is not in its shortest form", clip(s))
		return ""
	}
	if !filepath.IsAbs(s) {
		s = filepath.Join(r.dir, s)
	}
	if !r.hostFolder(p, path.Clean(s)) {
		return ""
	}
	return path.Clean(s)
}

// hostFolder refuses folders of the host that must stay out of agents' reach.
func (r *reader) hostFolder(p place, s string) bool {
	if s == "/" {
		r.fault(p, "name the one folder that the agent needs", "/ would show the agent the whole host")
		return false
	}
	if where := meets(s, hostReserved); where != "" {
		r.fault(p, "name another folder", "%s is reserved (%s must stay out of reach)", clip(s), where)
		return false
	}
	return true
}
