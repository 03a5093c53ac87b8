// Package db gives an agent SQL of its own: db_query, db_transaction,
// db_create_table, db_insert, db_update and db_delete, over one SQLite file
// that belongs to that agent alone.
//
// # What keeps it inside
//
// There is no schema, role or search path that could be left: the only
// database that a statement can name is the agent's file. ATTACH is refused
// four times: by the statement's first word ([scan]), by the authorizer, by
// SQLITE_LIMIT_ATTACHED 0 and, as for everything that opens files, because the
// authorizer lets through only what is listed: functions, pragmas, table-valued
// functions, and actions ([policy]). SQLite's defensive mode keeps its own tables.
//
// The schema is changed by db_create_table, whose column types carry checks,
// and by CREATE INDEX, DROP INDEX and DROP TABLE, which cannot name anything
// but the agent's own tables. Views, triggers, virtual and temporary tables and
// ALTER TABLE are refused: what is stored would run later, in another call's
// time and under another record.
//
// # Limits
//
// A statement's text, parameters, columns, depth and opcodes are limited by
// sqlite3_limit, its result by rows and bytes, its time by a deadline that
// interrupts between opcodes and within long ones, all statements' memory by
// SQLite's own count of it ([heap]), and the file by max_page_count, which is
// what the agent's budget has left at that moment. The write-ahead log
// of one transaction is bounded by the same amount again.
//
// # Taking back
//
// What a step of an execution changed is taken back by [Store.Undo]. While such a step
// runs, SQLite tells of each row before it changes it (preupdate hook), by its rowid;
// the rows as they were, and sums of the rows as they became, are kept durably before
// the step's own commit. They are put back by ordinary statements, under the same
// policy, limits and budget as the agent's. Calls that are no steps have no hook.
//
// # On disk
//
// WAL with synchronous=FULL: what was answered is on disk. auto_vacuum=FULL:
// what is deleted is given back to the budget with the transaction that
// deleted it.
package db
