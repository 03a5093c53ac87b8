package net

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"

	"bulkhead/internal/deny"
	"bulkhead/internal/tool"
)

// answer reads the body of the last answer, and closes it.
func (t *Tools) answer(ctx context.Context, c *tool.Call, from target, res *http.Response, redirects int) (any, error) {
	defer func() { _ = res.Body.Close() }()
	if res.ContentLength > MaxAnswer {
		return nil, t.failed(ctx, c, from.destination(), tooLarge(c))
	}
	out := Answer{Status: res.StatusCode, ContentType: res.Header.Get("Content-Type"), URL: from.String(), Redirects: redirects}
	var in io.Reader = &bounded{r: res.Body, left: MaxAnswer, over: tooLarge(c)}
	if strings.EqualFold(strings.TrimSpace(res.Header.Get("Content-Encoding")), "gzip") {
		in = &bounded{r: &gunzip{in: in}, left: MaxAnswer, over: tooLarge(c)}
		res.Header.Del("Content-Encoding") // of what was sent, not of what is shown
		res.Header.Del("Content-Length")
	}
	out.Headers = shownHeader(res.Header)
	var body bytes.Buffer
	_, err := io.CopyN(&body, in, smallAnswer)
	if err == nil { // there may be more
		select {
		case t.large <- struct{}{}:
			defer func() { <-t.large }()
		case <-ctx.Done():
			return nil, t.failed(ctx, c, from.destination(), ctx.Err())
		}
		_, err = io.Copy(&body, in)
	}
	if err == nil || errors.Is(err, io.EOF) {
		// At the deadline the connection's end reaches the server before it ends
		// here: a server that then ends its answer properly makes a part look whole.
		err = ctx.Err()
	}
	if err != nil {
		return nil, t.failed(ctx, c, from.destination(), err)
	}
	out.Body, out.Encoding = text(body.Bytes())
	return out, nil
}

// text gives a body as a JSON string: as it is when it is UTF-8, else base64.
func text(b []byte) (body, encoding string) {
	if utf8.Valid(b) && bytes.IndexByte(b, 0) < 0 {
		return string(b), "utf-8"
	}
	return base64.StdEncoding.EncodeToString(b), "base64"
}

func tooLarge(c *tool.Call) *deny.Reason {
	return tool.Refuse(deny.ToolTooLarge, c.What(), fmt.Sprintf("the answer has more than %d bytes, as it is sent or once it is decompressed", MaxAnswer), "ask for a part of it, by a range or by pages")
}

// bounded fails after left bytes, instead of ending as io.LimitReader does.
type bounded struct {
	r    io.Reader
	left int64
	over error
}

func (b *bounded) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.r.Read(p)
	if int64(n) > b.left {
		return 0, b.over
	}
	b.left -= int64(n)
	return n, err
}

// gunzip opens the stream at the first read, so that an empty body, which HEAD
// and 304 have, is none.
type gunzip struct {
	in io.Reader
	z  *gzip.Reader
}

func (g *gunzip) Read(p []byte) (int, error) {
	if g.z == nil {
		z, err := gzip.NewReader(g.in)
		if errors.Is(err, io.EOF) {
			return 0, io.EOF
		}
		if err != nil {
			return 0, fmt.Errorf("its body says gzip and is not: %w", err)
		}
		g.z = z
	}
	return g.z.Read(p)
}
