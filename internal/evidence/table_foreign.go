package evidence

import (
	"crypto/sha256"
	"fmt"

	"bulkhead/internal/deny"
	"bulkhead/internal/evidence/attempt"
)

// foreignAttacks are on what another agent has.
func foreignAttacks() []Attack {
	secrets := func(_, at Agent, _ World) attempt.Request { return attempt.Request{Paths: at.Secrets()} }
	file := func(id, name, title, tries, reference string) Attack {
		return Attack{
			ID: id, Title: title, Tries: tries, Attempt: name, Layer: deny.LayerAccount, From: everywhere, At: AtOthers, Reference: reference, Aim: secrets, OnlyThere: true,
			Controls: []Control{
				{Mechanism: user, Off: off(mountNS, landlock), Witness: looks("EACCES", "EPERM")},
				{Mechanism: mountNS, Off: off(user, landlock), Witness: looks("ENOENT")},
			},
			Also: looks("EPERM", "EROFS", "ENOTDIR"),
		}
	}
	written := file("file.write_other", "foreign.write", "plant files in another agent's folders", "create a file in its home, workspace, data, sockets and logs", "CWE-732")
	written.Controls = append(written.Controls, Control{Mechanism: landlock, Off: off(user, mountNS), Witness: looks("EACCES")})
	written.Controls[0].Off, written.Controls[1].Off = off(mountNS, landlock), off(user, landlock)
	return append([]Attack{
		written,
		file("file.watch_other", "foreign.watch", "hear of what happens in another agent's folders", "inotify_add_watch on each", "inotify(7)"),
		file("file.mode_other", "foreign.mode", "open another agent's folders to everybody", "chmod of each", "chmod(2)"),
		file("file.symlink", "foreign.symlink", "read another agent's files by a symbolic link", "open each by a link of its own", "CVE-2021-30465"),
		file("file.traverse", "foreign.traverse", "read another agent's files by a way round", "open each through /proc/self/fd, /proc/self/root, /dev/fd and ../", "CVE-2024-21626"),
		{
			ID: "file.state", Title: "read or change what the host keeps of the team", Tries: "open the ledger, the manifest, the logs and the disk images for writing", Attempt: "open.write",
			Layer: deny.LayerAccount, From: everywhere, At: AtNobody, Reference: "CWE-276",
			Aim: func(from, _ Agent, _ World) attempt.Request {
				h := from.host()
				return attempt.Request{Paths: []string{
					h.Ledger(), h.WardenLog(), h.Manifest(from.Place.Team), from.Place.RuntimeImage(), from.Place.GatewayImage(),
				}}
			},
			Controls: []Control{
				{Mechanism: mountNS, Off: off(userNS, caps, landlock), Witness: looks("ENOENT")},
				{Mechanism: userNS, Off: off(mountNS, caps, landlock), Witness: looks("EACCES")},
				{Mechanism: caps, Off: off(mountNS, userNS, landlock), Witness: looks("EACCES")},
				{Mechanism: landlock, Off: off(mountNS, userNS, caps), Witness: looks("EACCES")},
			},
			Also: looks("EPERM", "EROFS"),
		},
		{
			ID: "token.arguments", Title: "find a token in somebody's arguments", Tries: "look at the arguments of every process that is to be seen", Attempt: "token.search",
			Layer: deny.LayerPod, From: byGateway, At: AtNobody, Reference: "CWE-214", Aim: nothing,
			Controls: []Control{{Mechanism: pidNS, Off: off(user, userNS), Witness: looks("absent"), From: FromGateway}},
		},
		tokens("token.processes", "find another agent's token with a process", "look for the tokens of all others, by their sums, in the arguments and the environment of every process that is to be seen", "CWE-214; CWE-526; MITRE ATT&CK T1552.007",
			Control{Mechanism: pidNS, Off: off(user, userNS), Witness: looks("absent")}),
		tokens("token.files", "find another agent's token in a file", "look for the tokens of all others, by their sums, in its image, its homes and mounts, and in dumps of memory", "CWE-312; CWE-528; MITRE ATT&CK T1552.001",
			Control{Mechanism: mountNS, Witness: looks("absent")}),
		{
			ID: "file.descriptors", Title: "use descriptors that were left open", Tries: "look at what it inherited beside its standard input and outputs", Attempt: "file.descriptors",
			Layer: deny.LayerPod, From: containers, At: AtNobody, Reference: "CVE-2024-21626", Aim: nothing,
			Uncontrolled: "closing them is no mechanism of a Spec that could be switched off; docs/mutations.md shows that one that is not closed is found",
			Also:         looks("absent"),
		},
	}, processesOfOthers()...)
}

// TokenSum is how a probe is told of a token that it is to look for: its length and
// its SHA-256, from which nobody learns it.
func TokenSum(token string) string {
	return fmt.Sprintf("%d:%x", len(token), sha256.Sum256([]byte(token)))
}

// tokens looks for tokens that are others'.
func tokens(id, title, tries, reference string, c Control) Attack {
	return Attack{
		ID: id, Title: title, Tries: tries, Attempt: id, Layer: deny.LayerPod, From: everywhere, At: AtNobody, Reference: reference,
		Aim: func(from, _ Agent, _ World) attempt.Request { return attempt.Request{Names: from.Foreign} },
		Absent: func(from, _ Agent) (who, why string) {
			if len(from.Foreign) == 0 {
				return from.Name, "there is no token that it is not given itself"
			}
			return "", ""
		},
		Controls: []Control{c},
	}
}

// processesOfOthers are on another agent's processes, by their host numbers.
func processesOfOthers() []Attack {
	aim := func(_, at Agent, _ World) attempt.Request { return attempt.Request{PIDs: at.PIDs} }
	process := func(id, title, tries, reference string, controls ...Control) Attack {
		return Attack{
			ID: "process." + id, Title: title, Tries: tries, Attempt: "process." + id, Layer: deny.LayerAccount, From: everywhere, At: AtOthers,
			Reference: reference, Aim: aim, Controls: controls, Also: looks("absent", "EACCES", "EPERM", "ENOENT", "ESRCH", "ENOSYS"),
		}
	}
	looked := []Control{ // what PTRACE_MODE_READ guards
		{Mechanism: user, Off: off(pidNS, userNS, seccomp, landlock), Witness: looks("EPERM", "EACCES", "ENOENT")},
		{Mechanism: pidNS, Off: off(user, userNS, seccomp, landlock), Witness: looks("ENOENT", "ESRCH")},
		{Mechanism: landlock, Off: off(user, userNS, seccomp, pidNS), Witness: looks("EPERM", "EACCES", "ENOENT")},
	}
	owned := []Control{ // what the owner may
		{Mechanism: user, Off: off(pidNS, userNS, landlock), Witness: looks("EPERM", "EACCES", "ESRCH")},
		{Mechanism: pidNS, Off: off(user, userNS, landlock), Witness: looks("ENOENT", "ESRCH")},
	}
	signalled := append(owned[:2:2], Control{Mechanism: landlock, Off: off(user, userNS, pidNS), Witness: looks("EPERM")})
	return []Attack{
		process("environ", "read another agent's environment", "open /proc/PID/environ", "proc_pid_environ(5)", looked...),
		process("arguments", "read another agent's command lines", "open /proc/PID/cmdline", "proc_pid_cmdline(5)",
			Control{Mechanism: pidNS, Off: off(user, userNS, seccomp, landlock), Witness: looks("ENOENT", "ESRCH")}),
		process("maps", "learn another agent's addresses", "open /proc/PID/maps", "proc_pid_maps(5)", looked...),
		process("fds", "list another agent's open files", "open /proc/PID/fd", "CVE-2024-21626", owned...),
		process("namespaces", "get hold of another agent's namespaces", "open /proc/PID/ns/net", "setns(2)", looked...),
		process("root", "walk into another agent's files by its processes", "read /proc/PID/root, cwd, exe", "proc_pid_root(5)", looked...),
		process("oom", "have another agent ended when memory is short", "open /proc/PID/oom_score_adj for writing", "proc_pid_oom_score_adj(5)",
			Control{Mechanism: user, Off: off(pidNS, userNS, landlock), Witness: looks("EACCES")},
			Control{Mechanism: pidNS, Off: off(user, userNS, landlock), Witness: looks("ENOENT")},
			Control{Mechanism: landlock, Off: off(user, userNS, pidNS), Witness: looks("EACCES")}),
		process("limits", "read or change another agent's limits", "prlimit", "prlimit(2)", owned...),
		process("affinity", "move another agent to one processor", "sched_setaffinity to what it has", "sched_setaffinity(2)", owned...),
		process("priority", "slow another agent down", "setpriority to what it has", "setpriority(2)", owned...),
		process("queue", "forge signals to another agent", "rt_sigqueueinfo of signal 0", "rt_sigqueueinfo(2)", signalled...),
		process("pidfd", "signal another agent by a descriptor", "pidfd_open, pidfd_send_signal of signal 0", "pidfd_send_signal(2)", signalled...),
	}
}
