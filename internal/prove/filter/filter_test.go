package filter

import (
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/confine"
	"bulkhead/internal/engine"
)

func program(t testing.TB, role engine.Role) Program {
	t.Helper()
	f, err := confine.ForRole(role)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Parse(f.Marshal())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Within 12 bits every value can be tried, so that both answers of the solver
// are checked.
func TestAWordIsSolvedExactly(t *testing.T) {
	const high = 0xfff
	r := rand.New(rand.NewPCG(1, 2))
	met := 0
	for range 20000 {
		atoms := []Atom{{Word: Nr, Mask: ^uint32(0), how: atMost, Value: high}}
		for range r.IntN(5) {
			a := Atom{Word: Nr, Mask: ^uint32(0), how: comparison(r.IntN(4)), Value: r.Uint32N(high + 2)}
			if r.IntN(2) == 0 {
				a.Mask = r.Uint32N(high + 1)
			}
			if r.IntN(3) == 0 {
				a.Value &= a.Mask
			}
			atoms = append(atoms, a)
		}
		all := func(v uint32) bool {
			return !slices.ContainsFunc(atoms, func(a Atom) bool { return !a.holds(v) })
		}
		possible := false
		for v := uint32(0); v <= high && !possible; v++ {
			possible = all(v)
		}
		v, ok := solveWord(atoms)
		if ok != possible || ok && !all(v) {
			t.Fatalf("%s: solved %v with %#x, possible %v", Conjunction(atoms), ok, v, possible)
		}
		if ok {
			met++
		}
	}
	if met < 1000 || met > 19000 {
		t.Errorf("%d of 20000 can be met: the cases are too easy", met)
	}
}

func TestPathsSayWhatTheFilterAnswers(t *testing.T) {
	for _, role := range []engine.Role{engine.RoleRuntime, engine.RoleGateway} {
		p := program(t, role)
		paths, err := p.Paths()
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			d, ok := path.When.Solve()
			if !ok {
				t.Fatalf("%s: no words take the path %s", role, path.When)
			}
			if got, err := p.Run(d); err != nil || got != path.Answer {
				t.Fatalf("%s: %x: %s %v, the path says %s", role, d, got, err, path.Answer)
			}
		}
		// Every value takes exactly one path.
		r := rand.New(rand.NewPCG(3, 4))
		for range 2000 {
			d := Data{Nr: r.Uint32N(500), Arch: unix.AUDIT_ARCH_X86_64}
			for i := range d[args:] {
				d[args+Word(i)] = r.Uint32() >> r.IntN(32)
			}
			n := 0
			for _, path := range paths {
				if !slices.ContainsFunc(path.When, func(a Atom) bool { return !a.holds(d[a.Word]) }) {
					n++
					if got, err := p.Run(d); err != nil || got != path.Answer {
						t.Fatalf("%x: %s %v, want %s", d, got, err, path.Answer)
					}
				}
			}
			if n != 1 {
				t.Fatalf("%x takes %d paths", d, n)
			}
		}
	}
}

func TestEqualFiltersDoNotDiffer(t *testing.T) {
	p := program(t, engine.RoleRuntime)
	diff, err := Differences(p, p, 10)
	if err != nil || len(diff) > 0 {
		t.Fatalf("%v %v", diff, err)
	}
}

// TestEachChangedInstructionIsFound turns each answer and each constant of the
// filter into another one.
func TestEachChangedInstructionIsFound(t *testing.T) {
	want := program(t, engine.RoleGateway)
	for i, in := range want {
		switch in.Op {
		case opRet, opEq, opGt, opGe:
		default:
			continue
		}
		if in.Op == opRet && i%7 != 0 || in.Op != opRet && i%11 != 0 {
			continue // a part of them: each comparison takes a moment
		}
		got := slices.Clone(want)
		if in.Op == opRet {
			got[i].K = unix.SECCOMP_RET_LOG
		} else {
			got[i].K++
		}
		diff, err := Differences(got, want, 1)
		if err != nil {
			t.Fatal(err)
		}
		if len(diff) == 0 && in.Op == opRet {
			t.Errorf("instruction %d answers LOG, and nothing is found", i)
		}
	}
}

func TestHighBitsOfArgumentsAreSeen(t *testing.T) {
	// A filter that compares both halves of the family is passed by a high bit:
	// the kernel cuts the argument (socket(2) takes an int).
	careless := Program{
		{Op: opLoad, K: 0},
		{Op: opEq, K: unix.SYS_SOCKET, Jf: 5},
		{Op: opLoad, K: uint32(Arg(0, true)) * 4},
		{Op: opEq, K: 0, Jf: 3},
		{Op: opLoad, K: uint32(Arg(0, false)) * 4},
		{Op: opEq, K: unix.AF_VSOCK, Jf: 1},
		{Op: opRet, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)},
		{Op: opRet, K: unix.SECCOMP_RET_ALLOW},
	}
	right := slices.Clone(careless)
	right[3] = Instruction{Op: opJump}
	diff, err := Differences(careless, right, 10)
	if err != nil || len(diff) != 1 || diff[0].Data[Arg(0, true)] == 0 || diff[0].Data[Arg(0, false)] != unix.AF_VSOCK {
		t.Fatalf("%v %v", diff, err)
	}
}

func TestTwoFiltersTogetherMayBeNoWider(t *testing.T) {
	want := program(t, engine.RoleRuntime)
	open := Program{{Op: opRet, K: unix.SECCOMP_RET_ALLOW}}
	for name, tc := range map[string]struct {
		filters []Program
		wider   bool
	}{
		"the same":                     {[]Program{want}, false},
		"none":                         {nil, true},
		"one that allows everything":   {[]Program{open}, true},
		"that, and the same":           {[]Program{open, want}, false},
		"a narrower one":               {[]Program{{{Op: opRet, K: unix.SECCOMP_RET_KILL_PROCESS}}}, false},
		"two others, one of them ours": {[]Program{program(t, engine.RoleGateway), want}, false},
	} {
		diff, err := Wider(tc.filters, want, 1)
		if err != nil || len(diff) > 0 != tc.wider {
			t.Errorf("%s: %v %v", name, diff, err)
		}
	}
}

func TestAnswersOfSeveralFilters(t *testing.T) {
	got := Strongest([]Answer{unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_ERRNO | 1, unix.SECCOMP_RET_KILL_PROCESS, unix.SECCOMP_RET_TRACE})
	if got.String() != "KILL_PROCESS" {
		t.Errorf("%s", got)
	}
	if Strongest(nil).String() != "ALLOW" {
		t.Error("no filter allows everything")
	}
}

func TestCallsOfALinearFilter(t *testing.T) {
	p := Program{
		{Op: opLoad, K: 0},
		{Op: opEq, K: 5, Jt: 3},
		{Op: opEq, K: 7, Jt: 2},
		{Op: opGt, K: 99, Jt: 1},
		{Op: opRet, K: unix.SECCOMP_RET_ALLOW},
		{Op: opRet, K: unix.SECCOMP_RET_KILL_PROCESS},
	}
	got, err := p.Calls(unix.AUDIT_ARCH_X86_64, Answer.Allowed)
	want := [][2]uint32{{0, 4}, {6, 6}, {8, 99}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v %v, want %v", got, err, want)
	}
}

func FuzzProgram(f *testing.F) {
	for _, role := range []engine.Role{engine.RoleRuntime, engine.RoleGateway} {
		filter, err := confine.ForRole(role)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(filter.Marshal())
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := Parse(raw)
		if err != nil || len(p) > 40 {
			return
		}
		paths, err := p.Paths()
		if err != nil {
			return
		}
		for _, path := range paths {
			d, ok := path.When.Solve()
			if !ok {
				t.Fatalf("a path that nothing takes: %s", path.When)
			}
			if got, err := p.Run(d); err != nil || got != path.Answer {
				t.Fatalf("%x: %s %v, the path says %s", d, got, err, path.Answer)
			}
		}
	})
}
