// Package outbox keeps what an agent sends while its team's adapter cannot be
// reached: on disk before it is answered, in order, at most [MaxMessages].
//
// # The file
//
// outbox.log is a sequence of records, each
//
//	"BHO1"  4 bytes of magic
//	length  4 bytes, big-endian, of the payload
//	crc     4 bytes, big-endian, CRC-32C of the payload
//	payload JSON, one [entry]
//
// An entry adds a draft (with a number, from 1 on), ends one that the adapter
// has, or ends one that it refused, with the reason. Numbers are never used
// twice within one file.
//
// # Crashes
//
//   - A draft counts once its record is written AND fdatasync has returned.
//     [Box.Add] returns after that. Concurrent Adds share one write and one
//     fdatasync.
//   - The end of a draft is written and not waited for: when it is lost, the
//     draft is sent again under its idempotency key, and the adapter answers
//     what it answered before. A refusal is waited for, since nothing would
//     bring it up again.
//   - A crash can leave an incomplete record at the end of the file. Nobody was
//     told that it counts, and opening cuts it off.
//   - A record that is damaged anywhere else is skipped: reading goes on at the
//     next magic whose record is whole. The file is kept beside as
//     outbox.damaged, and [Box.Damaged] says so, for the operator.
//   - When half of a large file is over it is written anew beside itself,
//     synced, and renamed over the old one; the folder is synced after that. A
//     crash leaves the old or the new one.
//   - After a write or fdatasync that failed nothing that follows in the file
//     can be trusted, so the box takes nothing more until its file was written
//     anew (every Add tries that first).
//
// The folder is the gateway's own. A lock (flock) keeps a second gateway out.
package outbox
