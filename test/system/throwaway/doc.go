// Package throwaway gives tests a host of their own, to create accounts, load
// firewall rules, mount and limit on, and throws it away afterwards.
//
// It is made of namespaces, not of a virtual machine: the kernel and its
// devices are shared, everything that has a name is not.
//
//	func TestAccount(t *testing.T) {
//		throwaway.Run(t, func(t *testing.T, h *throwaway.Host) {
//			// root in a fresh host: useradd, nft, mount, kill -9, ...
//		})
//	}
//
// [Run] starts the calling test's own binary again, with -test.run for exactly
// this test, as PID 2 of a new host, and hands its output, verdict and skip
// back. What stands before Run in the test therefore runs twice: once on the
// machine, once inside. Call Run once per test; use subtests for more. Tests
// that call t.Parallel have their hosts side by side.
//
// # What a host has
//
//   - mount, network, PID, UTS, IPC and cgroup namespaces of its own
//   - the machine's whole tree copy-on-write: overlays whose upper layers are in
//     memory. What is on the machine can be read and changed; nothing gets out
//   - /var/lib/bulkhead: an empty folder on a plain filesystem of the machine
//     (an overlay cannot have its upper layer on another overlay)
//   - /run and /tmp: empty tmpfs; /dev: the harmless devices, its own pts and shm,
//     and the machine's loop devices: what a test attaches must let go by itself
//     (LO_FLAGS_AUTOCLEAR), because the kernel drops the host's mounts, not devices
//   - /proc: fresh and not covered anywhere, because the kernel lets a user
//     namespace mount proc only where an uncovered one is visible
//     (mount_too_revealing in fs/namespace.c); /sys: fresh, read-only, without AppArmor
//   - the loopback interface, with [Listed] and [Unlisted] on it as the world
//     outside. There is no way to any other network
//   - per cgroup hierarchy of the machine a folder bulkhead-test-<id>, which
//     inside is the root of that hierarchy, mounted where the machine has it.
//     On cgroup v2 the host's own processes sit in its leaf "init", so that
//     controllers can be handed on
//   - a PID 1 that reaps
//
// When the host ends, or the test's process is killed, the kernel kills every
// process of its PID namespace and drops mounts, rules and sockets with the
// namespaces. The starter removes the temporary folder and the cgroup folders;
// what a killed starter left is removed by the next one.
//
// # What it does not keep apart
//
// Sysctls that are not per namespace, kernel modules, the clock, keyrings and
// the machine's processor and memory. A test must not touch the former.
package throwaway
