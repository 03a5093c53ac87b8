// Package account keeps layer 1's Linux accounts: one per agent with its own,
// disjoint range of 65,536 subordinate ids.
//
// Accounts are made and removed by the distribution's own useradd and userdel,
// which know its locks, hooks and databases. What they did is then read back
// from /etc/passwd, /etc/subuid and /etc/subgid: an account is in force only
// when its range is alone. No account gets a login, a mail spool, a cron or at
// entry, a user manager or lingering: they would be footholds.
package account

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// User is a line of passwd.
type User struct {
	Name  string
	UID   uint32
	GID   uint32
	Home  string
	Shell string
}

// Range is a line of subuid or subgid; Owner is a name or a number.
type Range struct {
	Owner string
	First uint32
	Count uint32
}

// Last is the last id of the range.
func (r Range) Last() uint32 { return r.First + r.Count - 1 }

func (r Range) overlaps(o Range) bool { return r.First <= o.Last() && o.First <= r.Last() }

// Database is what the host's account files say.
type Database struct {
	Users  []User
	Groups []string // names
	SubUID []Range
	SubGID []Range
}

// Read reads the account files below etc ("/etc").
func Read(etc string) (*Database, error) { return ReadFS(os.DirFS(etc), etc) }

// ReadFS reads the account files at the root of files; etc names that folder
// in errors.
func ReadFS(files fs.FS, etc string) (*Database, error) {
	var d Database
	if err := readLines(files, etc, "passwd", func(line string) error {
		u, err := parseUser(line)
		if err == nil {
			d.Users = append(d.Users, u)
		}
		return err
	}); err != nil {
		return nil, err
	}
	if err := readLines(files, etc, "group", func(line string) error {
		name, _, _ := strings.Cut(line, ":")
		d.Groups = append(d.Groups, name)
		return nil
	}); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for name, into := range map[string]*[]Range{"subuid": &d.SubUID, "subgid": &d.SubGID} {
		err := readLines(files, etc, name, func(line string) error {
			r, err := parseRange(line)
			if err == nil {
				*into = append(*into, r)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return &d, nil
}

func readLines(files fs.FS, etc, name string, take func(string) error) (err error) {
	f, err := files.Open(name)
	if err != nil {
		return fmt.Errorf("account: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return scanLines(filepath.Join(etc, name), f, take)
}

func scanLines(path string, r io.Reader, take func(string) error) error {
	s := bufio.NewScanner(r)
	for n := 1; s.Scan(); n++ {
		line := strings.TrimSpace(s.Text())
		// "+" and "-" lines are NIS compat; they name no local account.
		if line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "+") || strings.HasPrefix(line, "-") {
			continue
		}
		if err := take(line); err != nil {
			return fmt.Errorf("account: %s:%d: %w", path, n, err)
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("account: %s: %w", path, err)
	}
	return nil
}

func parseUser(line string) (User, error) {
	f := strings.Split(line, ":")
	if len(f) != 7 {
		return User{}, fmt.Errorf("%d fields, want 7", len(f))
	}
	uid, err := parseID(f[2])
	if err != nil {
		return User{}, err
	}
	gid, err := parseID(f[3])
	if err != nil {
		return User{}, err
	}
	return User{Name: f[0], UID: uid, GID: gid, Home: f[5], Shell: f[6]}, nil
}

func parseRange(line string) (Range, error) {
	f := strings.Split(line, ":")
	if len(f) != 3 {
		return Range{}, fmt.Errorf("%d fields, want 3", len(f))
	}
	first, err := parseID(f[1])
	if err != nil {
		return Range{}, err
	}
	count, err := parseID(f[2])
	if err != nil {
		return Range{}, err
	}
	if count == 0 || uint64(first)+uint64(count) > 1<<32-1 {
		return Range{}, fmt.Errorf("range %d+%d does not fit 32 bits", first, count)
	}
	return Range{Owner: f[0], First: first, Count: count}, nil
}

func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("id %q is not a 32-bit number", s)
	}
	return uint32(n), nil
}

// User finds an account by name.
func (d *Database) User(name string) (User, bool) {
	i := slices.IndexFunc(d.Users, func(u User) bool { return u.Name == name })
	if i < 0 {
		return User{}, false
	}
	return d.Users[i], true
}

// RangeOf gives the one range of an account, equal for users and groups, or
// the reason why there is none to rely on: absent, several, unequal, too
// small, or shared with anybody, an ordinary uid or gid included.
// Errors wrap [ErrTaken].
func (d *Database) RangeOf(u User, size uint32) (Range, error) {
	r, err := d.rangeOf(u, size)
	if err != nil {
		return Range{}, fmt.Errorf("%w (%w)", err, ErrTaken)
	}
	return r, nil
}

func (d *Database) rangeOf(u User, size uint32) (Range, error) {
	mine := func(all []Range) []Range {
		var out []Range
		for _, r := range all {
			if r.Owner == u.Name || r.Owner == strconv.FormatUint(uint64(u.UID), 10) {
				out = append(out, r)
			}
		}
		return out
	}
	uids, gids := mine(d.SubUID), mine(d.SubGID)
	switch {
	case len(uids) == 0 || len(gids) == 0:
		return Range{}, fmt.Errorf("account: %s has no subordinate ids in /etc/subuid and /etc/subgid", u.Name)
	case len(uids) > 1 || len(gids) > 1:
		return Range{}, fmt.Errorf("account: %s has %d entries in /etc/subuid and %d in /etc/subgid, want one each", u.Name, len(uids), len(gids))
	case uids[0].First != gids[0].First || uids[0].Count != gids[0].Count:
		return Range{}, fmt.Errorf("account: %s has different ranges in /etc/subuid (%d+%d) and /etc/subgid (%d+%d)", u.Name, uids[0].First, uids[0].Count, gids[0].First, gids[0].Count)
	case uids[0].Count != size:
		return Range{}, fmt.Errorf("account: %s has %d subordinate ids, want %d", u.Name, uids[0].Count, size)
	}
	r := uids[0]
	for _, o := range slices.Concat(d.SubUID, d.SubGID) {
		own := o.Owner == r.Owner && o.First == r.First && o.Count == r.Count
		if !own && r.overlaps(o) {
			return Range{}, fmt.Errorf("account: the range %d-%d of %s overlaps %d-%d of %s; give %s another range in /etc/subuid and /etc/subgid", r.First, r.Last(), u.Name, o.First, o.Last(), o.Owner, o.Owner)
		}
	}
	for _, o := range d.Users {
		for _, id := range []uint32{o.UID, o.GID} {
			if id >= r.First && id <= r.Last() {
				return Range{}, fmt.Errorf("account: the range %d-%d of %s holds the id %d of account %s; move that account", r.First, r.Last(), u.Name, id, o.Name)
			}
		}
	}
	return r, nil
}
