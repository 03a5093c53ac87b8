// Package fs keeps an agent's files: fs_write, fs_read, fs_list, fs_delete,
// fs_mkdir and fs_stat, and the same as streams for large files.
//
// # On disk
//
// The folder given to [Open] belongs to one gateway (its lock keeps a second
// one out) and holds two folders:
//
//	files/  the agent's root: what it named, as it named it
//	tmp/    files that are being written, emptied at every start
//
// A file is written to tmp, synced, renamed into files, and its folder synced
// before anybody is told. So a file is seen whole or not at all, after a
// crash or a full quota too, and what was acknowledged is there. The temporary
// files have no name that an agent could use.
//
// The content type is in the extended attribute user.mime_type (the name that
// freedesktop.org gives it), set before the rename: it cannot part from its
// file, and needs no second file that would have to be counted, hidden and
// kept in step. Where a file system has no such attributes, the type is
// told from name and content when it is asked for.
//
// # What keeps an agent inside
//
// Every path is opened by openat2 below the root's descriptor, with
// RESOLVE_BENEATH, NO_SYMLINKS, NO_MAGICLINKS and NO_XDEV; the last name is
// then acted upon in its folder's descriptor by calls that follow nothing. What
// is not a folder or a regular file with one name is never opened, replaced
// or removed. [Parse] refuses names besides; see there why.
//
// # Quota
//
// Bytes are the sizes of files, files and folders are counted besides. Both are
// counted by a walk at the start, and from then on taken from the
// [storage.Budget] before they are used. A file that replaces another takes its
// whole size until the rename, because both lie on the disk until then, and only
// what it is larger by afterwards. Where the budget has less left, up to [MaxSpare]
// bytes of all that are being written may lie there above it, so that a full quota
// can be written anew; with more than that, temporary files could fill the disk that
// the gateway's records are on, too.
package fs
