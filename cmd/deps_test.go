// Package cmd_test keeps the programs apart: what each may link is a list, so
// that a small privileged program does not grow an HTTP server by an import
// three packages away.
package cmd_test

import (
	"bytes"
	"errors"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the lists anew from what the programs link now")

// never are packages that a program must not link whatever its list says:
// these are decisions (docs/DESIGN.md), the lists only make growth visible.
// An entry covers everything below it.
var never = map[string][]string{
	"bulkhead-warden": {"net/http", "database", "html/template", "modernc.org", "github.com/golang-jwt", "github.com/spf13/cobra", "bulkhead/internal/image"},
	"bulkhead-shim":   {"net/http", "database", "html/template", "github.com/goccy", "github.com/spf13/cobra"},
	"bulkhead-net":    {"net/http", "database", "html/template", "github.com/goccy", "github.com/spf13/cobra"},
	"bulkhead-probe":  {"net/http", "database", "html/template", "github.com/goccy", "github.com/spf13/cobra"},
	"bulkhead-serve":  {"github.com/spf13/cobra", "github.com/google/nftables"},
	"bulkhead-image":  {"database", "html/template", "github.com/spf13/cobra", "github.com/google/nftables", "bulkhead/internal/host"},
	"bulkhead":        {"database", "github.com/google/nftables"},
}

// nowhere are packages for tests only.
var nowhere = []string{"testing", "bulkhead/test", "github.com/miekg", "pgregory.net", "github.com/google/go-cmp", "github.com/rogpeppe"}

// named are imports that only name a type, for which the linker keeps nothing:
// publicsuffix offers itself to net/http/cookiejar. TestNoHTTPIsLinked looks
// into the programs to see that it stays so.
var named = map[string]string{"golang.org/x/net/publicsuffix": "net/http/cookiejar"}

func TestNoHTTPIsLinked(t *testing.T) {
	for program, banned := range never {
		if !slices.Contains(banned, "net/http") {
			continue
		}
		if _, err := os.Stat(program); err != nil {
			continue
		}
		t.Run(program, func(t *testing.T) {
			exe := filepath.Join(t.TempDir(), program)
			build := exec.CommandContext(t.Context(), "go", "build", "-o", exe, "./"+program) // #nosec G204 -- our own folders
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			symbols, err := exec.CommandContext(t.Context(), "go", "tool", "nm", exe).Output() // #nosec G204 -- built above
			if err != nil || !bytes.Contains(symbols, []byte(" main.main")) {
				t.Fatalf("go tool nm shows no main.main: %v", err)
			}
			for line := range strings.Lines(string(symbols)) {
				if strings.Contains(line, " net/http.(*Server)") || strings.Contains(line, " net/http.(*Transport)") || strings.Contains(line, " net/http.(*Client)") {
					t.Errorf("%s holds %s", program, strings.TrimSpace(line))
				}
			}
		})
	}
}

func TestProgramsLinkOnlyWhatTheirListAllows(t *testing.T) {
	dirs, err := filepath.Glob("bulkhead*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no programs found: %v", err)
	}
	for _, program := range dirs {
		t.Run(program, func(t *testing.T) {
			have := deps(t, program)
			for _, d := range have {
				if i := slices.IndexFunc(append(never[program], nowhere...), func(n string) bool { return d == n || strings.HasPrefix(d, n+"/") }); i >= 0 {
					t.Errorf("%s links %s, which it never may: see go list -deps, or go mod why", program, d)
				}
			}
			file := filepath.Join("testdata", "deps", program+".txt")
			if *update {
				text := "# Packages that " + program + " may link. After a wanted change: go test ./cmd -update\n" + strings.Join(have, "\n") + "\n"
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			allowed := readList(t, file)
			for _, d := range have {
				if !slices.Contains(allowed, d) {
					t.Errorf("%s links %s, which is not in cmd/%s: drop the import, or run go test ./cmd -update and explain it in the commit", program, d, file)
				}
			}
			for _, a := range allowed {
				if !slices.Contains(have, a) {
					t.Errorf("cmd/%s allows %s, which %s no longer links: run go test ./cmd -update", file, a, program)
				}
			}
		})
	}
}

// deps are the packages that a program links, without the standard library's
// internals and vendored copies: those follow from the rest.
func deps(t *testing.T, program string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{.ImportPath}} {{.Standard}} {{join .Imports \" \"}}", "./"+program) // #nosec G204 -- our own folders
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, said.String())
	}
	imports, std := map[string][]string{}, map[string]bool{}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		imports[f[0]], std[f[0]] = f[2:], f[1] == "true"
	}
	seen := map[string]bool{}
	var visit func(string)
	visit = func(p string) {
		if seen[p] {
			return
		}
		seen[p] = true
		for _, i := range imports[p] {
			if named[p] != i {
				visit(i)
			}
		}
	}
	visit("bulkhead/cmd/" + program)
	var all []string
	for p := range seen {
		if internal := strings.Contains("/"+p+"/", "/internal/") || strings.HasPrefix(p, "vendor/"); !std[p] || !internal {
			all = append(all, p)
		}
	}
	slices.Sort(all)
	return all
}

func readList(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file) // #nosec G304 -- testdata
	if errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("cmd/%s is missing: run go test ./cmd -update, and read what it lists", file)
	}
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	return all
}
