package prove

import (
	"math"
	"os"
	"strings"
	"testing"

	"bulkhead/internal/engine"
)

const someLimits = `Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              unlimited            unlimited            seconds   
Max core file size        0                    1048576              bytes     
Max open files            1024                 4096                 files     
Max locked memory         8388608              8388608              bytes     
`

func TestHardLimitsAreRead(t *testing.T) {
	r, err := parseResources(someLimits)
	if err != nil || r != (Resources{NoFile: 4096, CoreBytes: 1 << 20}) {
		t.Errorf("%+v, %v", r, err)
	}
	r, err = parseResources(strings.Replace(someLimits, "1048576 ", "unlimited", 1))
	if err != nil || r.CoreBytes != math.MaxUint64 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, bad := range []string{"", "Max open files x", strings.Replace(someLimits, "4096", "many", 1)} {
		if r, err := parseResources(bad); err == nil {
			t.Errorf("%q is read as %+v", bad, r)
		}
	}
	if r, err := ReadResources(os.Getpid()); err != nil || r.NoFile == 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestMoreThanTheManifestSaysIsAgainst(t *testing.T) {
	own, err := ReadResources(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	a := Agent{Name: "w", Processes: []Process{{PID: os.Getpid(), Role: engine.RoleRuntime}}, Resources: own}
	var s Statement
	if s.resources(a); len(s.Against) != 0 || len(s.Read) != 1 {
		t.Errorf("%+v", s)
	}
	a.Resources.NoFile--
	if s.resources(a); len(s.Against) != 1 || !strings.Contains(s.Against[0], "files") {
		t.Errorf("%+v", s)
	}
}

func FuzzResources(f *testing.F) {
	f.Add(someLimits)
	f.Add("Max open files 1 -1\nMax core file size unlimited unlimited bytes\n")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseResources(text)
		if err == nil && (!strings.Contains(text, "Max open files") || !strings.Contains(text, "Max core file size")) {
			t.Errorf("%+v out of nothing", r)
		}
	})
}
