// Package build says which build of Bulkhead a program is. The Makefile fills
// it in; a program from a plain `go build` calls itself "dev".
package build

// The linker writes here (-X), which works with variables only. Nothing else
// may.
var (
	// ID is the digest of the source that the programs were built from, 16 hex
	// digits. Programs of one ID belong together; agents that run keep theirs.
	ID = "dev"
	// Version is the git description, for people.
	Version = "dev"
)
