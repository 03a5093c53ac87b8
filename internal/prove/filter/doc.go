// Package filter says exactly what a seccomp filter answers, for every system
// call number of every architecture and every value of every argument, from the
// program that the kernel runs (PTRACE_SECCOMP_GET_FILTER).
//
// It does not sample. A filter has no loops and only compares 32-bit words of
// struct seccomp_data with constants, so it is a finite set of paths, each of
// which is a conjunction of comparisons and an answer ([Program.Paths]). Whether
// such a conjunction can be met is decided exactly ([Conjunction.Solve]), with
// the words that meet it as witness. Two filters are the same when no words
// exist for which they answer differently ([Differences]).
//
// Instructions that the kernel would not take, and arithmetic that this package
// cannot follow, are errors: what cannot be read is not proven.
package filter
