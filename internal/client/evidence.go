package client

import (
	"context"
	"errors"
	"io"

	"bulkhead/internal/attest"
	"bulkhead/internal/wire"
)

// Evidence gives the content of one file of a team's history.
func (c *Client) Evidence(ctx context.Context, req wire.EvidenceFileRequest) ([]byte, error) {
	var e wire.EvidenceEntry
	files, err := c.call(ctx, wire.VerbEvidenceFile, req, &e, nil)
	defer closeAll(files)
	if err != nil {
		return nil, err
	}
	if len(files) != 1 {
		return nil, &Error{What: "the warden passed no file", Mend: "use the bulkhead program of the warden's build", Exit: wire.ExitFailed}
	}
	raw, err := io.ReadAll(io.LimitReader(files[0], attest.MaxFile+1))
	if err == nil && int64(len(raw)) != e.Bytes {
		err = errors.New("it is not as long as the warden said")
	}
	if err != nil {
		return nil, &Error{What: "the evidence " + e.ID + " cannot be read: " + err.Error(), Exit: wire.ExitFailed, Err: err}
	}
	return raw, nil
}
