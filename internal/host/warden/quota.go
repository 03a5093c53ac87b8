package warden

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/host/disk"
	"bulkhead/internal/host/ledger"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// gatewayDisk is what an agent's gateway may write, apart from what its runtime
// may: a runtime that fills its own disk does not stop its gateway's records.
var gatewayDisk = disk.Size{Bytes: 64 << 20, Inodes: 4096}

// bytesPerToolFile is what one inode of an agent's tools stands for.
const bytesPerToolFile = 8 << 10

// guestDisk is the same for a guest's: it has no outbox, and keeps fewer records
// ([guestSpool]). There may be thousands of them.
var guestDisk = disk.Size{Bytes: 20 << 20, Inodes: 1280}

// gatewayDiskFor is what a gateway may write with room for what the agent's
// tools keep.
func gatewayDiskFor(a *team.Agent) disk.Size {
	s, t := gatewayDisk, a.Tools
	if a.Guest {
		s = guestDisk
	}
	if t != nil {
		s.Bytes += t.GatewayDiskBytes()
		s.Inodes += t.WithDefaults().StorageBytes / bytesPerToolFile
	}
	return s
}

// agentDisk is one of the file systems of an agent.
type agentDisk struct {
	disk.Disk
	name string // of the container that writes to it
	size disk.Size
}

func (w *Warden) disksOf(p layout.Agent) []agentDisk {
	held := w.accounts.Held
	return []agentDisk{
		{Disk: disk.Disk{Image: p.RuntimeImage(), Point: p.RuntimeDisk(), Held: held}, name: runtimeName},
		{Disk: disk.Disk{Image: p.GatewayImage(), Point: p.GatewayDisk(), Held: held}, name: gatewayName, size: gatewayDisk},
	}
}

// wantedDisks are the disks with the sizes that the manifest asks for.
func (w *Warden) wantedDisks(p layout.Agent, want *team.Agent) []agentDisk {
	out := w.disksOf(p)
	l := want.Limits.WithDefaults()
	out[0].size = disk.Size{Bytes: l.DiskBytes, Inodes: l.Inodes}
	out[1].size = gatewayDiskFor(want)
	if want.Guest {
		return out[1:]
	}
	return out
}

// diskLocks let one at a time act on an agent's disks: its owner, who starts it
// again, and an up, which may come at the same moment. The zero value is ready.
type diskLocks struct{ byAccount sync.Map }

// hold waits for an agent's disks; what it returns lets go of them.
func (l *diskLocks) hold(p layout.Agent) func() {
	m, _ := l.byAccount.LoadOrStore(p.Account, new(sync.Mutex))
	mu := m.(*sync.Mutex)
	mu.Lock()
	return mu.Unlock
}

// ensureDisks mounts the agent's disks, and makes those that are not there. A
// size that differs is [agentRun.refitDisks]'s. While something of the agent
// runs that was started without disks, it stays without: what it writes would
// be lost below the mount. The layer then is not in force until a restart.
func (a *agentRun) ensureDisks(ctx context.Context) error {
	defer a.w.disks.hold(a.Place)()
	for _, d := range a.w.wantedDisks(a.Place, a.Want) {
		on, err := d.Mounted()
		if err != nil {
			return err
		}
		if on {
			continue
		}
		if busy, err := a.busy(); err != nil || busy {
			return errors.Join(err, tree.MakeAll(tree.Entry{Path: d.Point, Mode: 0o711}))
		}
		_, made, err := d.Made()
		if err != nil {
			return err
		}
		if !made && slices.Contains(a.accepted, string(deny.LayerQuota)) {
			if err := tree.MakeAll(tree.Entry{Path: d.Point, Mode: 0o711}); err != nil {
				return err
			}
			continue
		}
		if err := a.w.ledger.Announce(ledger.Thing{Kind: ledger.Mount, Name: d.Point, Team: a.Place.Team, Agent: a.Place.Name}); err != nil {
			return err
		}
		if err := d.Ensure(ctx, d.size); err != nil {
			return fmt.Errorf("layer %s: %w", deny.LayerQuota, err)
		}
	}
	return nil
}

// busy says whether a process of the agent runs. Its cgroup is root's.
func (a *agentRun) busy() (bool, error) {
	g, err := a.w.cgroups.Group(filepath.Join(a.Place.Team, a.Place.Name))
	if err != nil {
		return false, err
	}
	return g.Busy()
}

// refitDisks gives disks the size that the manifest asks for. Nothing of the
// agent runs.
func (a *agentRun) refitDisks(ctx context.Context) error {
	defer a.w.disks.hold(a.Place)()
	for _, d := range a.w.wantedDisks(a.Place, a.Want) {
		_, made, err := d.Made()
		if err != nil {
			return err
		}
		if !made {
			continue
		}
		if err := d.Resize(ctx, d.size); err != nil {
			return fmt.Errorf("layer %s: limits of the %s's disk: %w", deny.LayerQuota, d.name, err)
		}
	}
	return nil
}

// refit makes the disks what the manifest asks for, with their leaves: what ran
// before may have had none. Nothing of the agent runs.
func (a *agentRun) refit(ctx context.Context) error {
	if err := a.ensureDisks(ctx); err != nil {
		return err
	}
	if err := a.refitDisks(ctx); err != nil {
		return err
	}
	return a.leaves()
}

// disksAtOnce is how many disks are made side by side: most of the time goes by
// waiting for the host's disk.
const disksAtOnce = 8

// mountDisks mounts the disks of all agents side by side, before they are
// admitted one by one. What fails here fails there again, and says why.
func (w *Warden) mountDisks(ctx context.Context, t *teamRun) {
	slots := make(chan struct{}, disksAtOnce)
	var wg sync.WaitGroup
	for _, want := range t.manifest.Agents {
		a := &agentRun{w: w, accepted: t.state.Accepted, Agent: host.Agent{Place: w.host.Agent(t.name, want.Name), Want: want}}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := errors.Join(a.stateFolder(), ctx.Err()); err == nil {
				_ = a.ensureDisks(ctx)
			}
		})
	}
	wg.Wait()
}

// unmountDisks takes an agent's disks off. Nothing of it runs any more.
func (w *Warden) unmountDisks(p layout.Agent) error {
	defer w.disks.hold(p)()
	for _, d := range w.disksOf(p) {
		if err := d.Sweep(); err != nil {
			return err
		}
		if err := d.Unmount(); err != nil {
			return err
		}
		if err := w.ledger.Forget(ledger.Thing{Kind: ledger.Mount, Name: d.Point}); err != nil {
			return err
		}
	}
	return nil
}

// checkDisks says what of the team's disks cannot be had on this host: room that
// is not there, or less than what lies on them already.
func (w *Warden) checkDisks(m *team.Manifest, lost []string) (faults []string) {
	if slices.Contains(lost, string(deny.LayerQuota)) {
		return nil
	}
	var need, most int64
	for _, a := range m.Agents {
		for _, d := range w.wantedDisks(w.host.Agent(m.Team, a.Name), a) {
			have, made, err := d.Made()
			switch {
			case err != nil:
				faults = append(faults, fmt.Sprintf("agents.%s: %v", a.Name, err))
				continue
			case !made:
				need += d.size.Bytes
				continue
			case have == d.size:
				continue
			}
			// The old disk goes when its copy is done.
			need += d.size.Bytes - have.Bytes
			most = max(most, have.Bytes)
			if u, on, err := d.Usage(); err == nil && on && (u.UsedBytes > d.size.Bytes || u.UsedInodes > d.size.Inodes) {
				faults = append(faults, fmt.Sprintf("agents.%s.limits: %d MiB and %d files lie on its disk, which do not fit on one of %d MiB and %d inodes: remove some of them first (bulkhead exec %s), or keep the limits",
					a.Name, u.UsedBytes>>20, u.UsedInodes, d.size.Bytes>>20, d.size.Inodes, a.Name))
			}
		}
	}
	free, err := freeOn(w.host.State)
	if err != nil {
		return append(faults, err.Error())
	}
	if need += most; need > free-minRoom {
		faults = append(faults, fmt.Sprintf("the file system of %s has %d MiB free, and the disks of this team take %d MiB more, %d MiB of which must stay free: write a smaller limits.disk (%d MiB for each agent now, unless it says otherwise), or free some space",
			w.host.State, free>>20, need>>20, minRoom>>20, (team.Limits{}).WithDefaults().DiskBytes>>20))
	}
	return faults
}

func freeOn(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return int64(st.Bavail) * st.Bsize, nil // #nosec G115 -- what a disk holds fits
}

// quotaLayer is the part of layer 2 that keeps an agent from taking the disk of
// the others: file systems of fixed bytes and inodes.
type quotaLayer struct{ w *Warden }

// Name implements host.Layer.
func (quotaLayer) Name() deny.Layer { return deny.LayerQuota }

// Plan implements host.Layer.
func (l quotaLayer) Plan(_ context.Context, a *host.Agent) ([]string, error) {
	var out []string
	for _, d := range l.w.wantedDisks(a.Place, a.Want) {
		have, made, err := d.Made()
		if err != nil {
			return nil, err
		}
		switch {
		case !made:
			out = append(out, fmt.Sprintf("reserve %d MiB for the %s's disk", d.size.Bytes>>20, d.name))
		case have != d.size:
			out = append(out, fmt.Sprintf("copy the %s's disk to one of %d MiB and %d inodes", d.name, d.size.Bytes>>20, d.size.Inodes))
		}
	}
	return out, nil
}

// Apply implements host.Layer.
func (l quotaLayer) Apply(ctx context.Context, a *host.Agent) error {
	r, err := l.w.runOf(a)
	if err != nil {
		return err
	}
	return r.ensureDisks(ctx)
}

// Inspect implements host.Layer: it asks the kernel what is mounted and how much
// that holds.
func (l quotaLayer) Inspect(_ context.Context, a *host.Agent) (host.Inspection, error) {
	var seen []string
	r, err := l.w.runOf(a)
	accepted := err == nil && slices.Contains(r.accepted, string(deny.LayerQuota))
	for _, d := range l.w.wantedDisks(a.Place, a.Want) {
		u, on, err := d.Usage()
		if err != nil {
			return host.Inspection{}, err
		}
		if !on && accepted {
			// Nothing of this layer is left to hold; status names it as accepted.
			seen = append(seen, d.Point+" is a folder of the host's own, without a limit")
			continue
		}
		if !on {
			return host.Inspection{Witness: fmt.Sprintf("nothing is mounted on %s: what the %s writes has no limit but the host's disk; bulkhead restart %s", d.Point, d.name, a.Place.Name)}, nil
		}
		have, _, err := d.Made()
		if err != nil {
			return host.Inspection{}, err
		}
		if have != d.size {
			return host.Inspection{Witness: fmt.Sprintf("%s has %d bytes and %d inodes, the manifest says %d and %d; bulkhead restart %s", d.Image, have.Bytes, have.Inodes, d.size.Bytes, d.size.Inodes, a.Place.Name)}, nil
		}
		seen = append(seen, fmt.Sprintf("%s %d of %d MiB, %d of %d inodes", d.Point, u.UsedBytes>>20, u.Bytes>>20, u.UsedInodes, u.Inodes))
	}
	return host.Inspection{InForce: true, Witness: "statfs: " + strings.Join(seen, "; ")}, nil
}

// Remove implements host.Layer.
func (l quotaLayer) Remove(_ context.Context, a *host.Agent) error { return l.w.unmountDisks(a.Place) }

// Without implements host.Layer.
func (quotaLayer) Without(s engine.Spec) engine.Spec { return s.Without(deny.LayerQuota) }

// diskStatus is what the kernel says of the agent's disks now.
func (a *agentRun) diskStatus() []wire.DiskStatus {
	var out []wire.DiskStatus
	for _, d := range a.w.wantedDisks(a.Place, a.Want) {
		if u, on, err := d.Usage(); err == nil && on {
			out = append(out, wire.DiskStatus{Name: d.name, Bytes: u.Bytes, UsedBytes: u.UsedBytes, Inodes: u.Inodes, UsedInodes: u.UsedInodes})
		}
	}
	return out
}
