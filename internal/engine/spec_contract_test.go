package engine

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var updateContract = flag.Bool("update", false, "rewrite golden files")

// The JSON form lies on disk beside running containers: a warden of another
// build reads it when it adopts them.
func TestSpecContract(t *testing.T) {
	in := Spec{
		Version: SpecVersion, Team: "pair", Agent: "writer", Name: "runtime", Role: RoleRuntime,
		Root: Root{Path: "/var/lib/bulkhead/images/pi/rootfs"},
		Mounts: []Mount{
			{Kind: MountBind, Source: "/var/lib/bulkhead/teams/pair/agents/writer/workspace", Target: "/workspace", Writable: true, Exec: true},
			{Kind: MountBind, Source: "/srv/reference", Target: "/reference"},
			{Kind: MountTmpfs, Target: "/tmp", Writable: true, Size: 64 << 20, Mode: 0o1777},
		},
		User:    User{ID: 1000, Map: []IDMap{{Inside: 1000, Host: 1000999}}},
		Init:    []string{"/.bulkhead/bulkhead-shim", "runtime"},
		Command: []string{"pi", "--offline"},
		Env:     []string{"HOME=/home/agent", "LANG=C.UTF-8"},
		Dir:     "/workspace", Hostname: "writer",
		Network: Network{Loopback: []netip.Prefix{netip.MustParsePrefix("11.77.0.0/16")}, UnprivilegedPorts: true},
		Limits:  DefaultLimits(),
		Cgroup:  "pair/writer/runtime",
	}
	got, err := json.MarshalIndent(in, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	const file = "../../docs/contracts/golden/spec.json"
	if *updateContract {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("the contract changed (-golden +now):\n%s", diff)
	}
	var back Spec
	d := json.NewDecoder(bytes.NewReader(want))
	d.DisallowUnknownFields()
	if err := d.Decode(&back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(in, back, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
		t.Errorf("read back differs:\n%s", diff)
	}
}
