package warden

import (
	"errors"
	"fmt"
	"os"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host/tree"
)

// killPatience bounds how long the processes of a cgroup may take to die.
const killPatience = 10 * time.Second

func (w *Warden) cgroupRoot() string { return cgroup.RootName }

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
	for _, p := range []string{w.host.WardenSocket(), w.host.Run} {
		if err := tree.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("warden: %w", err))
		}
	}
	return errors.Join(errs...)
}
