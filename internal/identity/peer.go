// Package identity says who is at the other end of a socket. Identity never
// comes from what a peer sends, only from what the kernel says of it.
package identity

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Overflow is the id that the kernel shows for every peer that the reader's
// user namespace does not map. It stands for anybody and is always refused.
const Overflow = 65534

// Peer is what the kernel says of the process that connected.
type Peer struct {
	PID    int32
	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary groups at the moment of connecting
}

// PeerOf reads SO_PEERCRED and SO_PEERGROUPS.
func PeerOf(c *net.UnixConn) (Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("identity: %w", err)
	}
	var p Peer
	var inner error
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) // #nosec G115 -- a descriptor
		if err != nil {
			inner = fmt.Errorf("identity: SO_PEERCRED: %w", err)
			return
		}
		p.PID, p.UID, p.GID = cred.Pid, cred.Uid, cred.Gid
		p.Groups, inner = peerGroups(int(fd)) // #nosec G115 -- a descriptor
	})
	if err == nil {
		err = inner
	}
	return p, err
}

// In says whether the peer was in group gid.
func (p Peer) In(gid uint32) bool {
	if p.GID == gid {
		return true
	}
	for _, g := range p.Groups {
		if g == gid {
			return true
		}
	}
	return false
}
