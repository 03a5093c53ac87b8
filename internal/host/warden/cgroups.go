package warden

import (
	"errors"
	"fmt"
	"os"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/layout"
)

// killPatience bounds how long the processes of a cgroup may take to die.
const killPatience = 10 * time.Second

// cgroupPlace is what layout.Host.CgroupPlace holds.
type cgroupPlace struct {
	Root string `json:"root"` // for cgroup.Open
}

// openCgroups opens our root cgroup. Where a former warden made it counts more
// than where this one would: agents that run are in there, and the next warden
// may be started by systemd, by up in a terminal, or by hand.
func openCgroups(h layout.Host) (*cgroup.Tree, string, error) {
	var former cgroupPlace
	if ok, err := readJSON(h.CgroupPlace(), &former); err != nil {
		return nil, "", fmt.Errorf("%w; remove it when no agent runs", err)
	} else if ok {
		t, err := cgroup.Open(former.Root)
		if err != nil {
			return nil, "", err
		}
		root, err := t.Group("")
		if err != nil {
			return nil, "", err
		}
		if root.Exists() {
			return t, former.Root, nil
		}
	}
	place, err := cgroup.Place()
	if err != nil {
		return nil, "", err
	}
	t, err := cgroup.Open(place)
	if err != nil {
		return nil, "", err
	}
	return t, place, writeJSON(h.CgroupPlace(), cgroupPlace{Root: place})
}

func (w *Warden) cgroupRoot() string { return w.groupRoot }

// killCgroup ends every process at and below path and removes the group. It is
// no error when there is none.
func (w *Warden) killCgroup(path string) error {
	g, err := w.cgroups.Group(path)
	if err != nil {
		return err
	}
	if err := g.Kill(killPatience); err != nil {
		return err
	}
	return g.Remove()
}

// memoryOf reads how much memory a container uses; 0 when it cannot be read.
func (w *Warden) memoryOf(path string) int64 {
	g, err := w.cgroups.Group(path)
	if err != nil {
		return 0
	}
	n, err := g.Memory()
	if err != nil {
		return 0
	}
	return n
}

// sweepRun removes what only a running warden needs.
func (w *Warden) sweepRun() error {
	var errs []error
	for _, p := range []string{w.host.WardenSocket(), w.host.Run, w.host.Reserve()} {
		if err := tree.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("warden: %w", err))
		}
	}
	return errors.Join(errs...)
}
