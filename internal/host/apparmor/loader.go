package apparmor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"bulkhead/internal/engine"
)

// Where the kernel and Debian's package keep what is asked here.
const (
	Enabled  = "/sys/module/apparmor/parameters/enabled"
	profiles = "/sys/kernel/security/apparmor/profiles"
	remove   = "/sys/kernel/security/apparmor/.remove"
	abis     = "/etc/apparmor.d"
)

// Parsers are where the policy's compiler may be.
var Parsers = []string{"/usr/sbin/apparmor_parser", "/sbin/apparmor_parser"}

// Loader loads profiles into the kernel.
type Loader struct {
	root string // "/", another in tests

	mu     sync.Mutex
	loaded map[string]string // digest of the text by profile
}

// New gives the loader of this host.
func New() *Loader { return &Loader{root: "/", loaded: map[string]string{}} }

// On says whether this kernel confines by AppArmor.
func (l *Loader) On() (bool, error) {
	raw, err := os.ReadFile(filepath.Join(l.root, Enabled))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("apparmor: %w", err)
	}
	return strings.TrimSpace(string(raw)) == "Y", nil
}

// Ensure loads the profile of a container, unless the kernel holds it as it is
// to be, and names it in the Spec. Without AppArmor it changes nothing.
func (l *Loader) Ensure(ctx context.Context, s *engine.Spec) error {
	s.AppArmor = ""
	if on, err := l.On(); err != nil || !on {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	name, text := Name(s), Profile(s, l.abi())
	held, err := l.enforced(name)
	if err != nil {
		return err
	}
	if !held || l.loaded[name] != digest(text) {
		if err := l.load(ctx, text); err != nil {
			return fmt.Errorf("apparmor: profile %s: %w", name, err)
		}
		if held, err = l.enforced(name); err == nil && !held {
			err = fmt.Errorf("apparmor: %s does not hold %s in enforce mode after it was loaded", profiles, name)
		}
		if err != nil {
			return err
		}
		l.loaded[name] = digest(text)
	}
	s.AppArmor = name
	return nil
}

// load compiles a policy and gives it to the kernel, in place of what has its
// name.
func (l *Loader) load(ctx context.Context, text string) error {
	parser, err := l.parser()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, parser, "--replace", "--skip-cache", "--quiet") // #nosec G204 -- one of two fixed paths
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", parser, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Remove takes the profiles of an agent out of the kernel. Nothing may run
// under them: a process whose profile goes is unconfined.
func (l *Loader) Remove(team, agent string) error {
	if on, err := l.On(); err != nil || !on {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	names, err := l.held()
	if err != nil {
		return err
	}
	var errs []error
	for name := range names {
		if !strings.HasPrefix(name, prefix(team, agent)) {
			continue
		}
		delete(l.loaded, name)
		if err := l.forget(name); err != nil {
			errs = append(errs, fmt.Errorf("apparmor: remove profile %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// forget removes one profile: one write is one name. A profile that has gone
// meanwhile is as good.
func (l *Loader) forget(name string) error {
	f, err := os.OpenFile(filepath.Join(l.root, remove), os.O_WRONLY, 0) // #nosec G304 -- securityfs
	if err != nil {
		return err
	}
	_, err = f.WriteString(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// enforced asks the kernel for one profile.
func (l *Loader) enforced(name string) (bool, error) {
	names, err := l.held()
	return names[name] == "enforce", err
}

// held lists the kernel's profiles and their modes.
func (l *Loader) held() (map[string]string, error) {
	raw, err := os.ReadFile(filepath.Join(l.root, profiles))
	if err != nil {
		return nil, fmt.Errorf("apparmor: the kernel's list of profiles: %w (is securityfs mounted on /sys/kernel/security?)", err)
	}
	return parseHeld(string(raw)), nil
}

// parseHeld reads lines like "bulkhead.pair.writer.runtime (enforce)".
func parseHeld(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(strings.TrimSpace(line), ")")
		if i := strings.LastIndex(line, " ("); i > 0 {
			out[line[:i]] = line[i+2:]
		}
	}
	return out
}

func (l *Loader) parser() (string, error) {
	for _, p := range Parsers {
		p = filepath.Join(l.root, p)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() {
			return p, nil
		}
	}
	return "", fmt.Errorf("this kernel has AppArmor, but none of %s is there; apt install apparmor", strings.Join(Parsers, ", "))
}

// abi is the newest version of the language that this host's package and this
// package know; empty when it has none of them.
func (l *Loader) abi() string {
	for _, name := range []string{"abi/4.0", "abi/3.0"} {
		if _, err := os.Stat(filepath.Join(l.root, abis, name)); err == nil {
			return name
		}
	}
	return ""
}
