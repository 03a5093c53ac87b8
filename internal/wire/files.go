package wire

import (
	"fmt"
	"os"
)

// descriptor gives f's number without switching it to blocking mode, which
// os.File.Fd would do.
func descriptor(f *os.File) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("wire: pass %s: %w", f.Name(), err)
	}
	fd := -1
	if err := raw.Control(func(n uintptr) { fd = int(n) }); err != nil { // #nosec G115 -- a descriptor
		return -1, fmt.Errorf("wire: pass %s: %w", f.Name(), err)
	}
	return fd, nil
}
