// Package cgroup bounds process trees with Linux control groups, version 1
// (one hierarchy per controller), version 2 (one hierarchy), and hosts that
// mount both.
//
// Only memory, pids and cpu are used. Every limit that is written is read
// back; a limit that the kernel did not take is an error. Nothing outside the
// one root folder that a [Tree] names is ever written.
package cgroup

import (
	"errors"
	"time"
)

// Limits bound one group.
type Limits struct {
	MemoryBytes int64 // memory and swap together
	MilliCPU    int64 // 1000 is one core
	PIDs        int64
}

// Tree is Bulkhead's own folder in every hierarchy. It is safe for
// concurrent use.
type Tree struct {
	root    string            // folder name, "bulkhead"
	dirs    map[string]string // controller -> its hierarchy's mount point; v2: "" -> mount point
	unified bool
}

// Group is one control group. It is safe for concurrent use.
type Group struct {
	tree *Tree
	path string // below the root folder
}

// RootName is the folder that holds everything of Bulkhead's.
const RootName = "bulkhead"

// Open finds the hierarchies of this process's mount namespace. name is the
// root folder: [RootName], or "bulkhead-test-…" in tests.
func Open(name string) (*Tree, error) { return nil, errors.ErrUnsupported }

// Create makes the group (and its parents), or takes the one that is there,
// sets the limits and reads them back.
func (t *Tree) Create(path string, l Limits) (*Group, error) { return nil, errors.ErrUnsupported }

// Kill ends every process of the group.
func (g *Group) Kill(patience time.Duration) error { return errors.ErrUnsupported }

// Remove removes the group, which must hold no process. It is no error when
// it does not exist.
func (g *Group) Remove() error { return errors.ErrUnsupported }
