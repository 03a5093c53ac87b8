package warden

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/podman"
)

// relayed says whether nothing can be passed out of a container, so that what
// an operator gets is made here and its other end passed in.
func (a *agentRun) relayed(container string) bool {
	return container == runtimeName && podman.Relayed(&engine.Spec{Engine: engine.Kind(a.Want.Engine), OCIRuntime: a.Want.OCI})
}

// stdioFor makes what a relayed shim needs for an exec, and nothing for others.
// The container's user owns its ends, as it would own those that it made.
func (a *agentRun) stdioFor(container string, terminal bool) (inside, outside []*os.File, err error) {
	if terminal {
		return a.socketFor(container)
	}
	if !a.relayed(container) {
		return nil, nil, nil
	}
	if inside, outside, err = stdioPipes(); err != nil {
		return nil, nil, err
	}
	id := int(a.IDs.Runtime())
	for _, f := range inside {
		if err := f.Chown(id, id); err != nil {
			closeFiles(append(inside, outside...))
			return nil, nil, fmt.Errorf("warden: pipe: %w", err)
		}
	}
	return inside, outside, nil
}

// socketFor makes a pair of sockets for a relayed shim, and nothing for others.
func (a *agentRun) socketFor(container string) (inside, outside []*os.File, err error) {
	if !a.relayed(container) {
		return nil, nil, nil
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("warden: socket: %w", err)
	}
	return []*os.File{os.NewFile(uintptr(fds[0]), "relay")}, []*os.File{os.NewFile(uintptr(fds[1]), "relay")}, nil // #nosec G115 -- descriptors
}
