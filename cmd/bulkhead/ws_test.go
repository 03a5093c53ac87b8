package main

import (
	"os"
	"path/filepath"
	"testing"

	"bulkhead/internal/wire"
)

func TestWhatDiffersInAWorkspaceIsShown(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for p, text := range map[string]string{"agent/changed": "new", "agent/added": "x", "agent/same": "1", "mine/changed": "old", "mine/own": "y", "mine/same": "1"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(p)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, p), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/shadow", filepath.Join(dir, "agent", "link")); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(dir, "agent"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	socket := answers(t, map[string]any{wire.VerbWorkspace: f})
	t.Chdir(dir)
	for file, format := range map[string]string{
		filepath.Join(here, "testdata", "screens", "ws-diff.txt"):                           "--json=false",
		filepath.Join(here, "..", "..", "docs", "contracts", "json", "workspace-diff.json"): "--json",
	} {
		out, errout, code := said(t, "ws", "diff", "writer", "mine", "--team", "pair", "--socket", socket, format)
		if code != 0 || errout != "" {
			t.Errorf("%d, %s", code, errout)
		}
		golden(t, file, out)
	}
}
