// Package shelf keeps the public topics of one team: one SQLite database, by
// internal/store, whose writer and crash rules it shares.
//
// # Tables
//
//	topic         name, last: the number that its newest message got
//	event         the messages, by topic and number; publisher is the agent that
//	              published it, key the publish's own
//	share         messages and bytes that a publisher has in a topic: the sums of
//	              its rows in event, changed with them
//	subscription  position: the number of the last message that it was given
//
// Numbers grow and are never given twice, for as long as the database is there.
//
// # What goes, and when
//
// A message goes a day after it came, or when its publisher has [topic.Keep]
// newer ones in the topic: a flood puts out the flooder's own messages and
// nobody else's. Bytes are bounded for each publisher and topic; more are
// refused until some of its own have gone.
//
// # Crash rules
//
// What was answered is on disk. A publish that was not answered is there as a
// whole or not at all; the same key again finds out. A subscription's move is on
// disk before its messages are given, so each is given at most once.
package shelf
