package fs

import (
	"context"
	"io"
)

// Large files go past JSON: a transport puts the body, or where it is to go,
// into the call's context and calls fs_write or fs_read as always. So name,
// rate, manifest, path, quota and record are the same ones.

type bodyKey struct{}

type body struct {
	r    io.Reader
	size int64
}

// WithBody gives the content of an fs_write that comes as a stream. size is -1
// when it is not known.
func WithBody(ctx context.Context, r io.Reader, size int64) context.Context {
	return context.WithValue(ctx, bodyKey{}, body{r, size})
}

type sinkKey struct{}

// WithSink gives where an fs_read puts its file. sink must not keep it.
func WithSink(ctx context.Context, sink func(*File) error) context.Context {
	return context.WithValue(ctx, sinkKey{}, sink)
}
