// Package release says with which releases of Podman our containers start. It
// is a package of its own because the doctor asks as well, and has no business
// with the engine.
package release

import (
	"fmt"
	"strconv"
	"strings"
)

// Release is the part of a version that says what Podman's command line and its
// containers look like.
type Release struct{ Major, Minor int }

// oldest has the options that we start containers with. newest is the last
// major version under which the tests have run (4.3.1 on Debian 12, 5.4.2 on
// Debian 13): versions 4 and 5 differ in what they mount and in how they reach
// the root file system (docs/decisions/0075-podman-5.md), so the next one will
// as well.
var oldest = Release{4, 3}

const newest = 5

// Way is what an operator can do about a Podman that is refused.
const Way = "install Podman 4.3 or later, or any 5 (Debian 12 and 13 have them), or write engine: cell"

// Parse reads the first two numbers of "4.3.1", "5.4.2+ds1-2" or "5.0.0-rc1".
func Parse(version string) (Release, error) {
	f := strings.SplitN(version, ".", 3)
	if len(f) == 3 {
		major, err := strconv.ParseUint(f[0], 10, 16)
		minor, merr := strconv.ParseUint(f[1], 10, 16)
		if err == nil && merr == nil && major > 0 {
			return Release{int(major), int(minor)}, nil // #nosec G115 -- 16 bits
		}
	}
	return Release{}, fmt.Errorf("%q is no version like 4.3.1", version)
}

// Check says why containers of ours do not start with this release.
func (r Release) Check() error {
	if r.Major > newest {
		return fmt.Errorf("nobody has seen yet whether Podman %d keeps our containers as confined as Podman 4 and 5 do", r.Major)
	}
	if r.Major < oldest.Major || r.Major == oldest.Major && r.Minor < oldest.Minor {
		return fmt.Errorf("our containers are started with options that Podman %d.%d lacks", r.Major, r.Minor)
	}
	return nil
}
