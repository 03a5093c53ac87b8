// Package store keeps a team's messages: it implements adapter.Service for
// agents and adapter.Operator for operators over one SQLite database.
//
// # Way in
//
// [Open] gives an [Adapter], which is an adapter.Service for agents and an adapter.Operator
// for operators. Each call becomes an op in the intake, where agents are served
// in turns. One at a time, a goroutine of its own or who calls [Adapter.Commit],
// takes what waits, does it in memory (core, queue), writes it as one
// transaction (txn) and answers all of them when that is on disk: many callers,
// one fsync. Each draft, lease and
// acknowledgement is decided by itself; one that is refused fails no other.
// Pages, dead letters and backups are read on connections of their own.
//
// # Format
//
// One SQLite database in WAL mode with synchronous=FULL, application_id
// "BkMs", user_version the number of the migration (schema.go has the tables
// with their units). message holds what was taken; its id is the order of
// acceptance in the whole team, channel and seq the place in the channel. A
// send is cheap because it dirties few pages: the indexes of message are cut
// into pieces by id, so that only their last piece is written. place says in
// which piece a sequence is; in which one a key may be is said by Bloom
// filters in memory, read at the start (the older ones while messages flow).
// channel.last and time may be behind; the newest message of the channel, as
// long as it is kept, says more.
//
// delivery has one row for each recipient of a message, from the same
// transaction on; state says whether it is pending (leased or not),
// acknowledged or dead. A dead one has a row in dead as well, which stays,
// marked, when an operator replays or drops it. request has what the orchestrator
// asked of channels, and membership what of it was approved and is in force: it
// lies over the manifest's policy, which is not kept here, while that gives the
// channel the members that it had then. late has what was refused after an outbox had
// accepted it, until its sender is told. A row message of sqlite_sequence, made by
// [Repair], is an id below which none is given. Beside the database lies
// PATH.lock, whose flock keeps a second adapter out, and SQLite's log PATH-wal,
// which is made long with zeros before SQLite opens it (log.go).
//
// # Crash rules
//
//   - What was answered is on disk: the log was synced (fdatasync) before. What was not
//     answered is there as a whole or not at all; the same idempotency key
//     finds out.
//   - The database is the truth and memory a copy. When a transaction fails,
//     everybody in it is refused with messages.unavailable and memory is read
//     anew. A full disk is nothing else. After any other failure of the disk
//     the connection is opened anew and the log is written into the database
//     first, because the kernel may have dropped pages that it failed to sync.
//   - A lease and the number of tries are on disk, too, so a delivery that is
//     worked on survives a restart of the adapter, and one that kills it is
//     not tried for ever. Deadlines are kept with how far they were ahead:
//     after a jump of the clock nothing waits longer than it should have.
//   - A dead letter and the mark that its sender does not know yet are one
//     transaction; the notice and the end of the mark are another. A crash
//     between them sends the notice at the next start. The same holds for drafts that
//     were refused late (late); how many were omitted is in memory alone.
//   - A decision about a membership, what it changes and the notices of it are one
//     transaction; what follows in the same one goes by it.
//   - [Open] reads all of the database (quick_check) before it serves anybody,
//     and refuses a damaged one; [Repair] makes a sound one of what can be
//     read, and queues again what it cannot tell whether it was acknowledged.
//   - Sequences and ids are never given twice: retention leaves the newest message, and
//     [Repair] leaves out the numbers that lost messages may have had (numbers.go).
//
// Not kept here: what an agent does with a message that it acknowledged, and
// messages that were never answered with a sequence (the gateway's outbox).
package store
