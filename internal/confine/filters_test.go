package confine

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write the compiled filters anew")

func TestFiltersAreThoseOfTheRules(t *testing.T) {
	for _, a := range architectures {
		want := map[string]rules{filterCell: cellRules(a, false), filterCellPtrace: cellRules(a, true), filterSeal: sealRules(a)}
		for _, r := range roles {
			want[string(r)] = rulesFor(r, a)
		}
		dir := filepath.Join("filters", a.name)
		for name, r := range want {
			f, err := compile(r)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, name+".bpf")
			if *update {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, f.Marshal(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			have, err := filters.ReadFile(path)
			if err != nil && *update {
				continue // this test's own program holds the former ones
			}
			if err != nil || !bytes.Equal(have, f.Marshal()) && !*update {
				t.Errorf("%s is not what the rules say (%v); to mend: go test ./internal/confine -update", path, err)
			}
		}
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(files) != len(want) {
			t.Errorf("%s holds %d filters, want %d", dir, len(files), len(want))
		}
	}
}

func FuzzParseFilter(f *testing.F) {
	f.Add([]byte{})
	for _, r := range roles {
		raw, err := ForRole(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw.Marshal())
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := parseFilter(raw)
		if err == nil && !bytes.Equal(p.Marshal(), raw) {
			t.Error("what was parsed is not what was given")
		}
	})
}
