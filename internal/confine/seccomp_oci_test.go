package confine

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// answers says what an OCI profile does, by the meaning that libseccomp gives
// it: any rule of the call whose conditions all hold, else the default.
func (p *ociProfile) answers(name string, args [6]uint64) bool {
	for _, r := range p.Syscalls {
		if !slices.Contains(r.Names, name) {
			continue
		}
		holds := true
		for _, a := range r.Args {
			holds = holds && args[a.Index]&a.Value == a.ValueTwo
		}
		if holds {
			return r.Action == ociAllow
		}
	}
	return false
}

// TestOCIProfileAllowsWhatTheFilterAllows compares both for every call number
// and for arguments around everything that a rule names.
func TestOCIProfileAllowsWhatTheFilterAllows(t *testing.T) {
	interesting := []uint64{
		0, 1, 2, 3, 8, 10, 16, 17, 40, 0x5412, 0x541c, 0x5413, 0x5410, 0x541e, 0x5401, 0x20000, 0x20008, 0xffffffff, 0x40000, 6, 58, 132, 262,
		unix.CLONE_NEWUSER, unix.CLONE_NEWNS | unix.CLONE_VM, unix.CLONE_VM | unix.CLONE_VFORK, unix.CLONE_NEWNET, unix.CLONE_NEWCGROUP,
	}
	for _, role := range roles {
		t.Run(string(role), func(t *testing.T) {
			raw, err := OCIProfile(role)
			if err != nil {
				t.Fatal(err)
			}
			var p ociProfile
			if err := json.Unmarshal(raw, &p); err != nil {
				t.Fatal(err)
			}
			m := forRole(t, role)
			r := rand.New(rand.NewPCG(1, 2))
			pick := func() uint64 {
				v := interesting[r.IntN(len(interesting))]
				switch r.IntN(4) {
				case 0:
					v |= 1 << (32 + r.IntN(32)) // a high bit changes nothing
				case 1:
					v ^= 1 << r.IntN(32)
				}
				return v
			}
			a := native()
			names := map[uint32]string{}
			for _, n := range numbers {
				if nr, ok := a.has(n.name); ok {
					names[nr] = n.name
				}
			}
			for nr := range uint32(480) {
				name, named := names[nr]
				rounds := 20
				if named && slices.Contains([]string{"socket", "socketpair", "clone", "ioctl", "personality"}, name) {
					rounds = 20000
				}
				for range rounds {
					args := [6]uint64{pick(), pick(), pick(), pick(), pick(), pick()}
					ours := m.call(a.audit, nr, args[:]...) == retAllow
					if theirs := named && p.answers(name, args); theirs != ours {
						t.Fatalf("call %d (%s) with %x: the OCI profile says %v, the filter %v", nr, name, args, theirs, ours)
					}
				}
			}
		})
	}
}

func TestNoneOfHoldsForEverythingElse(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		x, y := r.Uint32(), r.Uint32()
		if r.IntN(2) == 0 {
			y = x ^ 1<<r.IntN(32) ^ 1<<r.IntN(32)
		}
		if bits := x ^ y; bits&(bits-1) == 0 || bits > 0xffff {
			x, y = tiocsti, tioclinux
		}
		alternatives := noneOf(1, x, y)
		for _, v := range []uint32{x, y, x ^ 1, y ^ 1, r.Uint32(), x ^ 1<<r.IntN(32), x ^ (x^y)&r.Uint32()} {
			holds := slices.ContainsFunc(alternatives, func(a ociArg) bool { return uint64(v)&a.Value == a.ValueTwo })
			if holds == (v == x || v == y) {
				t.Fatalf("%#x against %#x and %#x: %v", v, x, y, holds)
			}
		}
	}
}
