package warden

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"bulkhead/internal/engine/cell"
	"bulkhead/internal/host/account"
	"bulkhead/internal/host/ledger"
	"bulkhead/internal/host/nft"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/layout"
)

// system is what all teams of a host share: the block of dialer ids and the
// resolver.
type system struct {
	block    account.Range
	guests   account.Range // none as long as no team has guests
	dns      account.User
	resolver *process
	servers  []netip.Addr
	programs string // digest of those that agents are started with; guarded by Warden.mu
}

func (w *Warden) resolverSocket() string {
	return filepath.Join(w.host.ResolverDir(), "resolver.sock")
}

func (w *Warden) resolverEtc() string { return filepath.Join(w.host.ResolverDir(), "etc") }

// ensureSystem makes the shared accounts and starts or adopts the resolver.
// The caller holds w.change.
func (w *Warden) ensureSystem(ctx context.Context) (*system, error) {
	w.mu.Lock()
	s := w.sys
	w.mu.Unlock()
	if s == nil {
		s = &system{}
	}
	err := tree.MkdirAll(w.host.Images())
	if err != nil {
		return nil, err
	}
	if w.build, err = installPrograms(w.host, w.cfg.From, &w.digests); err != nil {
		return nil, err
	}
	w.programs = w.host.Programs(w.build)
	w.mu.Lock()
	s.programs = w.build
	w.mu.Unlock()
	_, s.block, err = w.accounts.Ensure(ctx, account.Request{Name: layout.SystemAccount, Home: "/nonexistent", Range: layout.RangeSize})
	if err != nil {
		return nil, err
	}
	if s.dns, _, err = w.accounts.Ensure(ctx, account.Request{Name: layout.ResolverAccount, Home: "/nonexistent", System: true}); err != nil {
		return nil, err
	}
	if err := w.ledger.Announce(
		ledger.Thing{Kind: ledger.RunDir, Name: w.host.ResolverDir()},
		ledger.Thing{Kind: ledger.Cgroup, Name: "resolver"},
		ledger.Thing{Kind: ledger.Table, Name: nft.Name},
	); err != nil {
		return nil, err
	}
	if err := tree.MakeAll(
		tree.Entry{Path: w.host.ResolverDir(), Mode: 0o711},
		tree.Entry{Path: w.resolverEtc(), Mode: 0o755},
	); err != nil {
		return nil, err
	}
	if _, err := w.copyResolverFiles(); err != nil {
		return nil, err
	}
	s.servers = nameServers(w.resolverEtc())
	w.mu.Lock()
	w.sys = s
	w.mu.Unlock()
	return s, nil
}

// ensureResolver starts the resolver unless it runs. Rules come first: the
// caller has applied the table, and holds w.change.
func (w *Warden) ensureResolver(_ context.Context) error {
	w.mu.Lock()
	s := w.sys
	w.mu.Unlock()
	if s.resolver != nil && s.resolver.alive() {
		return nil
	}
	state := filepath.Join(w.host.ResolverDir(), "state.json")
	if p := w.adopt(state, s.dns.UID, "resolver"); p != nil {
		s.resolver = p
		return nil
	}
	ln, err := listen(w.resolverSocket(), 0o600, 0)
	if err != nil {
		return err
	}
	defer func() { _ = ln.Close() }()
	f, err := ln.File()
	if err != nil {
		return fmt.Errorf("warden: %w", err)
	}
	defer func() { _ = f.Close() }()
	log, err := openLog(filepath.Join(filepath.Dir(w.host.WardenLog()), "resolver.log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	spec := resolverSpec(s.dns.UID, w.programs, w.resolverEtc())
	spec.AcceptMissing = acceptedMechanisms(w.acceptedAnywhere())
	p, err := cell.Start(spec, cell.Options{
		Cgroups: w.cgroups, Bare: w.bare, Stdout: log, Stderr: log, Files: []*os.File{f},
	})
	if err != nil {
		return fmt.Errorf("warden: start the resolver: %w", err)
	}
	s.resolver = started(p)
	return writeJSON(state, s.resolver.identity)
}

// acceptedAnywhere is what any team accepted: the resolver serves all of them.
func (w *Warden) acceptedAnywhere() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, t := range w.teams {
		out = append(out, t.state.Accepted...)
	}
	return out
}

// removeSystem takes away what no team needs any more. The caller holds
// w.change, and no team is left.
func (w *Warden) removeSystem(ctx context.Context) ([]string, error) {
	w.mu.Lock()
	s := w.sys
	w.mu.Unlock()
	var gone []string
	if s != nil && s.resolver != nil {
		s.resolver.kill()
	}
	if err := w.killCgroup("resolver"); err != nil {
		return gone, err
	}
	more, err := w.dropServices(ctx)
	gone = append(gone, more...)
	if err != nil {
		return gone, err
	}
	if err := w.table.Destroy(); err != nil {
		return gone, err
	}
	gone = append(gone, "table inet "+nft.Name)
	for _, name := range []string{layout.ResolverAccount, layout.GuestsAccount, layout.SystemAccount} {
		if !w.ledger.Has(ledger.Account, name) {
			continue
		}
		if err := w.accounts.Remove(ctx, name); err != nil {
			return gone, err
		}
		gone = append(gone, "account "+name)
	}
	if err := errors.Join(tree.Remove(w.host.ResolverDir()), tree.Remove(w.host.Clones()), tree.Remove(filepath.Dir(w.host.Programs("x"))), w.killCgroup("")); err != nil {
		return gone, err
	}
	w.mu.Lock()
	w.sys = nil
	w.mu.Unlock()
	return gone, w.ledger.Forget(
		ledger.Thing{Kind: ledger.Cgroup, Name: "resolver"},
		ledger.Thing{Kind: ledger.Table, Name: nft.Name},
		ledger.Thing{Kind: ledger.RunDir, Name: w.host.ResolverDir()},
	)
}

// watchResolverFiles follows changes of the host's own DNS configuration:
// resolvconf, NetworkManager and VPNs replace resolv.conf at any time.
func (w *Warden) watchResolverFiles() {
	w.owners.Go(func() {
		for {
			pause(w.ctx, 5*time.Second)
			if w.ctx.Err() != nil {
				return
			}
			w.followResolverFiles()
			w.followOperators()
		}
	})
}

func (w *Warden) followResolverFiles() {
	w.change.Lock()
	defer w.change.Unlock()
	w.mu.Lock()
	s := w.sys
	w.mu.Unlock()
	if s == nil {
		return
	}
	_ = w.keepReserve() // again, once there is room
	changed, err := w.copyResolverFiles()
	if err == nil && changed {
		s.servers = nameServers(w.resolverEtc())
		err = w.applyTable(w.ctx)
	}
	if err == nil {
		err = w.ensureResolver(w.ctx)
	}
	if err != nil && w.ctx.Err() == nil {
		w.log.Error("keeping the resolver running", "error", err)
	}
}

// copyResolverFiles copies what the resolver reads. It gets copies because the
// originals are replaced by rename or are links to foreign folders.
func (w *Warden) copyResolverFiles() (changed bool, err error) {
	for _, name := range []string{"resolv.conf", "hosts", "nsswitch.conf"} {
		raw, err := os.ReadFile(filepath.Join("/etc", name)) // #nosec G304 -- three constant names
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return changed, fmt.Errorf("warden: %w", err)
		}
		to := filepath.Join(w.resolverEtc(), name)
		if have, err := os.ReadFile(to); err == nil && string(have) == string(raw) { // #nosec G304 -- our own copy
			continue
		}
		if err := tree.WriteFile(to, raw, 0o644, 0); err != nil {
			return changed, err
		}
		changed = true
	}
	return changed, nil
}

// nameServers reads the name servers of resolv.conf below etc. None means the
// resolver's default, this host (resolv.conf(5)).
func nameServers(etc string) []netip.Addr {
	raw, err := os.ReadFile(filepath.Join(etc, "resolv.conf")) // #nosec G304 -- our own copy
	if err != nil {
		return nil
	}
	return parseNameServers(string(raw))
}

func parseNameServers(conf string) []netip.Addr {
	var out []netip.Addr
	for line := range strings.Lines(conf) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(f[1]); err == nil {
			out = append(out, a.WithZone("").Unmap())
		}
	}
	if len(out) == 0 {
		out = append(out, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	}
	return out
}

// keptLog is how much of an older log a new process goes on in. What a process
// may add is bounded by its profile (RLIMIT_FSIZE), since nobody rotates a log
// under its writer.
const keptLog = 1 << 20

// openLog opens a log of root's own. Its writer cannot truncate what stands
// there by opening it again: it only has this descriptor.
func openLog(path string) (*os.File, error) {
	if st, err := os.Lstat(path); err == nil && st.Size() > keptLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("warden: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600) // #nosec G304 -- layout
	if err != nil {
		return nil, fmt.Errorf("warden: %w", err)
	}
	return f, nil
}
