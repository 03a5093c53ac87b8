package warden

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/wire"
)

// backup lets the adapter write a copy into its own folder while it goes on,
// and passes the copy's descriptor to the operator. Root opens it there as it
// opens everything in a folder that is not root's, and unlinks it: whatever the
// adapter's id might do in its folder, the operator has this file.
func (c *call) backup() error {
	var req wire.TeamRequest
	if err := json.Unmarshal(c.body, &req); err != nil {
		return badInput("the request does not decode: "+err.Error(), "use the bulkhead program of the same build")
	}
	a, err := c.w.adapterOf(req.Team)
	if err != nil {
		return err
	}
	name := "backup-" + strings.ToLower(rand.Text()[:10])
	body, err := json.Marshal(protocol.Backup{Path: insideData + "/" + name})
	if err != nil {
		return err
	}
	_, err = a.relay(c.ctx, protocol.VerbBackup, body)
	c.w.operatorDid(a, c.uid, protocol.VerbBackup, "", err)
	f, oerr := a.takeFile(name)
	if err = errors.Join(err, oerr); err != nil {
		if f != nil {
			_ = f.Close()
		}
		return err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("warden: backup: %w", err)
	}
	return c.conn.Send(c.id, wire.VerbResult, wire.BackupResult{SchemaVersion: 1, Team: a.place.Team, Bytes: st.Size()}, f)
}

// takeFile opens a plain file of the adapter's folder and unlinks its name.
// There is none when the adapter failed.
func (a *adapterRun) takeFile(name string) (*os.File, error) {
	d, err := tree.OpenLeaf(a.place.AdapterData(), a.uid)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	dir := int(d.Fd()) // #nosec G115 -- a descriptor
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, errors.New("the adapter left no copy")
	}
	if err != nil {
		return nil, fmt.Errorf("warden: backup: %w", err)
	}
	f := os.NewFile(uintptr(fd), name) // #nosec G115 -- a descriptor
	for _, suffix := range []string{"", "-journal", "-wal", "-shm"} {
		if err := unix.Unlinkat(dir, name+suffix, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return f, fmt.Errorf("warden: backup: %w", err)
		}
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file", filepath.Join(a.place.AdapterData(), name))
	}
	if err != nil {
		return f, fmt.Errorf("warden: backup: %w", err)
	}
	return f, nil
}
