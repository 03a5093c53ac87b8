package team

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var update = flag.Bool("update", false, "rewrite golden files")

// golden compares got with a file, or rewrites it.
func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil { // #nosec G306 -- a golden file
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs (-want +got); go test -update rewrites it:\n%s", file, diff)
	}
}

func TestEveryFaultIsToldAtOnceWithItsPlaceAndMend(t *testing.T) {
	files, _ := filepath.Glob("testdata/faults/*.yaml")
	if len(files) == 0 {
		t.Fatal("no cases")
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			m, err := Parse("bulkhead.yaml", data)
			var faults Faults
			if m != nil || !errors.As(err, &faults) || len(faults) == 0 {
				t.Fatalf("got %v, %v; want faults and no manifest", m, err)
			}
			for _, f := range faults {
				if f.Problem == "" || f.Mend == "" || f.Line == 0 && len(data) > 0 {
					t.Errorf("incomplete fault %+v", f)
				}
				if strings.Contains(f.String(), "hunter2") || strings.Contains(f.String(), "abcdef1234567890") {
					t.Errorf("a secret is shown: %s", f)
				}
			}
			golden(t, strings.TrimSuffix(file, ".yaml")+".txt", []byte(err.Error()+"\n"))
		})
	}
}

func TestGoodManifestsAreRead(t *testing.T) {
	files, _ := filepath.Glob("testdata/good/*.yaml")
	if len(files) == 0 {
		t.Fatal("no cases")
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			m, err := Parse("/srv/team/bulkhead.yaml", data)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, strings.TrimSuffix(file, ".yaml")+".json", rendered(m))
		})
	}
}

func TestExampleIsValid(t *testing.T) {
	m, err := Parse("bulkhead.yaml", Example())
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Agents) != 2 || m.Agents[0].Engine != "cell" || m.Agents[1].Limits.MemoryBytes != 256<<20 {
		t.Errorf("unexpected example: %+v", m)
	}
}

// manyAgents writes a manifest of n agents.
func manyAgents(n int) []byte {
	var b bytes.Buffer
	b.WriteString("apiVersion: bulkhead/v1\nteam: crowd\nagents:\n")
	for i := range n {
		fmt.Fprintf(&b, "  a%d: {image: pi, command: [pi], egress: [api%d.example.com:443]}\n", i, i)
	}
	return b.Bytes()
}

func TestAThousandAgentsAreReadAndTenThousandGiveOneFault(t *testing.T) {
	m, err := Parse("bulkhead.yaml", manyAgents(1000))
	if err != nil || len(m.Agents) != 1000 {
		t.Fatalf("1,000 agents: %v", err)
	}
	_, err = Parse("bulkhead.yaml", manyAgents(10000))
	var faults Faults
	if !errors.As(err, &faults) || len(faults) != 1 || !strings.Contains(faults[0].Problem, "10000 agents") {
		t.Fatalf("10,000 agents: %v", err)
	}
}

func TestHostileSizesAreRefusedBeforeTheyCost(t *testing.T) {
	for name, data := range map[string]string{
		"too large":          strings.Repeat("#", MaxSize+1),
		"deep flow lists":    strings.Repeat("[", MaxSize/2),
		"deep flow mappings": strings.Repeat("{a: ", MaxSize/8),
		"deep block lists":   strings.Repeat("- ", MaxSize/8),
		"deep keys":          strings.Repeat("? ", MaxSize/8),
		"many anchors":       strings.Repeat("&a ", MaxSize/8),
		"many tags":          strings.Repeat("!!str ", MaxSize/8),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse("bulkhead.yaml", []byte(data)); err == nil {
				t.Error("was accepted")
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/good/*.yaml", "testdata/faults/*.yaml"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Parse("/srv/team/bulkhead.yaml", data)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\x00\x1b\u009b\u202e") {
				t.Errorf("control characters reach the message: %q", err)
			}
			return
		}
		again, err := Parse("/srv/team/bulkhead.yaml", rendered(m))
		if err != nil {
			t.Fatalf("what was valid is refused when written out: %v\n%s", err, rendered(m))
		}
		if diff := cmp.Diff(m, again, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(Destination{}, "Line", "Position"), cmpopts.IgnoreFields(HostFile{}, "Position"), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); diff != "" {
			t.Errorf("changed when written out (-first +second):\n%s", diff)
		}
	})
}

func TestThePublishedExamplesAreValid(t *testing.T) {
	files, _ := filepath.Glob("../../examples/*/bulkhead.yaml")
	if len(files) == 0 {
		t.Skip("no examples yet")
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(file, data); err != nil {
			t.Error(err)
		}
	}
}
