// Package apparmor makes, loads and removes the AppArmor profiles of containers.
//
// A profile is made of a container's Spec, so that it says the same as the
// mounts, Landlock and seccomp do, in a subsystem that none of them shares code
// with. The child that becomes the container asks for it just before it execs
// (confine.Profile.AppArmor), which works alike for a cell and under rootless
// Podman, which itself refuses to set one. A profile that is not loaded ends
// the start.
//
// Where the kernel has no AppArmor nothing is loaded, and nothing is said to
// be in force.
package apparmor
