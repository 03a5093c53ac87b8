package warden

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// reserveSize is what state, ledger and account files take while everything is
// removed, many times over.
const reserveSize = 4 << 20

// keepReserve holds some room on the disk for the warden itself: an agent that
// fills its workspace fills the disk that state and ledger lie on, and must be
// stopped and removed all the same. Not every file system keeps room for root.
func (w *Warden) keepReserve() error {
	f, err := os.OpenFile(w.host.Reserve(), os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW, 0o600) // #nosec G304 -- layout
	if err != nil {
		return fmt.Errorf("warden: reserve: %w", err)
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("warden: reserve: %w", err)
	}
	if st.Size() == reserveSize {
		return nil
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, reserveSize) // #nosec G115 -- a descriptor
	if errors.Is(err, unix.EOPNOTSUPP) {
		_, err = f.WriteAt(make([]byte, reserveSize), 0)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("warden: reserve: %w", err), f.Truncate(0))
	}
	return nil
}

func (w *Warden) releaseReserve() error {
	if err := unix.Truncate(w.host.Reserve(), 0); err != nil {
		return fmt.Errorf("warden: reserve: %w", err)
	}
	return nil
}

// errFull is a disk that would be used up.
var errFull = fmt.Errorf("the disk is full: %w", unix.ENOSPC)

// full says whether an error comes of a disk or quota that is used up.
func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// saveBeforeEnd saves the team's state before agents of it are ended. When the
// disk is full they are ended first, or they would take what the reserve gives.
func (w *Warden) saveBeforeEnd(ctx context.Context, t *teamRun, agents []*agentRun) error {
	err := w.saveTeam(t, nil)
	if !full(err) {
		return err
	}
	w.log.Warn("the disk is full: ending the agents before that is written down", "team", t.name, "error", err)
	if err := errors.Join(haltAll(ctx, agents), w.releaseReserve()); err != nil {
		return err
	}
	return w.saveTeam(t, nil)
}
