package db

import (
	"fmt"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"

	"bulkhead/internal/sqlite/memcount"
)

// heap is the memory that SQLite may have in this process, over all
// connections, the gateway's own included.
//
// It rests on SQLite's count of memory ([memcount]): whoever links this package
// has it, at the price of a mutex for each allocation. [Open] fails where it is
// not in force.
const (
	// heapStatement is above which a statement is stopped, by itself. What it
	// sorts and remembers is kept in memory, because what is in temporary files
	// would not be counted by any quota.
	heapStatement = 64 << 20
	// heapHard is above which SQLite gets no memory, should one opcode take it
	// all at once. It leaves the gateway's own store room above heapStatement.
	heapHard = 128 << 20
)

// limitHeap has SQLite refuse memory above heapHard, and proves that it counts.
// A connection is open when it is called.
func limitHeap(tls *libc.TLS) error {
	if memcount.Err != nil {
		return memcount.Err
	}
	sqlite3.Xsqlite3_hard_heap_limit64(tls, heapHard)
	if sqlite3.Xsqlite3_memory_used(tls) <= 0 {
		return fmt.Errorf("SQLite does not count its memory, so statements cannot be limited")
	}
	return nil
}
