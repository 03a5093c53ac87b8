package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Inode numbers that the kernel gives to its initial namespaces, whatever the
// machine: enum in include/linux/proc_ns.h (user and PID since Linux 3.8;
// mount and network since 6.18, before that they are not known in advance).
const (
	initialUser  = 0xEFFFFFFD
	initialPID   = 0xEFFFFFFC
	initialNet   = 0xEFFFFFF9
	initialMount = 0xEFFFFFF8
)

// where is what decides whether a harmful attempt may be made.
type where struct {
	user, pid, mount, net uint64 // inode numbers of this process's namespaces
	privileged            bool   // any id is 0, or any capability is to be had
}

// here reads it from the kernel.
func here() (where, error) {
	var w where
	for name, into := range map[string]*uint64{"user": &w.user, "pid": &w.pid, "mnt": &w.mount, "net": &w.net} {
		link, err := os.Readlink("/proc/self/ns/" + name)
		if err != nil {
			return where{}, err
		}
		n, found := strings.CutPrefix(strings.TrimSuffix(link, "]"), name+":[")
		if !found {
			return where{}, fmt.Errorf("/proc/self/ns/%s reads %q", name, link)
		}
		if *into, err = strconv.ParseUint(n, 10, 64); err != nil {
			return where{}, err
		}
	}
	r, e, s := unix.Getresuid()
	w.privileged = r == 0 || e == 0 || s == 0
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return where{}, fmt.Errorf("capget: %w", err)
	}
	for _, d := range data {
		w.privileged = w.privileged || d.Effective|d.Permitted|d.Inheritable != 0
	}
	return w, nil
}

// contained says no where a harmful attempt that went through could harm the
// machine. It is the second of two guards: the attempts themselves undo what
// they do. Three kinds of place pass:
//
//   - a user namespace other than the initial one: the kernel gives its
//     processes no power over mounts and networks that belong to the initial
//     one;
//   - an id other than 0 without any capability: there too the kernel refuses,
//     and only a hole in it would do harm;
//   - a process with power in the initial user namespace, only if it is in
//     another PID namespace and the request names the mount and network
//     namespaces to spare, and it is in none of them. Somebody who starts the
//     probe by hand as root on a machine is never in such a place.
//
// If the kernel cannot be asked, the answer is no.
func contained(spare []uint64) error {
	w, err := here()
	if err != nil {
		return fmt.Errorf("not contained: cannot tell which namespaces these are: %w", err)
	}
	return w.contained(spare)
}

func (w where) contained(spare []uint64) error {
	const mend = "; harmful attempts are made in containers and throwaway hosts only"
	switch {
	case w.user == 0 || w.pid == 0 || w.mount == 0 || w.net == 0:
		return errors.New("not contained: unknown namespaces" + mend)
	case w.user != initialUser, !w.privileged:
		return nil
	case w.pid == initialPID:
		return errors.New("not contained: privileged in the initial PID namespace" + mend)
	case w.mount == initialMount || w.net == initialNet:
		return errors.New("not contained: privileged in the initial mount or network namespace" + mend)
	case len(spare) < 2:
		return errors.New("not contained: privileged, and the request does not say which namespaces to spare" + mend)
	case slices.Contains(spare, w.mount) || slices.Contains(spare, w.net):
		return errors.New("not contained: privileged in a namespace that is to be spared" + mend)
	}
	return nil
}
