// Package proc serves proc_execute, proc_spawn, proc_kill, proc_list and
// proc_schedule: code that is run for the agent.
//
// # What it keeps
//
// Code runs nowhere near the gateway. Its launcher, which root started, runs
// each piece in a cell of its own (internal/engine/launcher): no network, the
// image that the manifest names and nothing of the host, own /tmp and HOME in
// memory, an id that is neither the runtime's nor the gateway's, an empty
// stdin, and limits of memory, processor, processes and file sizes. The gateway
// says which language, which code and for how long; it gets the read ends of
// two pipes. What it reads is bounded and the rest is thrown away, so that code
// that prints without end neither stops nor fills anything.
//
// A piece of code ends with its time, with proc_kill, or with the gateway,
// whichever comes first; its cgroup is empty when that is answered. What was
// spawned does not survive the gateway.
//
// # Schedule
//
// A task is a tool and an input, called when a cron expression ([ParseCron],
// UTC) says so, as its owner: with the owner's own token and domains, through
// the same table, rate and record as any call, so that it can do nothing that
// its owner could not, and no longer than that token is good: then the task is
// over. Tasks lie in the agent's system.db ([Tasks]) and survive restarts. Times that
// passed while the gateway was away are made up for by one call, when the last
// of them was at most an hour ago; else they are left out. A task that still
// runs when it is due again is left out that time. That a time was used is on
// disk before the call: no time is used twice.
package proc
