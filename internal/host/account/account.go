package account

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/host/ledger"
)

// toolTimeout bounds one useradd or userdel: they take locks that a hung
// foreign process may hold.
const toolTimeout = 30 * time.Second

// Accounts makes and removes accounts. Calls are not concurrent: useradd's own
// lock would make them wait for each other anyway.
type Accounts struct {
	Etc    string // "/etc"
	Ledger *ledger.Ledger
	// Held stays open in every useradd and userdel. With the warden's lock in
	// it, the next warden waits for one that outlived its own: without, it
	// would find an account half made, or make it a second time.
	Held *os.File
}

// Request describes an account.
type Request struct {
	Name  string
	Home  string // written into passwd; not created by useradd
	Team  string
	Agent string
	// Range is how many subordinate ids it needs; 0 for none.
	Range uint32
	// System puts the account below UID_MIN.
	System bool
}

// ErrTaken is wrapped when a name or range belongs to somebody else.
var ErrTaken = errors.New("taken by someone else")

// Check says whether Ensure would be refused, without changing anything.
func (a *Accounts) Check(r Request) error {
	d, err := Read(a.Etc)
	if err != nil {
		return err
	}
	return a.CheckIn(d, r)
}

// CheckIn is Check by what was read already.
func (a *Accounts) CheckIn(d *Database, r Request) error {
	_, _, err := a.existing(d, r)
	return err
}

func (a *Accounts) existing(d *Database, r Request) (User, bool, error) {
	u, ok := d.User(r.Name)
	if !ok && slices.Contains(d.Groups, r.Name) && !a.Ledger.Has(ledger.Account, r.Name) {
		return User{}, false, fmt.Errorf("group %q exists on this host and is %w: remove it (groupdel %s), or rename the team or the agent", r.Name, ErrTaken, r.Name)
	}
	if !ok {
		return User{}, false, nil
	}
	if !a.Ledger.Has(ledger.Account, r.Name) {
		return User{}, false, fmt.Errorf("account %q exists on this host and is %w: rename the team or the agent, or remove that account", r.Name, ErrTaken)
	}
	return u, true, nil
}

// Ensure makes the account if it is not there, and returns it as read back.
func (a *Accounts) Ensure(ctx context.Context, r Request) (User, Range, error) {
	d, err := Read(a.Etc)
	if err != nil {
		return User{}, Range{}, err
	}
	u, ok, err := a.existing(d, r)
	if err != nil {
		return User{}, Range{}, err
	}
	if !ok {
		if err := a.Ledger.Announce(ledger.Thing{Kind: ledger.Account, Name: r.Name, Team: r.Team, Agent: r.Agent}); err != nil {
			return User{}, Range{}, err
		}
		if slices.Contains(d.Groups, r.Name) {
			// Ours, by the ledger: a removal was cut short between user and group.
			if err := a.run(ctx, "groupdel", r.Name); err != nil {
				return User{}, Range{}, fmt.Errorf("account: make %s anew: %w", r.Name, err)
			}
		}
		if err := a.run(ctx, "useradd", useraddArgs(r)...); err != nil {
			return User{}, Range{}, fmt.Errorf("account: make %s: %w", r.Name, err)
		}
		if d, err = Read(a.Etc); err != nil {
			return User{}, Range{}, err
		}
		if u, ok = d.User(r.Name); !ok {
			return User{}, Range{}, fmt.Errorf("account: useradd said that it made %s, but %s/passwd does not hold it", r.Name, a.Etc)
		}
	}
	if r.Range == 0 {
		return u, Range{}, nil
	}
	rng, err := d.RangeOf(u, r.Range)
	return u, rng, err
}

func useraddArgs(r Request) []string {
	args := []string{
		"--no-create-home", "--no-log-init", "--user-group", "--shell", "/usr/sbin/nologin",
		"--home-dir", r.Home, "--comment", "Bulkhead",
	}
	if r.System {
		args = append(args, "--system")
	}
	if r.Range > 0 {
		n := fmt.Sprint(r.Range)
		args = append(args, "--key", "SUB_UID_COUNT="+n, "--key", "SUB_GID_COUNT="+n)
	}
	return append(args, r.Name)
}

// Remove deletes the account when it is ours. Nothing of it may run any more.
func (a *Accounts) Remove(ctx context.Context, name string) error {
	thing := ledger.Thing{Kind: ledger.Account, Name: name}
	if !a.Ledger.Has(ledger.Account, name) {
		return nil
	}
	d, err := Read(a.Etc)
	if err != nil {
		return err
	}
	if _, ok := d.User(name); ok {
		if err := a.run(ctx, "userdel", name); err != nil {
			return fmt.Errorf("account: remove %s: %w", name, err)
		}
		if d, err = Read(a.Etc); err != nil {
			return err
		}
		if _, ok := d.User(name); ok {
			return fmt.Errorf("account: userdel said that it removed %s, but %s/passwd still holds it", name, a.Etc)
		}
	}
	// userdel leaves a group to which somebody was added.
	if slices.Contains(d.Groups, name) {
		if err := a.run(ctx, "groupdel", name); err != nil {
			return fmt.Errorf("account: remove the group of %s: %w", name, err)
		}
	}
	return a.Ledger.Forget(thing)
}

// ToolDirs are the folders in which the distribution's own tools are looked
// for. The caller's PATH is not asked: after `su` without a dash it has no
// sbin on Debian.
func ToolDirs() []string { return []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"} }

func tool(name string) (string, error) {
	for _, d := range ToolDirs() {
		if p, err := exec.LookPath(filepath.Join(d, name)); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s is in none of %s; install the package passwd", name, strings.Join(ToolDirs(), ":"))
}

func (a *Accounts) run(ctx context.Context, name string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	path, err := tool(name)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	c := exec.CommandContext(ctx, path, args...) // #nosec G204 -- useradd and its kin, with checked names
	c.Env = []string{"PATH=" + strings.Join(ToolDirs(), ":"), "LC_ALL=C"}
	c.Dir = "/"
	c.Stdout, c.Stderr = &out, &out
	if a.Held != nil {
		c.ExtraFiles = []*os.File{a.Held}
	}
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(out.String()))
	}
	return nil
}
