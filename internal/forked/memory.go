package forked

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// present is the bit of /proc/PID/pagemap for a page in memory
// (Documentation/admin-guide/mm/pagemap.rst).
const present = 1 << 63

// OwnMemory makes the memory of this process writable again at once. After a
// fork the parent takes a fault at its first write to each page, most of them
// while somebody waits for it. A kernel before 5.14 does not know how
// (MADV_POPULATE_WRITE); there the faults are taken one by one.
func OwnMemory() error {
	all, err := anonymous()
	if err != nil {
		return err
	}
	pages, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return fmt.Errorf("forked: this process's memory: %w", err)
	}
	defer func() { _ = pages.Close() }()
	page := uintptr(os.Getpagesize()) // #nosec G115 -- a size
	for _, s := range all {
		raw := make([]byte, (s.to-s.from)/page*8)
		n, err := pages.ReadAt(raw, int64(s.from/page*8)) // #nosec G115 -- an offset
		if n < len(raw) {
			return fmt.Errorf("forked: /proc/self/pagemap: %w", err)
		}
		for _, r := range residents(raw, s.from, page) {
			switch err := populate(r); {
			case errors.Is(err, unix.EINVAL):
				return nil // an old kernel
			case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EAGAIN):
				// Unmapped meanwhile, or there is no memory: the next write sees to it.
			case err != nil:
				return fmt.Errorf("forked: populate memory: %w", err)
			}
		}
	}
	return nil
}

// residents gives the ranges of pages in memory. raw holds 8 bytes for each
// page from the address from on.
func residents(raw []byte, from, page uintptr) []span {
	var out []span
	for at := from; len(raw) >= 8; raw, at = raw[8:], at+page {
		if binary.NativeEndian.Uint64(raw)&present == 0 {
			continue
		}
		if n := len(out); n > 0 && out[n-1].to == at {
			out[n-1].to = at + page
		} else {
			out = append(out, span{at, at + page})
		}
	}
	return out
}

func populate(s span) error {
	if _, _, e := unix.Syscall(unix.SYS_MADVISE, s.from, s.to-s.from, unix.MADV_POPULATE_WRITE); e != 0 {
		return e
	}
	return nil
}
