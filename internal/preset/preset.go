// Package preset finds out which hosts the presets of an egress list stand for
// on this host.
//
// The answer comes from each client itself (npm, pip, go, apt), run without a
// shell in the root folder as the person behind sudo, so that the mirrors of a
// company are found where they are configured and no registry's host is
// written here. Only github has a fixed list: it is one service, not a
// protocol with mirrors. What a client prints is data: each host is checked by
// the manifest's own rules, here and again by the warden.
package preset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"bulkhead/internal/team"
)

// clientTime bounds one client's answer.
const clientTime = 30 * time.Second

// github are the hosts that git over HTTPS, the API and downloads use
// (docs.github.com, "About GitHub's domains").
var github = []string{
	"github.com:443", "api.github.com:443", "codeload.github.com:443", "raw.githubusercontent.com:443",
	"objects.githubusercontent.com:443", "release-assets.githubusercontent.com:443", "uploads.github.com:443",
}

// Run starts a client and gives what it printed. Tests give clients of their own.
type Run func(ctx context.Context, argv ...string) (string, error)

// Expand gives the destinations of each preset, as run says.
func Expand(ctx context.Context, names []string, run Run) (team.Expansions, error) {
	out := team.Expansions{}
	var errs []error
	for _, n := range names {
		list, err := expand(ctx, n, run)
		if err == nil && len(list) == 0 {
			err = errors.New("its configuration names no host that can be reached over HTTP or HTTPS")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("preset %s: %w", n, err))
			continue
		}
		slices.Sort(list)
		out[n] = slices.Compact(list)
	}
	return out, errors.Join(errs...)
}

func expand(ctx context.Context, name string, run Run) ([]string, error) {
	switch name {
	case team.PresetGitHub:
		return slices.Clone(github), nil
	case team.PresetNPM:
		return npm(ctx, run)
	case team.PresetPyPI:
		return pypi(ctx, run)
	case team.PresetGo:
		return golang(ctx, run)
	case team.PresetDebian:
		text, err := run(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI)")
		if err != nil {
			return nil, err
		}
		return targets(strings.Fields(text))
	}
	return nil, fmt.Errorf("it is not known; known are %s", strings.Join(team.Presets(), ", "))
}

// npm asks for the default registry and those of scopes ("@corp:registry").
func npm(ctx context.Context, run Run) ([]string, error) {
	text, err := run(ctx, "npm", "config", "list", "--json")
	if err != nil {
		return nil, err
	}
	var config map[string]any
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return nil, fmt.Errorf("npm config list --json: %w", err)
	}
	var urls []string
	for key, v := range config {
		if s, ok := v.(string); ok && (key == "registry" || strings.HasPrefix(key, "@") && strings.HasSuffix(key, ":registry")) {
			urls = append(urls, s)
		}
	}
	return targets(urls)
}

// pipDefault prints pip's own default: its index and where the files are.
const pipDefault = `from pip._internal.models.index import PyPI as p; print(p.simple_url, "https://" + p.file_storage_domain)`

// pypi asks for the configured indexes. A mirror serves the files itself;
// without one, pip's default and its file server are meant.
func pypi(ctx context.Context, run Run) ([]string, error) {
	text, err := run(ctx, "python3", "-m", "pip", "config", "list")
	if err != nil {
		return nil, err
	}
	var urls []string
	index := false
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		option := key[strings.LastIndexByte(key, '.')+1:]
		if option != "index-url" && option != "extra-index-url" {
			continue
		}
		index = index || option == "index-url"
		urls = append(urls, strings.Fields(strings.ReplaceAll(strings.Trim(value, `'"`), `\n`, " "))...)
	}
	if !index {
		text, err := run(ctx, "python3", "-c", pipDefault)
		if err != nil {
			return nil, err
		}
		urls = append(urls, strings.Fields(text)...)
	}
	return targets(urls)
}

// golang asks for proxies and the checksum database ("off" and "direct" are
// words; direct would mean every host that holds a module).
func golang(ctx context.Context, run Run) ([]string, error) {
	text, err := run(ctx, "go", "env", "GOPROXY", "GOSUMDB")
	if err != nil {
		return nil, err
	}
	proxy, sum, _ := strings.Cut(strings.TrimRight(text, "\n"), "\n")
	var urls []string
	for _, p := range strings.FieldsFunc(proxy, func(c rune) bool { return c == ',' || c == '|' }) {
		if p != "direct" && p != "off" {
			urls = append(urls, p)
		}
	}
	if f := strings.Fields(sum); len(f) > 0 && f[0] != "off" { // "name+key" and, perhaps, a URL
		name, _, _ := strings.Cut(f[0], "+")
		urls = append(urls, "https://"+name)
		urls = append(urls, f[1:]...)
	}
	return targets(urls)
}

// targets turns URLs into destinations. What is read from files or by other
// means than HTTP needs none.
func targets(urls []string) ([]string, error) {
	var out []string
	for _, text := range urls {
		text = strings.TrimPrefix(text, "mirror+") // apt's lists of mirrors
		u, err := url.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("%.100q is not a URL", text)
		}
		port := u.Port()
		switch {
		case u.Scheme != "http" && u.Scheme != "https":
			continue
		case port != "":
		case u.Scheme == "http":
			port = "80"
		default:
			port = "443"
		}
		host := strings.ToLower(u.Hostname())
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		d, err := team.ParseDestination(host + ":" + port)
		if err != nil {
			return nil, err
		}
		if d.Wild() {
			return nil, fmt.Errorf("%s is a wildcard", d.Target())
		}
		out = append(out, d.Target())
	}
	return out, nil
}

// Client runs a client of this host, as the person behind sudo when there is
// one.
func Client(ctx context.Context, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, clientTime)
	defer cancel()
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return "", fmt.Errorf("%s is not on this host, so its configuration cannot be asked: install it, or list the hosts themselves under egress", argv[0])
	}
	cmd := exec.CommandContext(ctx, path, argv[1:]...) // #nosec G204 -- the fixed words of this file
	cmd.Dir = "/"                                      // a project's own configuration is not the host's
	cmd.Env = os.Environ()
	if err := asPerson(cmd); err != nil {
		return "", err
	}
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		said := ""
		if errors.As(err, &exit) {
			said = ": " + strings.TrimSpace(string(exit.Stderr[:min(len(exit.Stderr), 300)]))
		}
		return "", fmt.Errorf("%s failed (%w)%s; mend it, or list the hosts themselves under egress", strings.Join(argv[:min(len(argv), 3)], " "), err, said)
	}
	return string(out), nil
}

func asPerson(cmd *exec.Cmd) error {
	text := os.Getenv("SUDO_UID")
	if os.Geteuid() != 0 || text == "" || text == "0" {
		return nil
	}
	u, err := user.LookupId(text)
	if err != nil {
		return fmt.Errorf("SUDO_UID %.20q is nobody on this host: %w", text, err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	cmd.Env = append(cmd.Env, "HOME="+u.HomeDir, "USER="+u.Username, "LOGNAME="+u.Username)
	return nil
}
