// Package image builds and keeps the root file systems that agents run from.
//
// An image is one folder of the store (layout.Host.Images):
//
//	NAME/image.json   what it is: digest, source, time, counts
//	NAME/rootfs/      the tree, owned by root, that containers mount read-only
//
// # How one comes to be
//
// A recipe ([Recipe]) lists Debian packages, npm packages and files. Fetching
// and unpacking ([Fetch]) handles bytes of strangers, so it runs in a process
// of its own as an id that owns nothing ([BuilderID]), in a temporary folder,
// with a scrubbed environment, no new privileges and a PID namespace that
// takes everything it started along. Its network namespace has loopback alone:
// a proxy under another such id (package wayout) leads to what [Builder.Egress]
// lists. No maintainer script and, unless asked for, no install script is run.
// It confines itself ([Confine]) and answers with one tar stream. The steps of
// Containerfiles (package containerfile) run in a user namespace of such ids
// ([Builder.Steps]). Images of registries (package registry) come
// the same way, as a stream of layers.
//
// The importer ([Store.Import]) is the only part that runs as root. It takes
// any tar, also a hostile one:
//
//   - every path is opened below the new root (openat2-like, os.Root): "..",
//     absolute paths and links that lead outside end the import
//   - devices, FIFOs, sockets, sparse files and whiteouts end it; between the
//     layers of a pulled image ([Store.ImportLayers]) whiteouts are carried out
//   - owner becomes root; setuid, setgid, sticky and the write bits of group
//     and others go; extended attributes, and so file capabilities, go
//   - links are kept as they are and never followed out of the tree
//   - mount points that containers need are made, and replaced where the image
//     has a link in their place
//   - entries, bytes and path lengths are bounded
//
// It writes beside the store's folder and renames: a reader sees the old image
// or the new one. A replaced image stays on disk until no process has it
// mounted.
//
// # The digest
//
// SHA-256 over the tree in the order of its paths, one line each: type, mode,
// path, and the SHA-256 of the content or the link's target. Times and owners
// are not part of it.
//
// # What this does not keep
//
// Two builds of one recipe may differ: Debian's archive moves. The digest
// tells; a tar that was kept gives the same image again.
package image
