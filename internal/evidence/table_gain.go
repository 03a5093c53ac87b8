package evidence

import (
	"bulkhead/internal/deny"
	"bulkhead/internal/evidence/attempt"
)

// gainAttacks are attempts to become more than one is.
func gainAttacks() []Attack {
	gain := func(id, name, title, tries, reference string, controls ...Control) Attack {
		return Attack{
			ID: id, Title: title, Tries: tries, Attempt: name, Layer: deny.LayerPod, From: everywhere, At: AtNobody,
			Reference: reference, Aim: nothing, Controls: controls,
		}
	}
	byCaps := []Control{{Mechanism: caps, Off: off(userNS), Witness: looks("EPERM")}}
	initial := func(refusals ...string) []Control {
		return []Control{
			{Mechanism: caps, Off: off(userNS), Witness: refusals},
			{Mechanism: userNS, Off: off(caps), Witness: refusals},
		}
	}
	device := looks("EPERM", "EACCES")
	// Without CAP_SYS_RESOURCE, as within a container, root may not either.
	lacking := func(a Attack) Attack { a.Lacking = looks("EPERM", "EACCES"); return a }
	return []Attack{
		gain("privilege.groups", "gain.setgroups", "join a group", "setgroups([0])", "CVE-2014-8989; setgroups(2)", initial("EPERM", "EINVAL")...),
		gain("privilege.group", "gain.setgid", "become group 0", "setresgid(0,0,0)", "setresgid(2)", initial("EPERM", "EINVAL")...),
		gain("privilege.file_user", "gain.setfsuid", "have files judged by id 0", "setfsuid(0)", "setfsuid(2)", initial("EPERM")...),
		{
			ID: "privilege.foreign_id", Title: "take another agent's id", Tries: "setresuid to each of its ids", Attempt: "gain.foreign_id",
			Layer: deny.LayerAccount, From: everywhere, At: AtOthers, Reference: "credentials(7)",
			Aim: func(_, at Agent, _ World) attempt.Request {
				return attempt.Request{IDs: []uint32{at.IDs.Runtime(), at.IDs.Gateway(), at.IDs.Account}}
			},
			Controls: initial("EPERM", "EINVAL"),
		},
		gain("privilege.file_capabilities", "gain.file_caps", "make a program that grants capabilities", "setxattr(security.capability)", "CVE-2021-3493", byCaps...),
		gain("privilege.securebits", "gain.securebits", "change the rules by which ids give capabilities", "prctl(PR_SET_SECUREBITS)", "capabilities(7), securebits", byCaps...),
		gain("privilege.ambient", "gain.ambient", "hand a capability down", "prctl(PR_CAP_AMBIENT_RAISE)", "CVE-2022-24769", byCaps...),
		gain("privilege.nice", "gain.nice", "take the processor from everybody", "setpriority(-20)", "setpriority(2)", initial("EACCES", "EPERM")...),
		lacking(gain("privilege.files", "gain.files", "have more open files than its limit", "raise RLIMIT_NOFILE", "prlimit(2)", initial("EPERM")...)),
		inContainersOnly(lacking(gain("privilege.core", "gain.core", "have its memory, keys and all, written to a file", "raise RLIMIT_CORE", "CVE-2022-4415; core(5)", initial("EPERM")...))),
		lacking(gain("privilege.oom", "gain.oom", "have somebody else ended when memory is short", "write to oom_score_adj", "proc_pid_oom_score_adj(5)",
			Control{Mechanism: caps, Off: off(userNS, landlock), Witness: looks("EACCES")},
			Control{Mechanism: userNS, Off: off(caps, landlock), Witness: looks("EACCES")},
			Control{Mechanism: landlock, Off: off(caps, userNS), Witness: looks("EACCES")},
		)),
		gain("device.make", "gain.mknod", "make a device", "mknod of a character device", "mknod(2)",
			Control{Mechanism: caps, Off: off(userNS, landlock), Witness: device},
			Control{Mechanism: userNS, Off: off(caps, landlock), Witness: device},
			Control{Mechanism: landlock, Off: off(caps, userNS), Witness: device},
		),
	}
}

// inContainersOnly is for what the bare account may do to itself.
func inContainersOnly(a Attack) Attack { a.From = containers; return a }
