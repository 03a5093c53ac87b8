package imagecmd

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"bulkhead/internal/client"
	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
)

func TestATarWithoutFilesIsNoImage(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: files of the store are root's")
	}
	host := layout.Host{State: t.TempDir()}
	zeros := filepath.Join(t.TempDir(), "zeros.tar")
	if err := os.WriteFile(zeros, make([]byte, 1024), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tar := range []string{os.DevNull, zeros} {
		c := Command(host)
		c.SetArgs([]string{"import", tar, "x"})
		c.SetOut(&bytes.Buffer{})
		c.SetErr(&bytes.Buffer{})
		err := c.ExecuteContext(t.Context())
		var known *client.Error
		if !errors.As(err, &known) || known.Exit != wire.ExitBadInput || known.Mend == "" {
			t.Errorf("%s: %v; want a mistake of the command line", tar, err)
		}
		if _, err := os.Stat(host.Image("x")); err == nil {
			t.Errorf("%s became an image", tar)
		}
	}
}
