package prove

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Place is a folder, file or socket of the host that belongs to one agent, and
// who may open it at most.
type Place struct {
	Path     string
	UID, GID uint32
	Mode     os.FileMode // permission bits; more than these is a hole
}

// modes compares owners and modes with what they are meant to be.
func modes(a Agent) Statement {
	s := Statement{ID: "modes", Agent: a.Name, Says: "each folder, file and socket that is the agent's alone on the host belongs to whom it should, and is open to nobody else"}
	n := 0
	for _, p := range a.Places {
		var st syscall.Stat_t
		err := syscall.Lstat(p.Path, &st)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		n++
		if err != nil {
			s.against("%s: %v", p.Path, err)
			continue
		}
		if st.Uid != p.UID || st.Gid != p.GID {
			s.against("%s belongs to %d:%d, not to %d:%d", p.Path, st.Uid, st.Gid, p.UID, p.GID)
		}
		if more := os.FileMode(st.Mode) & 0o7777 &^ p.Mode; more != 0 {
			s.against("%s has mode %04o: %04o is more than it should have", p.Path, st.Mode&0o7777, more)
		}
	}
	s.Read = append(s.Read, fmt.Sprintf("%d places", n))
	if n == 0 {
		s.against("none of the agent's places was found")
	}
	return s
}
