package team

import (
	"strings"
	"testing"

	"golang.org/x/net/publicsuffix"
)

// The reference is the library; ours must judge every rule and its neighbours
// as it does.
func TestSuffixesAreThoseOfTheLibrary(t *testing.T) {
	rules := 0
	for rule := range strings.Lines(suffixes) {
		rule = strings.TrimSpace(rule)
		rules++
		base := strings.TrimPrefix(strings.TrimPrefix(rule, "!"), "*.")
		names := []string{base, "x." + base, "y.x." + base}
		if _, parent, ok := strings.Cut(base, "."); ok {
			names = append(names, parent, "x."+parent)
		}
		for _, n := range names {
			ps, _ := publicsuffix.PublicSuffix(n)
			if got, want := isSuffix(n), ps == n; got != want {
				t.Errorf("isSuffix(%q) is %t, the library says %t (its suffix is %q)", n, got, want, ps)
			}
		}
	}
	if rules < 9000 {
		t.Errorf("the list holds %d rules only", rules)
	}
}

func TestAWildcardNeverCoversNamesOfDifferentOwners(t *testing.T) {
	for name, want := range map[string]bool{
		"com": true, "co.uk": true, "github.io": true, "ck": true, "corp": true, "x.ck": true,
		"www.ck": false, "example.com": false, "api.example.co.uk": false,
		"amazonaws.com":    true,  // buckets and instances of everybody lie below it
		"kawasaki.jp":      true,  // *.kawasaki.jp is a rule
		"city.kawasaki.jp": false, // and this its exception
		"me.github.io":     false,
	} {
		if got, found := suffixBelow(name); found != want {
			t.Errorf("suffixBelow(%q) gives %q, %t; want %t", name, got, found, want)
		}
	}
}
