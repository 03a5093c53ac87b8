// Package tool is the one table of tools that a gateway serves to its agent.
//
// A [Tool] is a name, its input's fields and a function. From the same row
// come the validation of every call, the JSON Schema that MCP lists, the
// OpenAPI document, and what may be written down of an input: no transport has
// a rule of its own. The table knows nothing of HTTP or MCP; they give it a
// name and the bytes of a JSON object and get JSON or a [deny.Reason].
//
// # The way of a call
//
//  1. the name: bare, or with the prefix "agentos."; unknown names are refused
//  2. the rate: one sliding window per agent over all tools, before any work
//  3. the manifest: which tools this agent may call
//  4. the input: every failing field is named, not the first one
//  5. the tool
//  6. the record
//
// # What is on disk when
//
// A denial is durable before it is answered. An effect is never without a
// record: a tool whose effect lies in the gateway's own store takes the call's
// record ([Call.Take]) into the same transaction; one whose effect lies outside
// (a file, a connection, a process) first has the call written down as started
// ([Call.Begin]), durably, and its outcome afterwards, before the answer. What
// only reads is written down within [NoteDelay].
package tool
