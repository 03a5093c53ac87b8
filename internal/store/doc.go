// Package store is what one agent's gateway keeps: one SQLite database,
// system.db, with the agent's memory, vectors, events and schedule, and the
// records of its calls that the audit does not have yet.
//
// # Way in
//
// [Open] gives a [Store]. [Store.Update] runs a function inside a transaction,
// [Store.View] one that only reads. One at a time runs them, for all: who asks
// when nobody does has the lead, and does its own at once, without waking
// anybody. What comes meanwhile waits, becomes the next transaction and so
// shares one fsync, however many ask; a goroutine of the store's, the writer,
// leads then. Each function has a savepoint of its own: one that fails, or
// panics, fails nobody else. An answer is given when the transaction is on
// disk. What only reads is answered before, from what is on disk.
//
// A record belongs to the transaction of its effect ([Tx.Record]). Store is a
// tool.Journal besides: Write returns when the record is on disk, Note has it
// there within tool.NoteDelay.
//
// # Format
//
// SQLite in WAL mode with synchronous=FULL and exclusive locking: a second
// gateway cannot open it. application_id is "BkSy". Tables of this package:
//
//	part      name, version: how far the tables of each part are migrated
//	spool     first, last, body: the records of one transaction, JSON, one a
//	          line; their numbers go from first to last
//	counted   records that found no room in the spool, or were many that are
//	          alike, by what they were about
//	list      name: whose the numbers of records are. It is made with the file,
//	          so that those of another file are not taken for these
//	meta      spooled: the last number that was taken off the spool;
//	          used: bytes that count towards the quota
//
// The parts (internal/primitive) have tables of their own, made by
// [Store.Migrate].
//
// # Crash rules
//
//   - What was answered is on disk: the log was synced (fdatasync) before. What
//     was not answered is there as a whole, with its record, or not at all.
//   - The database is the truth and memory a copy: numbers and sums are read
//     anew after a transaction failed. A failed fsync closes the connection,
//     because the kernel may have dropped pages that it could not write.
//   - Open reads all of the database (quick_check) and refuses a damaged one.
//   - A number of the spool is never given twice.
//
// # Denials that repeat
//
// Of denials, and failures with a reason, of the same tool, code and token 30 in a minute
// are records, and of all 256 KiB. The others are counted by tool and code, as durably,
// and become one record with that count a minute later, two at most.
//
// # When the spool is full
//
// With a reader ([Config.Audited]) nothing is lost and nothing goes on
// unrecorded: effects are refused with tools.unavailable until the reader has
// taken some records. Denials are still answered, and so are calls that only
// read; they are counted by tool, verdict and code, durably, and become one
// record each with that count as soon as there is room. A part of the spool
// (spoolReserve) is kept for the outcomes of calls that were written down as
// started. Without a reader the oldest records give way.
package store
