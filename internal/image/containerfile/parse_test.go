package containerfile

import (
	"errors"
	"path"
	"slices"
	"strings"
	"testing"
)

const digest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestAPlanStandsForItself(t *testing.T) {
	p, err := Parse("Containerfile", `# syntax=docker/dockerfile:1
ARG BASE=base
FROM ${BASE} AS one
ARG V=1.${X:-2} BASE
ENV A="x y" B='$V' PATH=/opt/bin:$PATH
WORKDIR /srv
WORKDIR ${A:+app}
RUN echo "$V" \
  # a comment between

  && true
run ["tool", "a b"]
SHELL ["/bin/ash", "-ec"]
RUN exit
COPY a b* ../etc/
COPY ["with space", "/file"]
COPY . .
EXPOSE 80
CMD ["x"]
`)
	if err != nil {
		t.Fatal(err)
	}
	if p.Base != "base" || len(p.Notes) != 2 || !strings.HasPrefix(p.Notes[0], "Containerfile:18:1: EXPOSE is not used") {
		t.Errorf("%q %q", p.Base, p.Notes)
	}
	want := []Step{
		{Kind: KindWorkdir, Line: 6, Dir: "/srv"},
		{Kind: KindWorkdir, Line: 7, Dir: "/srv/app"},
		{Kind: KindRun, Line: 8, Dir: "/srv/app", Argv: []string{"/bin/sh", "-c", `echo "$V"   && true`}},
		{Kind: KindRun, Line: 12, Dir: "/srv/app", Argv: []string{"tool", "a b"}},
		{Kind: KindRun, Line: 14, Dir: "/srv/app", Argv: []string{"/bin/ash", "-ec", "exit"}},
		{Kind: KindCopy, Line: 15, Dir: "/srv/app", Sources: []string{"a", "b*"}, Dest: "/srv/etc", Folder: true},
		{Kind: KindCopy, Line: 16, Dir: "/srv/app", Sources: []string{"with space"}, Dest: "/file"},
		{Kind: KindCopy, Line: 17, Dir: "/srv/app", Sources: []string{"."}, Dest: "/srv/app", Folder: true},
	}
	env := []string{"A=x y", "B=$V", "BASE=base", "PATH=/opt/bin:" + defaultPath, "V=1.2"}
	if len(p.Steps) != len(want) {
		t.Fatalf("%d steps: %+v", len(p.Steps), p.Steps)
	}
	for i, got := range p.Steps {
		w := want[i]
		if w.Kind != got.Kind || w.Line != got.Line || w.Dir != got.Dir || w.Dest != got.Dest || w.Folder != got.Folder || !slices.Equal(w.Argv, got.Argv) || !slices.Equal(w.Sources, got.Sources) {
			t.Errorf("%+v\nwant %+v", got, w)
		}
		if got.Kind == KindRun && !slices.Equal(got.Env, env) {
			t.Errorf("environment %q", got.Env)
		}
	}
}

func TestFaultsAreNamedWithTheirPlaceAndMendAllAtOnce(t *testing.T) {
	_, err := Parse("C", "FROM debian:12\nRUN --mount=type=cache true\nADD a b\n  COPY --chown=1 a b\nRUN cat \\\n <<EOF\nCOPY ../a b\nENV X=$NOPE\nARG NAKED\nHELO\nFROM x")
	if err == nil {
		t.Fatal("taken")
	}
	for _, want := range []string{
		`C:1:6: "debian:12" has no digest: a tag can be moved`, "C:2:5: RUN with --mount: leave it out", "C:3:1: ADD is not supported: use COPY",
		"C:4:8: COPY with --chown: leave it out: everything", "C:6:2: a here-doc: put the text into a file", `C:7:6: "../a" leads out of the context`,
		"C:8:7: NOPE is not set here: declare it", "C:9:5: NAKED has no default", "C:10:1: HELO says nothing", "C:11:1: a second FROM: one stage",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("missing: %s", want)
		}
	}
	if t.Failed() {
		t.Log(err)
	}
}

func TestWhatIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "1:1: no FROM",
		"RUN true":                     "RUN before FROM",
		"FROM":                         "FROM says nothing",
		"FROM debian" + digest:         "write the registry's name as well",
		"FROM r.example/debian:12":     "has no digest",
		"FROM $B":                      "B is not set here",
		"FROM --platform=x base":       "images are for this host's architecture",
		"FROM a b":                     "FROM takes one image",
		"FROM UPPER":                   "a name that bulkhead image list shows",
		"# escape=`\nFROM base":        "another escape character",
		"FROM base\nRUN []":            "an empty command",
		"FROM base\nCOPY --from=x a b": "one stage",
		"FROM base\nCOPY a":            "sources and a destination",
		"FROM base\nCOPY [ b":          "is no pattern",
		"FROM base\nENV A b":           "ENV without =",
		"FROM base\nENV A='b":          "not closed",
		"FROM base\nENV A=${B":         "not closed",
		"FROM base\nENV A=${B:?x}":     "is not understood",
		"FROM base\nENV A=b c":         `"c" is not NAME=value`,
		"FROM base\nONBUILD RUN x":     "ONBUILD is not supported",
		"FROM base\nSHELL sh":          "not a list",
		"FROM base\nWEIRD x":           `"WEIRD" is not an instruction`,
		"FROM base\nRUN a\x00":         "NUL",
	} {
		_, err := Parse("C", text)
		var f *Fault
		if err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, &f) || f.Mend == "" {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestWhatIsTaken(t *testing.T) {
	for _, text := range []string{
		"FROM scratch", "FROM registry.example/a/b" + digest, "FROM base\r\nRUN a\r\n", "FROM base\nRUN cat <<<x $((1 << 2))", `FROM base` + "\nRUN a \\",
	} {
		if _, err := Parse("C", text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestIgnoreFile(t *testing.T) {
	g, err := parseIgnore(".containerignore", "# comment\n\n/node_modules\n*.log\n**/secret*\na/b/\n")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"node_modules": true, "node_modules/x/y": true, "x/node_modules": false, "a.log": true, "x/a.log": false,
		"secret": true, "x/y/secrets/z": true, "a/b": true, "a/b/c": true, "a/bc": false, ".": false, "a": false,
	} {
		if got := g.match(name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
	_, err = parseIgnore("f", "!keep\na/**\n[")
	for _, want := range []string{"f:1:1: an exception", "f:2:1: **", "f:3:1: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("FROM base\nRUN a \\\n b\nCOPY [\"a\",\"b\"]\nENV A=${B:-c} \"D\"=$A\nARG x='y'\nWORKDIR ..")
	f.Add("FROM a\nENV A=$\nENV \\")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse("C", text)
		if err != nil {
			var fault *Fault
			if !errors.As(err, &fault) || fault.Line < 1 || fault.Column < 1 {
				t.Fatalf("no place: %v", err)
			}
			return
		}
		for _, s := range p.Steps {
			if !path.IsAbs(s.Dir) || s.Kind == KindCopy && (!path.IsAbs(s.Dest) || len(s.Sources) == 0) || s.Kind == KindRun && len(s.Argv) == 0 {
				t.Errorf("%q: %+v", text, s)
			}
			for _, source := range s.Sources {
				if strings.HasPrefix(source, "/") || slices.Contains(strings.Split(source, "/"), "..") {
					t.Errorf("%q leads out of the context", source)
				}
			}
		}
	})
}

func FuzzIgnore(f *testing.F) {
	f.Add("a/*\n**/b", "x/b/c")
	f.Fuzz(func(_ *testing.T, text, name string) {
		if g, err := parseIgnore("f", text); err == nil {
			g.match(path.Clean("/" + name)[1:] + "x")
		}
	})
}
