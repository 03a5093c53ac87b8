package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/deny"
	"bulkhead/internal/host/account"
)

// systemDirs are where the distribution's own programs are.
var systemDirs = account.ToolDirs()

func accountChecks() []Check {
	return []Check{
		{
			Layer: deny.LayerAccount, Name: "useradd", Need: Required, Look: tool("useradd"),
			Why: "agents get Linux accounts of their own", Mend: "install the package passwd",
		},
		{
			Layer: deny.LayerAccount, Name: "userdel", Need: Required, Look: tool("userdel"),
			Why: "accounts are removed by down", Mend: "install the package passwd",
		},
		{
			Layer: deny.LayerAccount, Name: "subordinate ids", Look: subordinate,
			Why:  "each agent needs a range of 65536 ids that is nobody else's",
			Mend: "raise SUB_UID_MAX and SUB_GID_MAX in /etc/login.defs, or remove ranges of accounts that are gone",
		},
		{
			Layer: deny.LayerAccount, Name: "separate ranges", Look: overlaps,
			Why:  "whoever holds an id of another's range owns that one's files and processes",
			Mend: "give one of them another range in /etc/subuid and /etc/subgid, and its files new owners",
		},
	}
}

func tool(name string) func(context.Context, Host) Answer {
	return func(_ context.Context, h Host) Answer {
		where := strings.Join(systemDirs, ":")
		if p := h.program(name, systemDirs); p != "" {
			return Answer{State: OK, Found: p, Where: where}
		}
		return Answer{State: Missing, Found: "not found", Where: where}
	}
}

// rangeSize is what layer 1 asks useradd for, per agent.
const rangeSize = 65536

// fewRanges is where an operator should begin to think of it.
const fewRanges = 16

// login.defs(5), as compiled into shadow.
const (
	subMin = 100_000
	subMax = 600_100_000
)

func subordinate(_ context.Context, h Host) Answer {
	const where = "/etc/subuid, /etc/subgid, /etc/login.defs"
	// useradd gives no range at all where the file is absent (shadow,
	// sub_uid_file_present).
	for _, f := range []string{"/etc/subuid", "/etc/subgid"} {
		if !h.exists(f) {
			return Answer{State: Missing, Found: f + " is not there, so useradd gives no ranges", Where: where, Mend: "touch /etc/subuid /etc/subgid"}
		}
	}
	d, err := h.accounts()
	if err != nil {
		return unread(where, err)
	}
	defs, err := h.text("/etc/login.defs")
	if err != nil && !absent(err) {
		return unread(where, err)
	}
	free := min(
		freeRanges(d.SubUID, loginDef(defs, "SUB_UID_MIN", subMin), loginDef(defs, "SUB_UID_MAX", subMax)),
		freeRanges(d.SubGID, loginDef(defs, "SUB_GID_MIN", subMin), loginDef(defs, "SUB_GID_MAX", subMax)),
	)
	a := Answer{State: OK, Found: fmt.Sprintf("space for %d more agents", free), Where: where}
	switch {
	case free == 0:
		a.State = Missing
	case free < fewRanges:
		a.State = Weak
	}
	return a
}

func (h Host) accounts() (*account.Database, error) {
	etc, err := fs.Sub(h.Files, "etc")
	if err != nil {
		return nil, err
	}
	return account.ReadFS(etc, "/etc")
}

func loginDef(text, key string, otherwise uint64) uint64 {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == key {
			if n, err := strconv.ParseUint(f[1], 0, 32); err == nil {
				return n
			}
		}
	}
	return otherwise
}

// freeRanges counts how often rangeSize fits between the ranges that are
// taken, from first to last.
func freeRanges(taken []account.Range, first, last uint64) int {
	taken = slices.Clone(taken)
	slices.SortFunc(taken, func(a, b account.Range) int { return int(int64(a.First) - int64(b.First)) })
	n, next := 0, first
	gap := func(end uint64) { // next up to, not with, end
		if end > next {
			n += int((end - next) / rangeSize) // #nosec G115 -- below 65536
		}
	}
	for _, r := range taken {
		gap(min(uint64(r.First), last+1))
		next = max(next, uint64(r.Last())+1)
	}
	gap(last + 1)
	return n
}

func overlaps(_ context.Context, h Host) Answer {
	const where = "/etc/passwd, /etc/subuid, /etc/subgid"
	d, err := h.accounts()
	if err != nil {
		return unread(where, err)
	}
	if s := clash("subuid", d.SubUID, d.Users, func(u account.User) uint32 { return u.UID }); s != "" {
		return Answer{State: Weak, Found: s, Where: where}
	}
	if s := clash("subgid", d.SubGID, d.Users, func(u account.User) uint32 { return u.GID }); s != "" {
		return Answer{State: Weak, Found: s, Where: where}
	}
	return Answer{State: OK, Found: fmt.Sprintf("%d ranges, none shared", len(d.SubUID)), Where: where}
}

// clash names the first pair that shares an id.
func clash(file string, all []account.Range, users []account.User, id func(account.User) uint32) string {
	for i, r := range all {
		for _, o := range all[:i] {
			if o.Owner != r.Owner && o.First <= r.Last() && r.First <= o.Last() {
				return fmt.Sprintf("%s: %d-%d of %s and %d-%d of %s", file, o.First, o.Last(), o.Owner, r.First, r.Last(), r.Owner)
			}
		}
		for _, u := range users {
			if n := id(u); n >= r.First && n <= r.Last() {
				return fmt.Sprintf("%s: %d-%d of %s holds the id %d of %s", file, r.First, r.Last(), r.Owner, n, u.Name)
			}
		}
	}
	return ""
}
