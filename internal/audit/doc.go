// Package audit keeps what gateways did where no agent reaches it: an
// append-only log, in an account of its own, in a cell without a network.
//
// # On disk
//
// Below its data folder, mode 0700, its own:
//
//	log.jsonl   one JSON line each: entries, and after each batch a checkpoint
//	key         what checkpoints are signed with (x/mod/sumdb/note), mode 0600
//	key.pub     what they are verified with
//
// An entry says when it came, whose gateway wrote it (known from the socket that
// it came in on), its number in that gateway's list, and the record. Entries are
// the leaves of a Merkle tree (RFC 6962, x/mod/sumdb/tlog): the hash of a leaf
// covers every byte of its line. A checkpoint line holds a signed note of how
// many leaves there are and the root of their tree, so that it covers every line
// before it.
//
// # Crash rules
//
// A batch and its checkpoint are one write and one fsync; only then are the
// gateways answered. What stands after the last checkpoint was not answered: it
// is cut off when the log is opened, and comes again. Anything else that does
// not fit (a line that is not one, a root or a signature that is not right, a
// log that is shorter than what root has witnessed) is corruption: audit does
// not start, since to go on would make what happened unprovable.
//
// A gateway's list has a name of its own, made with the file that it lies in
// (system.db), and numbers that grow. Each number is taken once, however often it is sent.
//
// # What it promises, and to whom
//
// A gateway, captured or not, can add to the log under its own name and change
// nothing. A captured gateway can leave out what it did after it was captured.
// Who has audit's own account can write another log, with another signature if
// need be: so the warden takes note of checkpoints every few seconds, in a file
// of root's, and `bulkhead audit verify` compares. Between an answer and the
// warden's note lie ten seconds at most.
package audit
