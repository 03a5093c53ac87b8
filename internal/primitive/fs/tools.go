package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"bulkhead/internal/deny"
	"bulkhead/internal/tool"
)

const elsewhere = "PUT or GET /v1/files/PATH takes and gives up to 104857600 bytes"

// Tools gives the rows of the tool table for these files.
func (s *Store) Tools() []tool.Tool {
	path := func(doc string, required bool) tool.Field {
		f := tool.Field{Name: "path", Type: tool.String, Doc: doc, Required: required, Max: MaxPath, Shown: true}
		if !required {
			f.Default = "."
		}
		return f
	}
	return []tool.Tool{
		{
			Name: "fs_write", Group: tool.Files, Effect: true, Run: s.write, MaxInput: MaxInline/3*4 + 64<<10, // base64, and the other fields
			Summary: "Write a file in your own folder, whole: it is made, with the folders above it, or replaced. Up to 4 MiB here; " + elsewhere + ".",
			Fields: []tool.Field{
				path("where, as in notes/today.md", true),
				{Name: "data", Aliases: []string{"content"}, Type: tool.Bytes, Max: MaxInline, Doc: "the content in base64; or give text"},
				{Name: "text", Type: tool.String, Max: MaxInline, Doc: "the content as text, instead of data"},
				{Name: "contentType", Type: tool.String, Max: maxType, Shown: true, Doc: "as in text/markdown; found out from name and content where it is not given"},
			},
		},
		{
			Name: "fs_read", Group: tool.Files, Run: s.read,
			Summary: "Read a file in your own folder, or a part of it. Up to 4 MiB at once; " + elsewhere + ".",
			Fields: []tool.Field{
				path("which file", true),
				{Name: "offset", Type: tool.Integer, Max: MaxFile, Default: int64(0), Doc: "the first byte to give", Shown: true},
				{Name: "length", Type: tool.Integer, Min: 1, Max: MaxInline, Doc: "how many bytes to give; without it: to the end", Shown: true},
				{Name: "as", Type: tool.String, Enum: []string{"base64", "text"}, Default: "base64", Doc: "how: data in base64, or text", Shown: true},
			},
		},
		{
			Name: "fs_list", Group: tool.Files, Run: s.list,
			Summary: "List what is in one of your own folders.",
			Fields:  []tool.Field{path("which folder; without it: the topmost", false)},
		},
		{
			Name: "fs_delete", Group: tool.Files, Effect: true, Run: s.remover,
			Summary: "Delete a file, or a folder that is empty, or a folder with everything in it.",
			Fields: []tool.Field{
				path("which file or folder", true),
				{Name: "recursive", Type: tool.Boolean, Default: false, Doc: "a folder with everything in it", Shown: true},
			},
		},
		{
			Name: "fs_mkdir", Group: tool.Files, Effect: true, Run: s.maker,
			Summary: "Make a folder, and those above it.",
			Fields:  []tool.Field{path("which folder", true)},
		},
		{
			Name: "fs_stat", Group: tool.Files, Run: s.stat,
			Summary: "Say what a path is: file or directory, size, content type, time of the last change.",
			Fields:  []tool.Field{path("which", true)},
		},
	}
}

func named(c *tool.Call) (Path, error) {
	p, reason := Parse(c.What(), c.In.String("path"))
	if reason != nil {
		return Path{}, reason
	}
	return p, nil
}

func (s *Store) write(ctx context.Context, c *tool.Call) (any, error) {
	p, err := named(c)
	if err != nil {
		return nil, err
	}
	b, streamed := ctx.Value(bodyKey{}).(body)
	given := 0
	if streamed {
		given++
	}
	if c.In.Has("data") {
		given++
		b = body{bytes.NewReader(c.In.Bytes("data")), int64(len(c.In.Bytes("data")))}
	}
	if c.In.Has("text") {
		given++
		text := c.In.String("text")
		b = body{strings.NewReader(text), int64(len(text))}
	}
	switch {
	case given != 1:
		r := tool.Refuse(deny.ToolInvalid, c.What(), "the content is wanted once", "give either data or text")
		r.Fields = []deny.Field{{Name: "data", Why: fmt.Sprintf("data, text and a body are given %d times together", given)}}
		return nil, r
	case !streamed && b.size > MaxInline:
		return nil, tool.Refuse(deny.ToolTooLarge, c.What(), fmt.Sprintf("within JSON a file may have %d bytes", MaxInline), elsewhere)
	}
	if err := c.Begin(ctx); err != nil {
		return nil, err
	}
	stays, err := s.keep(ctx, c, p, func(was) (was, bool) {
		data := c.In.Bytes("data")
		if c.In.Has("text") {
			data = []byte(c.In.String("text"))
		}
		return afterWrite(data), !streamed
	})
	if err != nil {
		return nil, err
	}
	w, err := s.Create(ctx, c.What(), p, b.size, c.In.String("contentType"))
	if err != nil {
		return nil, err
	}
	defer w.Abort()
	w.check = stays
	if _, err := io.Copy(struct{ io.Writer }{w}, b.r); err != nil {
		return nil, cut(c.What(), err)
	}
	return w.Commit()
}

// cut tells a body that broke off from a fault of ours.
func cut(what string, err error) error {
	var reason *deny.Reason
	if errors.As(err, &reason) {
		return err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		r := tool.Refuse(deny.ToolInvalid, what, "the body broke off", "send it again")
		r.Fields = []deny.Field{{Name: "data", Why: "it ended before its announced end"}}
		return r
	}
	return fmt.Errorf("%s: %w", what, err)
}

// content is what fs_read answers.
type content struct {
	Path        string  `json:"path"`
	Data        *[]byte `json:"data,omitempty"`
	Text        *string `json:"text,omitempty"`
	ContentType string  `json:"contentType"`
	SizeBytes   int64   `json:"sizeBytes"` // of the whole file
}

func (s *Store) read(ctx context.Context, c *tool.Call) (any, error) {
	p, err := named(c)
	if err != nil {
		return nil, err
	}
	f, err := s.Open(ctx, c.What(), p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := content{Path: f.Path, ContentType: f.ContentType, SizeBytes: f.SizeBytes}
	if sink, ok := ctx.Value(sinkKey{}).(func(*File) error); ok {
		return out, sink(f)
	}
	offset := c.In.Int("offset")
	length := max(f.SizeBytes-offset, 0)
	if c.In.Has("length") {
		length = min(length, c.In.Int("length"))
	}
	if length > MaxInline {
		return nil, tool.Refuse(deny.ToolTooLarge, c.What(), fmt.Sprintf("%d bytes are asked for; within JSON at most %d are given", length, MaxInline),
			"give offset and length; or "+elsewhere)
	}
	data := make([]byte, length)
	n, err := f.ReadAt(data, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read %q: %w", p, err)
	}
	data = data[:n]
	if c.In.String("as") == "base64" {
		out.Data = &data
		return out, nil
	}
	if !utf8.Valid(data) {
		return nil, tool.Refuse(deny.ToolConflict, c.What(), fmt.Sprintf("what is asked for of %q is not text in UTF-8", p), `give "as": "base64"; a part may cut a character in two`)
	}
	text := string(data)
	out.Text = &text
	return out, nil
}

func (s *Store) list(ctx context.Context, c *tool.Call) (any, error) {
	p, err := named(c)
	if err != nil {
		return nil, err
	}
	found, err := s.List(ctx, c.What(), p)
	if err != nil {
		return nil, err
	}
	return struct {
		Path    string  `json:"path"`
		Entries []Entry `json:"entries"`
	}{p.String(), found}, nil
}

func (s *Store) remover(ctx context.Context, c *tool.Call) (any, error) {
	p, err := named(c)
	if err != nil {
		return nil, err
	}
	if err := c.Begin(ctx); err != nil {
		return nil, err
	}
	stays, err := s.keep(ctx, c, p, func(b was) (was, bool) {
		return was{}, b.Kind != aFolder || !c.In.Bool("recursive") // a folder with what is in it is not kept
	})
	if err != nil {
		return nil, err
	}
	if err := s.delete(ctx, c.What(), p, c.In.Bool("recursive"), stays); err != nil {
		return nil, err
	}
	return struct {
		Path    string `json:"path"`
		Deleted bool   `json:"deleted"`
	}{p.String(), true}, nil
}

func (s *Store) maker(ctx context.Context, c *tool.Call) (any, error) {
	p, err := named(c)
	if err != nil {
		return nil, err
	}
	if err := c.Begin(ctx); err != nil {
		return nil, err
	}
	stays, err := s.keep(ctx, c, p, func(was) (was, bool) { return was{Kind: aFolder}, true })
	if err != nil {
		return nil, err
	}
	made, err := s.mkdir(ctx, c.What(), p, stays)
	if err != nil {
		return nil, err
	}
	return struct {
		Path    string `json:"path"`
		Created bool   `json:"created"`
	}{p.String(), made}, nil
}

func (s *Store) stat(ctx context.Context, c *tool.Call) (any, error) {
	p, err := named(c)
	if err != nil {
		return nil, err
	}
	return s.Stat(ctx, c.What(), p)
}
