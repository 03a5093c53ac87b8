// Package execution keeps calls of tools that are not done at once: those that wait for
// a person, and several as one.
//
// # What an execution is
//
// One caller's steps, done one after the other; a call that waits for a person is an
// execution of one step. Its state is queued, running, waiting_for_user, paused,
// completed, partially_completed, failed or cancelled. Each step is a call like any
// other: the table decides, counts and records it, as whoever asked, when it is done.
//
// # How a call comes to wait
//
// [Executions.Pass] is the table's gate. A call of a tool that is asked for, and that no
// grant covers (internal/govern), is kept with its input and refused with
// tools.approval, which names the execution. While it is open the same call of the same
// caller is answered with the same execution. What a person denied is not asked again
// for an hour.
//
// # Who decides
//
// [Executions.Decide] is called for root alone (docs/decisions/0095). None of the tools
// here approves anything.
//
// # Format
//
// Part "execution" of system.db (internal/store): tables execution, step, refusal. What
// is kept counts towards the agent's memory; executions that have ended are kept for
// seven days, a thousand at most.
//
// # Crash rules
//
//   - An execution that was answered is on disk, with the record of its call.
//   - A step is written down as running before its call begins, and its outcome after
//     the call has ended. One that is found running when the gateway starts is failed:
//     it may have been done or not, and is never done a second time by itself.
//   - Steps before it, and those that have not begun, go on as they were.
package execution
