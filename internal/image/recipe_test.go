package image

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestRecipeFaultsAreToldAtOnce(t *testing.T) {
	const good = "apiVersion: bulkhead/image/v1\nname: x\n"
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"good":           {good + "debian: [bash, libstdc++6]\nnpm: {packages: ['@a/b@1.2.3', 'c@0.1.0-rc.1'], lock: l.json}\nfiles: [{path: /etc/motd, text: hi, mode: '0644'}]\nlinks: {/usr/bin/awk: mawk}\n", nil},
		"empty":          {"", []string{"apiVersion", "image name", "recipe is empty"}},
		"only a name":    {good, []string{"recipe is empty"}},
		"unknown key":    {good + "debain: [bash]\n", []string{"debain"}},
		"option as name": {good + "debian: ['-oAPT::x=y', bash]\n", []string{"debian[0]"}},
		"version range":  {good + "npm: {packages: ['a@^1.0.0', 'b', 'git+ssh://x'], lock: l.json}\n", []string{"packages[0]", "packages[1]", "packages[2]"}},
		"some scripts":   {good + "npm: {packages: [a@1.0.0], lock: l.json, scripts: ['@a/b', c]}\n", nil},
		"script names":   {good + "npm: {packages: [a@1.0.0], lock: l.json, scripts: [a@1.0.0, --all]}\n", []string{"scripts[0]", "scripts[1]"}},
		"odd scripts":    {good + "npm: {packages: [a@1.0.0], lock: l.json, scripts: {a: b}}\n", []string{"npm.scripts"}},
		"lock elsewhere": {good + "npm: {packages: [a@1.0.0], lock: ../../etc/shadow}\n", []string{"npm.lock"}},
		"file faults":    {good + "files: [{path: etc/x, text: a}, {path: /etc/../x, text: a}, {path: /x, from: /etc/shadow}, {path: /x, text: a, mode: '4755'}]\n", []string{"files[0]", "files[1]", "files[2]", "files[3]"}},
		"several faults": {"apiVersion: v0\nname: ../x\ndebian: [A]\n", []string{"v0", "../x", "debian[0]"}},
		"not YAML":       {"a: [", []string{"not a recipe"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseRecipe([]byte(c.text))
			if (err != nil) != (len(c.want) > 0) {
				t.Fatalf("error is %v", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q is not told in:\n%v", w, err)
				}
			}
		})
	}
}

func TestScriptsKeepTheirFormOnTheWayToTheFetcher(t *testing.T) {
	for form, want := range map[string]Scripts{"true": {All: true}, "false": {}, `["@a/b","c"]`: {Only: []string{"@a/b", "c"}}} {
		r, err := ParseRecipe([]byte("apiVersion: bulkhead/image/v1\nname: x\nnpm: {packages: [a@1.0.0], lock: l.json, scripts: " + form + "}\n"))
		if err != nil {
			t.Fatal(err)
		}
		var got Scripts
		text, err := json.Marshal(r.NPM.Scripts)
		if err != nil || string(text) != form || json.Unmarshal(text, &got) != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s became %s and %+v, %v", form, text, got, err)
		}
	}
}

func TestRecipeDigestCoversFilesBesideIt(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "image.yaml")
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("image.yaml", "apiVersion: bulkhead/image/v1\nname: x\nnpm: {packages: [a@1.0.0], lock: l.json}\nfiles: [{path: /x, from: x}]\n")
	seen := map[string]string{}
	for _, c := range [][2]string{{"{}", "1"}, {"{} ", "1"}, {"{}", "2"}} {
		write("l.json", c[0])
		write("x", c[1])
		r, err := ReadRecipe(file)
		if err != nil {
			t.Fatal(err)
		}
		d, err := r.Digest()
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[d]; ok {
			t.Errorf("%q and %q have one digest", c, other)
		}
		seen[d] = c[0] + c[1]
	}
}

func FuzzParseRecipe(f *testing.F) {
	f.Add([]byte("apiVersion: bulkhead/image/v1\nname: x\ndebian: [bash]\nfiles: [{path: /x, text: y}]\nlinks: {/a: b}\n"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := ParseRecipe(text)
		if err != nil {
			return
		}
		for _, p := range r.Debian {
			if strings.HasPrefix(p, "-") {
				t.Errorf("package %q would be an option of apt-get", p)
			}
		}
		if _, err := r.Digest(); err != nil {
			t.Error(err)
		}
	})
}

func FuzzParseReference(f *testing.F) {
	f.Add("registry.example:5000/a/b@sha256:" + strings.Repeat("a", 64))
	f.Add("a@sha512:" + strings.Repeat("a", 128))
	f.Fuzz(func(t *testing.T, text string) {
		hex, err := ParseReference(text)
		if err == nil && (len(hex) != 64 || !strings.HasSuffix(text, "@sha256:"+hex) || strings.ContainsAny(text, " \x00\n")) {
			t.Errorf("%q is %s", text, hex)
		}
	})
}
