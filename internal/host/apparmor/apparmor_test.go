package apparmor

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/engine"
)

func spec() *engine.Spec {
	return &engine.Spec{
		Team: "pair", Agent: "writer", Name: "runtime", Role: engine.RoleRuntime,
		Mounts: []engine.Mount{
			{Kind: engine.MountTmpfs, Target: "/tmp", Writable: true},
			{Kind: engine.MountBind, Source: "/x", Target: "/workspace", Writable: true, Exec: true},
			{Kind: engine.MountBind, Source: "/y", Target: "/etc/hosts"},
		},
	}
}

func TestWhatIsNotWritableInTheSpecIsNotInTheProfile(t *testing.T) {
	text := Profile(spec(), "abi/3.0")
	for _, want := range []string{
		"abi <abi/3.0>,\n", "profile bulkhead.pair.writer.runtime flags=(attach_disconnected) {\n",
		`  "/workspace/**" rwkl,` + "\n", `  "/tmp/**" rwkl,` + "\n", `  deny "/tmp/**" mx,` + "\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	// Absent is refused: apparmor.d(5).
	for _, bad := range []string{"hosts", "capability", "mount", "pivot_root", "userns", "io_uring", "change_profile", "network packet", "inet raw", `deny "/workspace`} {
		if strings.Contains(text, bad) {
			t.Errorf("%q is in\n%s", bad, text)
		}
	}
}

// The real compiler reads the profile, without a kernel that would load it.
func TestTheProfileIsCompiledByTheRealParser(t *testing.T) {
	parser, err := exec.LookPath("apparmor_parser")
	if err != nil {
		t.Fatal("apt install apparmor: ", err)
	}
	l := New()
	abi := l.abi()
	if abi == "" {
		t.Fatal("this host's apparmor knows none of the versions of the language")
	}
	strange := spec()
	strange.Mounts = append(strange.Mounts,
		engine.Mount{Target: "/a b\"c,d}e#f@{g}*[h]^\\i\x01ü", Writable: true})
	for _, s := range []*engine.Spec{spec(), {Team: "pair", Agent: "writer", Role: engine.RoleGateway}, strange} {
		cmd := exec.CommandContext(t.Context(), parser, "--skip-kernel-load", "--skip-cache", "--features-file", filepath.Join(abis, abi), "--stdout")
		cmd.Stdin = strings.NewReader(Profile(s, abi))
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil || !strings.Contains(string(out), Name(s)) {
			t.Errorf("%v: %s: %d bytes of policy\n%s", err, errs.String(), len(out), Profile(s, abi))
		}
	}
}

// FuzzQuote: whatever a path holds, the rule ends where its quotes end, and
// matches that path alone.
func FuzzQuote(f *testing.F) {
	for _, s := range []string{"/workspace", "/a b", `/a"b`, "/x/**", "/x/", "/a*", `/\`, "/,", "/\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, p string) {
		q := quote(p)
		inner, begins := strings.CutPrefix(q, `"`)
		inner, ends := strings.CutSuffix(inner, `"`)
		if !begins || !ends {
			t.Fatalf("%q becomes %q", p, q)
		}
		want, suffix := p, ""
		for _, s := range []string{"/**", "/"} {
			if strings.HasSuffix(p, s) {
				suffix = s
				break
			}
		}
		want = strings.TrimSuffix(want, suffix)
		inner = strings.TrimSuffix(inner, suffix)
		var got []byte
		for i := 0; i < len(inner); i++ {
			c := inner[i]
			switch {
			case c != '\\':
				if strings.IndexByte(special, c) >= 0 || c <= ' ' || c >= 0x7f {
					t.Fatalf("%q: %q is bare in %q", p, c, q)
				}
				got = append(got, c)
			case i+3 < len(inner) && inner[i+1] >= '0' && inner[i+1] <= '3':
				got = append(got, (inner[i+1]-'0')<<6|(inner[i+2]-'0')<<3|(inner[i+3]-'0'))
				i += 3
			default:
				i++
				got = append(got, inner[i])
			}
		}
		if string(got) != want {
			t.Fatalf("%q becomes %q, which is %q", p, q, got)
		}
	})
}

func TestTheKernelsListIsRead(t *testing.T) {
	got := parseHeld("bulkhead.a.b.runtime (enforce)\n/usr/bin/man (complain)\nodd\nname (with) (kill)\n")
	if len(got) != 3 || got["bulkhead.a.b.runtime"] != "enforce" || got["/usr/bin/man"] != "complain" || got["name (with)"] != "kill" {
		t.Errorf("%q", got)
	}
}

func TestAHostWithoutAppArmorChangesNothing(t *testing.T) {
	l := New()
	l.root = t.TempDir()
	s := spec()
	s.AppArmor = "left over"
	if err := l.Ensure(t.Context(), s); err != nil || s.AppArmor != "" {
		t.Errorf("%v, %q", err, s.AppArmor)
	}
	if err := l.Remove("pair", "writer"); err != nil {
		t.Error(err)
	}
}

// A host that has AppArmor and no parser, or whose kernel does not hold the
// profile afterwards, starts nothing.
func TestAHostWhoseProfileIsNotEnforcedIsRefused(t *testing.T) {
	for name, x := range map[string]struct {
		parser, held, want string
	}{
		"no parser":     {"", "", "apt install apparmor"},
		"it fails":      {"echo broken; exit 1", "", "broken"},
		"nothing comes": {"exit 0", "", "does not hold"},
		"complain":      {"exit 0", "bulkhead.pair.writer.runtime (complain)\n", "does not hold"},
	} {
		t.Run(name, func(t *testing.T) {
			l := New()
			l.root = t.TempDir()
			put(t, l.root, Enabled, "Y\n", 0o644)
			put(t, l.root, profiles, x.held, 0o644)
			if x.parser != "" {
				put(t, l.root, Parsers[0], "#!/bin/sh\ncat > /dev/null\n"+x.parser+"\n", 0o755)
			}
			if err := l.Ensure(t.Context(), spec()); err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

func put(t *testing.T, root, name, text string, mode os.FileMode) {
	t.Helper()
	p := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}
