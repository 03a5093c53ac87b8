package net

import (
	"errors"
	"net/http"
	"net/url"

	"bulkhead/internal/deny"
	"bulkhead/internal/tool"
)

// redirected gives the request that an answer asks for instead, if it does
// (RFC 9110, 15.4).
func (q request) redirected(c *tool.Call, res *http.Response) (next request, follow bool, _ *deny.Reason) {
	location := res.Header.Get("Location")
	switch res.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
	default:
		return q, false, nil
	}
	if location == "" {
		return q, false, nil // the answer is the answer
	}
	to, err := q.to.follow(location)
	if err != nil {
		return q, false, tool.Refuse(deny.BadTarget, c.What(), q.to.destination()+" redirects to a URL that is not taken: "+err.Error(), "ask for another URL")
	}
	if q.to.secure() && !to.secure() {
		return q, false, tool.Refuse(deny.ToolUnsafe, c.What(), q.to.destination()+" redirects from https to http, to "+to.destination(), "ask for an https URL that stays with https")
	}
	next = request{method: q.method, header: q.header.Clone(), body: q.body, to: to}
	// 303 always becomes GET; POST does after 301 and 302, as every client has it.
	if res.StatusCode == http.StatusSeeOther || q.method == http.MethodPost && (res.StatusCode == http.StatusMovedPermanently || res.StatusCode == http.StatusFound) {
		next.method, next.body = http.MethodGet, nil
		for _, name := range ofContent {
			next.header.Del(name)
		}
	}
	if to.origin() != q.to.origin() {
		keepDescribing(next.header) // for good: a way back does not bring it back
	}
	return next, true, nil
}

// follow reads a Location, which may be relative (RFC 9110, 10.2.2).
func (t target) follow(location string) (target, error) {
	if err := plainText(location); err != nil {
		return target{}, err
	}
	ref, err := url.Parse(location)
	if err != nil {
		return target{}, errors.New("it is malformed") // the error has it, or its port: there may be a secret in it
	}
	if ref.Scheme != "" || ref.Host != "" || ref.User != nil {
		if ref.Scheme == "" { // "//host/path"
			location = t.url.Scheme + ":" + location
		}
		return parseTarget(location)
	}
	return parseTarget(t.url.ResolveReference(ref).String())
}
