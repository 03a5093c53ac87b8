package podman

import (
	"testing"

	"bulkhead/internal/engine/podman/release"
)

func TestReleaseIsRead(t *testing.T) {
	for said, want := range map[string]release.Release{
		"podman version 4.3.1\n": {Major: 4, Minor: 3}, "podman version 5.4.2\n": {Major: 5, Minor: 4}, "podman version 10.0.0-dev\n": {Major: 10},
		"": {}, "podman version": {}, "podman version x.y": {}, "podman version 4": {}, "docker version 4.3.1": {}, "4.3.1": {},
	} {
		got, err := releaseOf(said)
		if got != want || (err == nil) != (want.Major > 0) {
			t.Errorf("%q: %v, %v", said, got, err)
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
