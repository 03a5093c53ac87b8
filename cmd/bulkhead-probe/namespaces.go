package main

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
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

// unshareOthers asks for a namespace of each other kind, which takes a
// capability where one is. A thread does so that is thrown away.
func unshareOthers(t *trial) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked
		for _, k := range []struct {
			name string
			flag int
		}{
			{"CLONE_NEWNS", unix.CLONE_NEWNS},
			{"CLONE_NEWNET", unix.CLONE_NEWNET},
			{"CLONE_NEWPID", unix.CLONE_NEWPID},
			{"CLONE_NEWUTS", unix.CLONE_NEWUTS},
			{"CLONE_NEWIPC", unix.CLONE_NEWIPC},
			{"CLONE_NEWCGROUP", unix.CLONE_NEWCGROUP},
		} {
			if t.step("unshare("+k.name+")", unix.Unshare(k.flag)) {
				t.saw("has a namespace of its own by %s", k.name)
			}
		}
	}()
	<-done
	return nil
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
