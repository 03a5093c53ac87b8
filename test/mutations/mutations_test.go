package mutations

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"bulkhead/test/system/throwaway"
)

var (
	update = flag.Bool("update", false, "write docs/mutations.md")
	full   = flag.Bool("full", false, "make the attacks that take long as well, where prove notices anyway")
)

// mutantSource is the package that rewritten sources ask. It exists in the
// overlay alone.
const mutantSource = `package mutant

import (
	"os"
	"path/filepath"
)

// On says whether this process is one of the mutants: it is by its name.
func On(ids ...string) bool {
	for _, id := range ids {
		if filepath.Base(os.Args[0]) == id {
			return true
		}
	}
	return false
}

// Or gives a when it is the mutant, else b.
func Or[T any](id string, a, b T) T {
	if On(id) {
		return a
	}
	return b
}

// Zero gives nothing when it is the mutant, else v.
func Zero[T any](id string, v T) T { var none T; return Or(id, none, v) }

// Only gives v when it is the mutant, else nothing.
func Only[T any](id string, v T) T { var none T; return Or(id, v, none) }
`

const top = "../.."

// overlay writes the rewritten sources and gives the overlay's file.
func overlay(t *testing.T, dir string) string {
	t.Helper()
	text, original := map[string]string{}, map[string]string{}
	for _, e := range slices.Concat(readBack, editsOf(measures())) {
		if _, ok := original[e.file]; !ok {
			raw, err := os.ReadFile(filepath.Join(top, e.file))
			if err != nil {
				t.Fatal(err)
			}
			original[e.file], text[e.file] = string(raw), string(raw)
		}
		if n := strings.Count(original[e.file], e.old); n != 1 {
			t.Fatalf("%s has %d times, where one is expected: %q. The measure has moved: mend test/mutations/list_test.go", e.file, n, e.old)
		}
		if e.now != "" {
			if n := strings.Count(text[e.file], e.old); n != 1 {
				t.Fatalf("%s: another edit is in the way of %q", e.file, e.old)
			}
			text[e.file] = strings.Replace(text[e.file], e.old, e.now, 1)
		}
	}
	replace := map[string]string{}
	put := func(file, content string) {
		at := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(at, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		abs, err := filepath.Abs(filepath.Join(top, file))
		if err != nil {
			t.Fatal(err)
		}
		replace[abs] = at
	}
	for file, content := range text {
		put(file, strings.Replace(content, "import (", "import (\n\t\"bulkhead/internal/mutant\"", 1))
	}
	put("internal/mutant/mutant.go", mutantSource)
	raw, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(at, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return at
}

// editsOf lists each edit once.
func editsOf(list []measure) []edit {
	var out []edit
	for _, m := range list {
		for _, e := range m.edits {
			if !slices.Contains(out, e) {
				out = append(out, e)
			}
		}
	}
	return out
}

// refusedCalls reads from the source which calls the filter refuses by name.
func refusedCalls() []string {
	var out []string
	for _, file := range []string{"seccomp_calls.go", "seccomp_arch.go"} {
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(top, "internal/confine", file), nil, 0)
		if err != nil {
			panic(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			var list ast.Expr
			switch n := n.(type) {
			case *ast.ValueSpec:
				if n.Names[0].Name == "refusedCalls" {
					list = n.Values[0]
				}
			case *ast.KeyValueExpr:
				if k, ok := n.Key.(*ast.Ident); ok && k.Name == "refused" {
					list = n.Value
				}
			}
			if c, ok := list.(*ast.CompositeLit); ok {
				for _, e := range c.Elts {
					if name, err := strconv.Unquote(e.(*ast.BasicLit).Value); err == nil {
						out = append(out, name)
					}
				}
			}
			return true
		})
	}
	return out
}

func build(t *testing.T, args ...string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "go", append([]string{"build", "-trimpath"}, args...)...)
	c.Dir, c.Env = top, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("go build %v: %v\n%s", args, err, out)
	}
}

// TestSomebodyNoticesWhenAMeasureIsMissing takes each away.
func TestSomebodyNoticesWhenAMeasureIsMissing(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and a throwaway host")
	}
	dir := t.TempDir()
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil { // programs that every id runs
			t.Fatal(err)
		}
	}
	programs := filepath.Join(dir, "programs")
	if err := os.Mkdir(programs, 0o755); err != nil {
		t.Fatal(err)
	}
	build(t, "-overlay", overlay(t, dir), "-o", filepath.Join(dir, "subject"), "./test/mutations/cmd/subject")
	build(t, "-o", filepath.Join(dir, "judge"), "./test/mutations/cmd/judge")
	build(t, "-o", programs+"/", "./cmd/bulkhead-probe", "./cmd/bulkhead-shim", "./cmd/bulkhead-net", "./cmd/bulkhead-serve")
	list := measures()
	plan := Plan{Programs: "/var/lib/mutants/programs", Subject: "/var/lib/mutants/subject"}
	for _, m := range list {
		if *full {
			m.Attacks = append(m.Attacks, m.Also...)
		}
		plan.Mutants = append(plan.Mutants, m.Mutant)
	}
	noticed := ask(t, dir, plan)
	whole := noticed[0]
	if whole.ID != Whole || len(whole.Verify)+len(whole.Prove) > 0 {
		t.Fatalf("without any mutation something is amiss already: %+v", whole)
	}
	var rows []string
	for i, n := range noticed[1:] {
		m := Mutant{ID: n.ID, Measure: strings.TrimPrefix(n.ID, "nft: "), Place: "internal/host/nft/rules.go"}
		if strings.HasPrefix(n.ID, "mode: ") {
			m.Measure, m.Place = strings.TrimPrefix(n.ID, "mode: "), "internal/host/warden/agent.go"
			if strings.Contains(n.ID, "of a server") {
				m.Place = "internal/host/warden/service.go"
			}
		}
		if strings.HasPrefix(n.ID, "socket: ") {
			m.Measure, m.Place = strings.TrimPrefix(n.ID, "socket: "), "internal/host/warden/service_process.go"
		}
		if i < len(list) {
			m = list[i].Mutant
		}
		if m.ID != n.ID {
			t.Fatalf("the judge answers for %s where %s was asked", n.ID, m.ID)
		}
		if len(n.Verify)+len(n.Prove) == 0 {
			switch {
			case strings.HasPrefix(n.ID, "nft: rule") && !widens(n.ID):
				continue // less is let out without it, or another rule refuses the same
			case len(m.Attacks) > 0 && !slices.ContainsFunc(m.Attacks, func(a string) bool { return !slices.Contains(whole.Lacks, a) }):
				t.Logf("%s: this kernel lacks what %v would use", n.ID, m.Attacks)
			default:
				t.Errorf("%s (%s): nobody notices that it is missing (%s)", n.ID, m.Measure, n.Start)
			}
		}
		rows = append(rows, fmt.Sprintf("| %s | `%s` | %s | %s |", m.Measure, m.Place, named(n.Verify), named(n.Prove)))
	}
	compare(t, rows)
}

// widens says whether a rule is one of those without which more is let out.
func widens(id string) bool {
	return strings.Contains(id, "vmap") || strings.Contains(id, "reject") && !strings.Contains(id, "tcp reset")
}

func named(list []string) string {
	if len(list) == 0 {
		return "-"
	}
	return "`" + strings.Join(list, "`, `") + "`"
}

// ask runs the judge in a throwaway host. What was built is copied to where
// root owns every folder on the way.
func ask(t *testing.T, dir string, plan Plan) []Noticed {
	t.Helper()
	raw, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	script := "set -e; umask 022; mkdir -p /var/lib/mutants; cp -r " + dir + "/programs " + dir + "/subject /var/lib/mutants/; exec " + dir + "/judge"
	err = throwaway.Command{
		Argv: []string{"sh", "-c", script}, Stdin: bytes.NewReader(raw), Stdout: &out, Stderr: &errs, Options: []throwaway.Option{throwaway.Bind(dir)},
	}.Run(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatalf("the judge: %v\n%s", err, errs.String())
	}
	var noticed []Noticed
	if err := json.Unmarshal(out.Bytes(), &noticed); err != nil {
		t.Fatalf("the judge says %.200q: %v", out.String(), err)
	}
	return noticed
}

// compare holds the table against the document: the measures must be the same.
// Who noticed may differ between kernels, and is written by -update.
func compare(t *testing.T, rows []string) {
	t.Helper()
	const begin, end = "<!-- mutations: go test ./test/mutations -update -->\n", "<!-- end -->\n"
	path := filepath.Join(top, "docs/mutations.md")
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(doc), begin)
	old, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table", path)
	}
	const head = "| measure | where | verify notices by | prove notices by |\n|---|---|---|---|\n"
	if *update {
		text := before + begin + head + strings.Join(rows, "\n") + "\n" + end + after
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, want := firstColumns(strings.Join(rows, "\n")), firstColumns(strings.TrimPrefix(old, head)); !slices.Equal(got, want) {
		t.Errorf("the measures changed: go test ./test/mutations -update, and look at what changed in %s\n%s\n%s", path, got, want)
	}
	if strings.Contains(old, "| - | - |") {
		t.Errorf("%s has a row that nobody noticed", path)
	}
}

// firstColumns gives measure and place of each row.
func firstColumns(table string) []string {
	var out []string
	for line := range strings.Lines(table) {
		if f := strings.Split(line, " | "); len(f) > 2 {
			out = append(out, f[0]+f[1])
		}
	}
	return out
}
