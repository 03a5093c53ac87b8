package filter

import "slices"

// Wider lists calls that the filters of one thread let through together and
// that want refuses: none means that the thread may do no more than want allows,
// for any call number, architecture and argument. At most most are listed.
func Wider(filters []Program, want Program, most int) ([]Difference, error) {
	ref, err := want.Paths()
	if err != nil {
		return nil, err
	}
	var out []Difference
	for _, w := range ref {
		if w.Answer.Allowed() {
			continue
		}
		found, err := through(filters, w.When)
		if err != nil {
			return nil, err
		}
		for _, d := range found {
			out = append(out, Difference{Data: d, Got: Answer(retAllow), Want: w.Answer})
			if len(out) >= most {
				return out, nil
			}
		}
	}
	return out, nil
}

// retAllow is SECCOMP_RET_ALLOW.
const retAllow = 0x7fff0000

// through finds words within when that every filter lets through.
func through(filters []Program, when Conjunction) ([]Data, error) {
	cases := []Conjunction{when}
	for _, f := range filters {
		paths, err := f.Paths()
		if err != nil {
			return nil, err
		}
		var next []Conjunction
		for _, c := range cases {
			for _, p := range paths {
				if !p.Answer.Allowed() || apart(c, p.When) {
					continue
				}
				both := append(slices.Clone(c), p.When...)
				if _, ok := both.Solve(); ok {
					next = append(next, both)
				}
			}
		}
		cases = next
	}
	var out []Data
	for _, c := range cases {
		d, ok := c.Solve()
		if !ok {
			continue
		}
		for _, f := range filters { // the witness is run: it is a fact, however it was found
			a, err := f.Run(d)
			if err != nil {
				return nil, err
			}
			if !a.Allowed() {
				return nil, errWitness
			}
		}
		out = append(out, d)
	}
	return out, nil
}
