package doctor

import (
	"context"
	"io/fs"
	"path"
	"strings"

	"bulkhead/internal/team"
)

const environment = "/etc/environment"

// wayOut says which teams reach outside through a proxy, and what that means;
// and whether this host itself seems to need one.
func wayOut(_ context.Context, h Host) Answer {
	dir := path.Dir(h.Layout.Team("x"))
	teams, err := fs.ReadDir(h.Files, strings.TrimPrefix(dir, "/"))
	if err != nil && !absent(err) {
		return unread(dir, err)
	}
	var behind, straight []string
	for _, t := range teams {
		where := h.Layout.Manifest(t.Name())
		raw, err := fs.ReadFile(h.Files, strings.TrimPrefix(where, "/"))
		if absent(err) {
			continue
		}
		if err != nil {
			return unread(where, err)
		}
		m, err := team.Parse(where, raw)
		if err != nil || len(m.Agents) == 0 {
			straight = append(straight, t.Name()) // the warden tells of a manifest that does not parse
			continue
		}
		if u := m.Agents[0].Upstream; u != nil {
			behind = append(behind, "team "+m.Team+" through "+u.URL())
		} else {
			straight = append(straight, m.Team)
		}
	}
	proxy := hostProxy(h)
	switch {
	case len(behind) > 0:
		return Answer{
			State: OK, Where: dir,
			Found: strings.Join(behind, ", ") + ": names are kept by warden, gateway and dialer; the kernel keeps to the proxy's address",
		}
	case proxy && len(straight) > 0:
		return Answer{State: Weak, Found: "this host's programs use a proxy, no team does", Where: environment + ", " + dir}
	case proxy:
		return Answer{State: OK, Found: "this host's programs use a proxy; a manifest names it under upstreamProxy", Where: environment}
	}
	return Answer{State: OK, Found: "straight", Where: environment + ", " + dir}
}

// hostProxy says whether the host's programs are told of a proxy (pam_env(8)).
func hostProxy(h Host) bool {
	text, err := h.text(environment)
	if err != nil {
		return false
	}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		name = strings.ToLower(name)
		if ok && (name == "http_proxy" || name == "https_proxy" || name == "all_proxy") && strings.Trim(value, `"' `) != "" {
			return true
		}
	}
	return false
}
