package fs

import (
	"errors"
	"mime"
	"net/http"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// typeAttribute keeps the content type of a file:
// https://www.freedesktop.org/wiki/CommonExtendedAttributes/
const typeAttribute = "user.mime_type"

const (
	sniffed     = 512 // bytes that are looked at
	maxType     = 255 // characters of a content type
	unknownType = "application/octet-stream"
)

// byName are types that the content does not tell. It is our own list: the
// host's would make the same call give another answer elsewhere.
var byName = map[string]string{
	".css": "text/css; charset=utf-8", ".csv": "text/csv; charset=utf-8", ".go": "text/x-go; charset=utf-8",
	".htm": "text/html; charset=utf-8", ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
	".json": "application/json", ".jsonl": "application/jsonl", ".md": "text/markdown; charset=utf-8",
	".mjs": "text/javascript; charset=utf-8", ".py": "text/x-python; charset=utf-8", ".sh": "text/x-shellscript; charset=utf-8",
	".sql": "application/sql", ".svg": "image/svg+xml", ".toml": "application/toml", ".tsv": "text/tab-separated-values; charset=utf-8",
	".txt": "text/plain; charset=utf-8", ".wasm": "application/wasm", ".xml": "text/xml; charset=utf-8", ".yaml": "application/yaml", ".yml": "application/yaml",
}

// guess tells a content type from the name, else from the first bytes by the
// WHATWG's MIME Sniffing Standard.
func guess(name string, head []byte) string {
	if t := byName[strings.ToLower(path.Ext(name))]; t != "" {
		return t
	}
	return http.DetectContentType(head[:min(len(head), sniffed)])
}

// mediaType gives the normal form of a content type; empty: it is none.
func mediaType(s string) string {
	if len(s) > maxType {
		return ""
	}
	t, params, err := mime.ParseMediaType(s)
	if err != nil || !strings.Contains(t, "/") {
		return ""
	}
	return mime.FormatMediaType(t, params)
}

// keepsTypes says whether the file system has extended attributes for users.
func (s *Store) keepsTypes() bool {
	_, err := unix.Fgetxattr(s.tmp, typeAttribute, nil)
	return err == nil || errors.Is(err, unix.ENODATA)
}

// typeOf gives the content type of an open file.
func (s *Store) typeOf(fd int, name string) string {
	if s.xattrs {
		buf := make([]byte, maxType)
		if n, err := unix.Fgetxattr(fd, typeAttribute, buf); err == nil {
			if t := mediaType(string(buf[:n])); t != "" {
				return t
			}
		}
	}
	head := make([]byte, sniffed)
	n, err := unix.Pread(fd, head, 0)
	if err != nil {
		return unknownType
	}
	return guess(name, head[:n])
}
