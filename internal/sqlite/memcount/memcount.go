// Package memcount turns on SQLite's count of memory, on which its limits rest,
// when the program starts: the driver is built without it, and it can be turned
// on before the first use of SQLite in a process only.
//
// sqlite-vec is such a use, in an init of its package (modernc.org/sqlite/vec).
// Packages are initialised in the order of their paths as far as what they
// import is (Go specification, "Program initialization"): this one, which
// imports no more than that one does, comes first by its name.
package memcount

import (
	"fmt"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// Err says why SQLite does not count its memory in this process; nil: it does.
var Err = func() error {
	tls := libc.NewTLS()
	defer tls.Close()
	on := libc.NewVaList(int32(1))
	defer libc.Xfree(tls, on)
	if rc := sqlite3.Xsqlite3_config(tls, sqlite3.SQLITE_CONFIG_MEMSTATUS, on); rc != sqlite3.SQLITE_OK {
		return fmt.Errorf("SQLite's count of memory cannot be turned on (code %d): it was used before this program's main", rc)
	}
	return nil
}()
