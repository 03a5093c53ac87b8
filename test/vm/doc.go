// Package vm tests Bulkhead on a real host: Debian under QEMU, with systemd as
// process 1, cgroup version 2 and AppArmor, where nothing is a namespace of the
// machine that the test runs on. The virtual host itself is what is thrown
// away, so the programs run on it exactly as on an operator's machine.
//
// # How it works
//
// The script image makes disk, kernel and initramfs from Debian's packages;
// guest/ holds what is added to them. The first [Boot] starts the host once,
// waits until systemd has settled, and saves memory and disk; every later one
// restores that state in about a second, always the same fresh host. Commands,
// files and output go over one virtio serial port to guest/agent.py. The host
// has no network.
//
// Everything is cached in ${XDG_CACHE_HOME:-~/.cache}/bulkhead-vm, in folders
// named after the digest of what they are made from (about 1 GB). One host at
// a time: without KVM a host takes two cores, and a second one only makes both
// slow.
//
// # What is not promised
//
// Without KVM (most CI machines) programs run 5 to 20 times slower than
// outside. Nothing here may assert a time.
package vm
