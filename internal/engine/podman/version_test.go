package podman

import "testing"

func TestMajorVersionIsRead(t *testing.T) {
	for said, want := range map[string]int{
		"podman version 4.3.1\n": 4, "podman version 5.4.2\n": 5, "podman version 10.0.0-dev\n": 10,
		"": 0, "podman version": 0, "podman version x.y": 0, "podman version 4": 0, "docker version 4.3.1": 0, "podman version -4.1": 0,
	} {
		got, err := majorOf(said)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d, %v", said, got, err)
		}
	}
}

func TestTheInstalledPodmanFits(t *testing.T) {
	if Installed("") != nil {
		t.Skip("expected: no Podman here")
	}
	if err := Fits(t.Context()); err != nil {
		t.Error(err)
	}
}

func FuzzMajorVersion(f *testing.F) {
	f.Add("podman version 4.3.1\n")
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := majorOf(s); err == nil && n < 1 {
			t.Errorf("%q: %d", s, n)
		}
	})
}
