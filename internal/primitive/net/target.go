package net

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/tool"
)

// target is where one hop goes, in one form.
type target struct {
	url  *url.URL // Host always has a port; there is no user and no fragment
	host dial.Host
	port uint16
}

// secure says whether the hop is TLS.
func (t target) secure() bool { return t.url.Scheme == "https" }

// destination is what a manifest would list.
func (t target) destination() string { return dial.Target(t.host, t.port) }

// origin tells apart what may be told the same secrets (RFC 6454, 4).
func (t target) origin() string { return t.url.Scheme + "://" + t.destination() }

// authority is the value of Host: without the scheme's own port (RFC 9110, 4.2.3).
func (t target) authority() string {
	if t.port != defaultPort(t.url.Scheme) {
		return t.destination()
	}
	if t.host.Addr.Is6() {
		return "[" + t.host.String() + "]"
	}
	return t.host.String()
}

// scope is the destination of a call, as the exchange reads it: to what a grant may
// be bound. Redirects go where the manifest allows.
func scope(in tool.Input) (string, *deny.Reason) {
	t, err := parseTarget(in.String("url"))
	if err != nil {
		return "", misread("url", deny.Field{Name: "url", Why: err.Error()})
	}
	return t.origin(), nil
}

// String is the URL as an answer shows it.
func (t target) String() string {
	u := *t.url
	u.Host = t.authority()
	return u.String()
}

func defaultPort(scheme string) uint16 {
	if scheme == "http" {
		return 80
	}
	return 443
}

// parseTarget reads a URL. The authority is read here, byte by byte, and not by
// net/url, whose answers about odd ones have differed from other readers'
// (CVE-2019-14809, CVE-2023-29406): all that could be read in two ways is an
// error.
func parseTarget(raw string) (target, error) {
	if err := plainText(raw); err != nil {
		return target{}, err
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	scheme = strings.ToLower(scheme)
	if !ok || scheme != "https" && scheme != "http" {
		return target{}, errors.New("it does not begin with https:// or http://")
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, tail := rest[:end], rest[end:]
	switch {
	case authority == "":
		return target{}, errors.New("it names no host")
	case strings.Contains(authority, "@"):
		return target{}, errors.New("it has a user or a password in it: send an authorization header")
	case strings.Contains(authority, "%"):
		return target{}, errors.New("its host has an escape or a zone in it: write the host as it is")
	}
	host, port, err := splitAuthority(authority, defaultPort(scheme))
	if err != nil {
		return target{}, err
	}
	h, err := dial.Normalise(host)
	if err != nil {
		return target{}, err
	}
	if !strings.HasPrefix(tail, "/") {
		tail = "/" + tail
	}
	t := target{host: h, port: port}
	whole := scheme + "://" + t.destination()
	if t.url, err = url.Parse(whole + tail); err != nil {
		return target{}, fmt.Errorf("its path is malformed: %w", errors.Unwrap(err))
	}
	t.url.Fragment, t.url.RawFragment = "", ""
	if t.url.Host != t.destination() || t.url.User != nil || t.url.Opaque != "" {
		return target{}, errors.New("it can be read in two ways") // never, as far as is known
	}
	return t, nil
}

// plainText refuses bytes that no URL has (RFC 3986, 2), and that readers skip,
// cut at, or take for a slash. Characters beyond ASCII are taken: a host's
// become its A-labels, a path's are escaped.
func plainText(raw string) error {
	switch {
	case len(raw) > maxURL:
		return fmt.Errorf("it has %d bytes; at most %d are taken", len(raw), maxURL)
	case !utf8.ValidString(raw):
		return errors.New("it is not UTF-8")
	}
	for _, c := range raw {
		if c <= ' ' || c == 0x7f || c == '\\' {
			return fmt.Errorf("it has %q in it: escape it", c)
		}
	}
	return nil
}

// splitAuthority reads "host", "host:port", "[address]" or "[address]:port".
func splitAuthority(authority string, port uint16) (string, uint16, error) {
	var host, text string
	var has bool
	if strings.HasPrefix(authority, "[") {
		end := strings.IndexByte(authority, ']')
		if end < 0 {
			return "", 0, errors.New("its host has an open bracket only")
		}
		host, text = authority[:end+1], authority[end+1:]
		if text, has = strings.CutPrefix(text, ":"); !has && text != "" {
			return "", 0, errors.New("something follows the bracket of its host")
		}
	} else {
		host, text, has = strings.Cut(authority, ":")
		if strings.Contains(text, ":") {
			return "", 0, errors.New("its host has two colons: an IPv6 address stands in brackets")
		}
	}
	if !has {
		return host, port, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || text[0] == '0' || text[0] == '+' {
		return "", 0, errors.New("what follows its host is not a port") // not what it is: a password, perhaps
	}
	return host, uint16(n), nil
}
