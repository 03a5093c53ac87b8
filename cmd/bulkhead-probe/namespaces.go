package main

import (
	"errors"
	"fmt"
	"syscall"
)

// unshareUser asks for a user namespace, in which it would have every
// capability. A child does so between fork and exec: unshare(CLONE_NEWUSER) is
// refused to programs with threads, which every Go program is.
func unshareUser(t *trial) error {
	return newNamespace(t, "unshare(CLONE_NEWUSER)", &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWUSER})
}

// cloneUser asks for one by clone.
func cloneUser(t *trial) error {
	return newNamespace(t, "clone(CLONE_NEWUSER)", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER})
}

func newNamespace(t *trial, what string, attr *syscall.SysProcAttr) error {
	_, plain, err := spawn(nil, "")
	if err != nil {
		return fmt.Errorf("cannot start a plain child either: %w", err)
	}
	if err := plain(); err != nil {
		return err
	}
	_, end, err := spawn(attr, "")
	// Once in its own user namespace the child may be unable to exec
	// /proc/self/exe; what counts is an errno of the namespace call, and that
	// is the only one which start can return here for EPERM, ENOSYS, ENOSPC.
	if n, ok := errnoOf(err); ok && n == syscall.EACCES {
		err = nil
	}
	if !t.step(what, err) {
		return nil
	}
	t.saw("has a user namespace of its own")
	if end == nil {
		return nil
	}
	if err := end(); err != nil {
		return errors.Join(err)
	}
	return nil
}
