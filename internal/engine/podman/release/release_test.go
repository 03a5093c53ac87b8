package release

import "testing"

func TestParse(t *testing.T) {
	for text, want := range map[string]Release{
		"4.3.1": {4, 3}, "5.4.2": {5, 4}, "5.4.2+ds1-2": {5, 4}, "10.0.0-dev": {10, 0}, "4.3.1+ds1-8+deb12u1": {4, 3},
		"": {}, "4": {}, "4.3": {}, "x.y.z": {}, "-4.1.0": {}, "0.9.1": {}, "4..1": {}, "99999999.1.1": {},
	} {
		got, err := Parse(text)
		if got != want || (err == nil) != (want.Major > 0) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func TestOnlyKnownReleasesFit(t *testing.T) {
	for r, fits := range map[Release]bool{
		{3, 4}: false, {4, 0}: false, {4, 2}: false, {4, 3}: true, {4, 9}: true, {5, 0}: true, {5, 4}: true, {5, 99}: true, {6, 0}: false, {10, 3}: false,
	} {
		if err := r.Check(); (err == nil) != fits {
			t.Errorf("%v: %v", r, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("4.3.1")
	f.Add("5.4.2+ds1-2")
	f.Fuzz(func(t *testing.T, s string) {
		if r, err := Parse(s); err == nil && (r.Major < 1 || r.Minor < 0) {
			t.Errorf("%q: %v", s, r)
		}
	})
}
