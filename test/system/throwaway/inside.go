package throwaway

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
)

// markerPath is on the host's own /run.
const markerPath = "/run/bulkhead-throwaway.json"

// kinds are the namespaces that a host has of its own.
var kinds = []string{"mnt", "net", "pid", "uts", "ipc", "cgroup"}

// initial are the inode numbers that the kernel gives its first namespaces
// (include/uapi/linux/nsfs.h and, before it, include/linux/proc_ns.h). The
// first mount and network namespaces have fixed numbers only since 6.18, so
// those are left to the marker.
var initial = map[string]uint64{"ipc": 0xEFFFFFFF, "uts": 0xEFFFFFFE, "pid": 0xEFFFFFFC, "cgroup": 0xEFFFFFFB}

// marker says which namespaces a host consists of.
//
// It lies on a tmpfs that exists only in the host's mount namespace, so no
// process of the machine can find it by accident, and it names the numbers of
// that host's namespaces, which the kernel does not give to two at a time: a
// copied, inherited or stale marker does not match. Root could forge one on
// purpose; nothing protects root from that.
type marker struct {
	ID         string            `json:"id"`
	Namespaces map[string]uint64 `json:"namespaces"`
}

func namespaces() (map[string]uint64, error) {
	ids := map[string]uint64{}
	for _, k := range kinds {
		var st syscall.Stat_t
		if err := syscall.Stat("/proc/self/ns/"+k, &st); err != nil {
			return nil, fmt.Errorf("throwaway: namespace %s: %w", k, err)
		}
		ids[k] = st.Ino
	}
	return ids, nil
}

// writeMarker is called by the host's own start, once everything is new.
func writeMarker(id string) error {
	ids, err := namespaces()
	if err != nil {
		return err
	}
	for k, n := range initial {
		if ids[k] == n {
			return fmt.Errorf("throwaway: still in the machine's first %s namespace", k)
		}
	}
	text, err := json.Marshal(marker{ID: id, Namespaces: ids})
	if err != nil {
		return fmt.Errorf("throwaway: marker: %w", err)
	}
	f, err := os.OpenFile(markerPath, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o444) // #nosec G302 -- to be read by every id of the host
	if err != nil {
		return fmt.Errorf("throwaway: marker: %w", err)
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// Check says why this process is not inside a throwaway host, or nil when it
// is: root wrote the marker, and every namespace of this process is one that
// it names. A process that has moved on into other namespaces (a container
// inside the host) is not "inside" either.
func Check() error {
	text, err := os.ReadFile(markerPath)
	if err != nil {
		return fmt.Errorf("not inside a throwaway host: %w", err)
	}
	var st syscall.Stat_t
	if err := syscall.Lstat(markerPath, &st); err != nil || st.Uid != 0 {
		return fmt.Errorf("not inside a throwaway host: %s is not root's", markerPath)
	}
	var m marker
	if err := json.Unmarshal(text, &m); err != nil {
		return fmt.Errorf("not inside a throwaway host: %s: %w", markerPath, err)
	}
	ids, err := namespaces()
	if err != nil {
		return err
	}
	for _, k := range kinds {
		if ids[k] == initial[k] || ids[k] != m.Namespaces[k] {
			return fmt.Errorf("not inside a throwaway host: the %s namespace is %d, the host's is %d", k, ids[k], m.Namespaces[k])
		}
	}
	return nil
}

// Inside says whether this process is inside a throwaway host.
func Inside() bool { return Check() == nil }

// RequireInside ends the test unless it is inside a throwaway host. Whatever
// mounts, kills, limits or changes rules calls it first: on the machine, one
// stray mount on /tmp stops everybody's work.
func RequireInside(t *testing.T) {
	t.Helper()
	if err := Check(); err != nil {
		t.Fatalf("%v: this would change the machine: call it from throwaway.Run", err)
	}
}
