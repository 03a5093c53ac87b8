package imagecmd

import (
	"fmt"
	"io"
	"os"
	"time"

	"bulkhead/internal/cgroup"
)

// What a build may take. Compilers and package managers with hundreds of
// packages stay below both.
const (
	buildMemory = 8 << 30
	buildPIDs   = 4096
)

// buildGroup gives what makes a build's control group. A host that lets none be
// made (an unprivileged container) can still build, and is told.
func buildGroup(log io.Writer) func() (*cgroup.Group, func(), error) {
	return func() (*cgroup.Group, func(), error) {
		g, tree, err := makeGroup()
		if err != nil {
			_, _ = fmt.Fprintf(log, "image: no limit of memory and processes holds for the build: %v\n", err)
			return nil, func() {}, nil
		}
		_, _ = fmt.Fprintf(log, "image: the build may take %d GB of memory and %d processes\n", buildMemory>>30, buildPIDs)
		return g, func() {
			err := g.Kill(10 * time.Second)
			if err == nil {
				err = g.Remove()
			}
			tree.RemoveRoot() // when no team and no other build has it
			if err != nil {
				_, _ = fmt.Fprintf(log, "image: the build's control group stays: %v\n", err)
			}
		}, nil
	}
}

func makeGroup() (*cgroup.Group, *cgroup.Tree, error) {
	place, err := cgroup.Place()
	if err != nil {
		return nil, nil, err
	}
	tree, err := cgroup.Open(place)
	if err != nil {
		return nil, nil, err
	}
	g, err := tree.Create(fmt.Sprintf("image-build-%d", os.Getpid()), cgroup.Limits{MemoryBytes: buildMemory, PIDs: buildPIDs})
	return g, tree, err
}
