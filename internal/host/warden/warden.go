// Package warden is the one root process of a host: it makes accounts, rules
// and cells for every team, supervises them, and answers operators.
//
// # What it promises
//
//   - Everything is announced in the ledger before it is made.
//   - Everything is safe to repeat: an apply after a crash at any point ends in
//     the same state, and a down leaves nothing but the data that was asked to
//     be kept.
//   - Agents do not depend on it: when it ends or is killed they go on, and the
//     next warden adopts them by their launcher's socket, their dialer's start
//     time and their cgroups, never by what an agent could have written.
//   - What status reports is read from the kernel when asked.
//
// # Concurrency
//
// One change to the set of teams at a time (Warden.change). Each agent has an
// owner goroutine ([agentRun].supervise) that alone starts and stops its
// processes. Readers take Warden.mu for the map only.
package warden

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/host/account"
	"bulkhead/internal/host/apparmor"
	"bulkhead/internal/host/ledger"
	"bulkhead/internal/host/nft"
	"bulkhead/internal/host/pins"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/layout"
	"bulkhead/internal/prove"
	"bulkhead/internal/record"
	"bulkhead/internal/resolver"
	"bulkhead/internal/trim"
)

// Config is one warden.
type Config struct {
	Host layout.Host
	// From is the folder of the programs to install; usually that of the
	// warden's own executable.
	From string
	// Self is the warden's own program, started again as a decoy host for
	// controls. Empty: the running executable.
	Self string
	// Stay keeps the warden running when no team is left (systemd runs it);
	// otherwise it ends, so that down leaves nothing behind.
	Stay bool
	// Build names the warden's own build to operators.
	Build string
	Log   *slog.Logger
}

// Warden is a running warden.
type Warden struct {
	cfg      Config
	host     layout.Host
	log      *slog.Logger
	programs string
	build    string
	digests  digests

	ledger   *ledger.Ledger
	accounts *account.Accounts
	table    *nft.Table
	pins     *pins.Server
	resolver *resolver.Client
	cgroups  *cgroup.Tree
	bare     *cell.Bare // what the mount namespaces of all that is started are copies of
	apparmor *apparmor.Loader
	refused  *refusals
	events   *events
	forwards forwarded
	drifts   *drifts
	filters  prove.Filters // as all proofs have found them
	trim     *time.Timer   // gives memory back, once nothing has been done for a while
	disks    diskLocks
	// groupRoot is what cgroups was opened with; launchers and decoys open the
	// same.
	groupRoot string

	signing sync.Mutex // held by whoever reads or changes the evidence keys or a history

	change sync.Mutex // held by whoever changes the set of teams, rules or accounts
	// tabling is held while the rules are read together and put in force.
	tabling sync.Mutex
	noting  sync.Mutex // held while the file of audit's heads is read and written
	probing sync.Mutex // held while the group of probes of servers is made or removed

	mu       sync.Mutex // guards teams, unreadable, sys, calls and guests
	teams    map[string]*teamRun
	services map[string]*service // by name; those that a team wants
	guests   map[string]*guests  // by team; those that may have some
	// unreadable are teams whose state was lost, and why. Their agents may run.
	unreadable map[string]error
	calls      int     // being answered
	sys        *system // nil until the first team

	wakes chan struct{} // places of guests that start at a time

	owners sync.WaitGroup // supervisors and connections
	ctx    context.Context
	cancel context.CancelFunc
}

// ErrRunning says that another warden serves this host.
var ErrRunning = errors.New("another warden is running on this host")

// Run takes over the host and serves operators until ctx ends, or until the
// last team is gone and cfg.Stay is false. Agents keep running.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	for _, dir := range []string{cfg.Host.State, filepath.Dir(cfg.Host.WardenLog())} {
		if err := tree.MkdirAll(dir); err != nil {
			return fmt.Errorf("warden: %w", err)
		}
	}
	held, err := lock(ctx, cfg.Host.WardenLock())
	if err != nil {
		return err
	}
	defer func() { _ = held.Close() }()
	if err := tree.MkdirAll(cfg.Host.Run); err != nil {
		return fmt.Errorf("warden: %w", err)
	}
	w, err := open(ctx, cfg, held)
	if err != nil {
		return err
	}
	defer w.close()
	ln, err := listen(cfg.Host.WardenSocket(), 0o660, w.operatorsGroup())
	if err != nil {
		return err
	}
	defer func() { _ = ln.Close() }()
	if err := w.keepReserve(); err != nil {
		w.log.Warn("no room is kept for a full disk", "error", err)
	}
	w.recover(w.ctx)
	w.log.Info("ready", "socket", cfg.Host.WardenSocket())
	w.watchTable()
	w.watchResolverFiles()
	w.watchIdle()
	w.watchGrants()
	w.watchDrift()
	w.watchTrust()
	w.watchGuests()
	return w.serve(ln)
}

func open(ctx context.Context, cfg Config, held *os.File) (*Warden, error) {
	w := &Warden{cfg: cfg, host: cfg.Host, log: cfg.Log, teams: map[string]*teamRun{}, services: map[string]*service{}, guests: map[string]*guests{}, wakes: make(chan struct{}, wakesAtOnce), apparmor: apparmor.New(), refused: newRefusals(), events: newEvents(), drifts: newDrifts(), unreadable: map[string]error{}}
	var err error
	if w.ledger, err = ledger.Open(w.host.Ledger()); err != nil {
		return nil, err
	}
	if w.cgroups, w.groupRoot, err = openCgroups(w.host); err != nil {
		return nil, errors.Join(err, w.ledger.Close())
	}
	if w.bare, err = cell.MakeBare(); err != nil {
		return nil, errors.Join(err, w.ledger.Close())
	}
	if w.table, err = nft.Open(); err != nil {
		return nil, errors.Join(err, w.bare.Close(), w.ledger.Close())
	}
	w.accounts = &account.Accounts{Etc: "/etc", Ledger: w.ledger, Held: held}
	w.resolver = resolver.NewClient(w.resolverSocket())
	w.pins = pins.New(pins.Config{Table: w.table, Resolver: w.resolver, Denied: w.pinDenied, Spent: w.grantSpent, Authorization: authorization})
	w.ctx, w.cancel = context.WithCancel(ctx)
	w.trim = time.AfterFunc(trimAfter, trim.Memory)
	return w, nil
}

// trimAfter is how long nothing must have been asked or checked before memory
// is given back.
const trimAfter = 10 * time.Second

// close lets go of everything; agents go on.
func (w *Warden) close() {
	w.trim.Stop()
	w.cancel()
	w.owners.Wait()
	for _, c := range []func() error{w.pins.Close, w.resolver.Close, w.table.Close, w.bare.Close, w.ledger.Close} {
		if err := c(); err != nil {
			w.log.Warn("closing", "error", err)
		}
	}
}

// lockPatience is how long a warden that is ending may hold the lock.
const lockPatience = 5 * time.Second

// lock makes sure that there is one warden. The kernel drops the lock when the
// process ends, however it ends, and with it what makes accounts for it.
func lock(ctx context.Context, path string) (held *os.File, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600) // #nosec G304 -- layout
	if err != nil {
		return nil, fmt.Errorf("warden: lock: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("warden: lock %s: %w", path, err), f.Close())
		}
		if ctx.Err() != nil {
			return nil, errors.Join(fmt.Errorf("warden: lock %s: %w", path, ErrRunning), f.Close())
		}
		pause(ctx, 10*time.Millisecond)
	}
}

// listen makes a unix socket in a root-owned folder. A socket that a dead
// process left there is replaced.
func listen(path string, mode uint32, gid int) (*net.UnixListener, error) {
	if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("warden: clear %s: %w", path, err)
	}
	// Nobody can connect between bind and chmod: connecting needs the right to
	// write (unix(7)), which the process's mask of 022 leaves to root. The mask
	// is not changed here: it is the whole process's, children included.
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("warden: listen: %w", err)
	}
	ln.SetUnlinkOnClose(false)
	dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Fchownat(dir, filepath.Base(path), 0, gid, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil {
			err = unix.Fchmodat(dir, filepath.Base(path), mode, 0)
		}
		_ = unix.Close(dir)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("warden: open %s to its peer: %w", path, err), ln.Close())
	}
	return ln, nil
}

// operatorsGroup is the group that may ask read-only questions: "bulkhead",
// when the operator made one. Otherwise root alone.
func (w *Warden) operatorsGroup() int {
	gid, ok := operatorsGID("/etc/group")
	if !ok {
		return 0
	}
	return int(gid)
}

// followOperators opens the socket to a group that the operator made, or
// closes it, while the warden runs.
func (w *Warden) followOperators() {
	if err := unix.Chown(w.host.WardenSocket(), 0, w.operatorsGroup()); err != nil && !errors.Is(err, unix.ENOENT) {
		w.log.Warn("giving the socket to the operators' group", "error", err)
	}
}

// watchTable puts the table back when somebody else changed it.
func (w *Warden) watchTable() {
	w.owners.Go(func() {
		for w.ctx.Err() == nil {
			started := make(chan struct{})
			err := w.table.Watch(w.ctx, started, w.restoreTable)
			if w.ctx.Err() != nil {
				return
			}
			w.log.Error("the watch on nftables ended; starting it again", "error", err)
			w.restoreTable() // what changed meanwhile was not seen
			pause(w.ctx, 200*time.Millisecond)
		}
	})
}

func (w *Warden) restoreTable() {
	w.mu.Lock()
	none := w.sys == nil
	w.mu.Unlock()
	if none {
		return
	}
	if err := w.table.Restore(w.ctx); err != nil {
		w.log.Error("nftables were changed by somebody else and could not be restored", "error", err)
		w.events.emit(record.Record{Kind: record.Repair, Verdict: record.Failed, Target: "nftables table inet " + nft.Name, Detail: "it was changed by somebody else, and could not be restored: " + err.Error()})
		return
	}
	w.log.Warn("nftables were changed by somebody else; restored", "table", nft.Name)
	w.events.emit(record.Record{Kind: record.Repair, Verdict: record.Allowed, Target: "nftables table inet " + nft.Name, Detail: "it was changed by somebody else, and was restored"})
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
