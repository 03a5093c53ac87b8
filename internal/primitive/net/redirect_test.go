package net_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"bulkhead/internal/deny"
)

func (s *stage) to(status int, location string) string {
	return fmt.Sprintf("%s/to?status=%d&location=%s", s.one, status, url.QueryEscape(location))
}

func TestARedirectChangesTheMethodAsTheStandardSays(t *testing.T) {
	s := newStage(t)
	for _, c := range []struct {
		method string
		status int
		want   string // method and body that arrive
	}{
		{"get", 301, "GET "},
		{"get", 302, "GET "},
		{"get", 303, "GET "},
		{"get", 307, "GET "},
		{"get", 308, "GET "},
		{"post", 301, "GET "},
		{"post", 302, "GET "},
		{"post", 303, "GET "},
		{"post", 307, "POST body"},
		{"post", 308, "POST body"},
		{"put", 301, "PUT body"},
		{"put", 302, "PUT body"},
		{"put", 303, "GET "},
		{"put", 307, "PUT body"},
		{"put", 308, "PUT body"},
		{"delete", 302, "DELETE "},
		{"delete", 303, "GET "},
		{"delete", 307, "DELETE "},
	} {
		input := map[string]any{"url": s.to(c.status, "/echo"), "headers": map[string]string{"x-key": "k", "authorization": "t"}}
		if c.method == "post" || c.method == "put" {
			input["body"] = "body"
			input["headers"].(map[string]string)["content-type"] = "text/x"
		}
		out, reason := answered(t, s.d, "net_http_"+c.method, input)
		if reason != nil {
			t.Fatal(reason)
		}
		e := readEcho(t, out)
		if got := e.Method + " " + e.Body; got != c.want {
			t.Errorf("%s after %d: %s, want %s", c.method, c.status, got, c.want)
		}
		if e.Header.Get("X-Key") != "k" || e.Header.Get("Authorization") != "t" {
			t.Errorf("%s after %d within one origin: %v", c.method, c.status, e.Header)
		}
		if has := e.Header.Get("Content-Type") != ""; has != (e.Body != "") {
			t.Errorf("%s after %d: a content type is %t, a body %q", c.method, c.status, has, e.Body)
		}
	}
	for _, status := range []int{300, 304, 305, 306} {
		if out, reason := answered(t, s.d, "net_http_get", map[string]any{"url": s.to(status, "/echo")}); reason != nil || out.Status != status {
			t.Errorf("%d: %v %v", status, out, reason)
		}
	}
	if out, reason := answered(t, s.d, "net_http_get", map[string]any{"url": s.to(302, "")}); reason != nil || out.Status != 302 {
		t.Errorf("without a location: %v %v", out, reason)
	}
}

func TestEachRedirectIsCheckedLikeTheFirst(t *testing.T) {
	s := newStage(t)
	for location, want := range map[string]deny.Code{
		s.elsewhere:                                deny.NotListed,
		"https://evil.example/":                    deny.NotListed,
		"//evil.example/":                          deny.NotListed,
		"https://one.example.com/":                 deny.PortNotListed,
		"https://169.254.169.254/latest/meta-data": deny.NotListed,
		"https://[::ffff:169.254.169.254]/":        deny.NotListed,
		"https://127.0.0.1/":                       deny.PortNotListed,
		"https://2130706433/":                      deny.BadTarget,
		"https://user@two.example.com/":            deny.BadTarget,
		`\\evil.example/`:                          deny.BadTarget,
		"/ x":                                      deny.BadTarget,
		"file:///etc/passwd":                       deny.BadTarget,
		"gopher://one.example.com/":                deny.BadTarget,
		"data:text/plain,x":                        deny.BadTarget,
		s.plain:                                    deny.ToolUnsafe, // listed, but https does not lead to http
		"http://evil.example/":                     deny.ToolUnsafe,
	} {
		if out, reason := answered(t, s.d, "net_http_get", map[string]any{"url": s.to(302, location)}); reason == nil || reason.Code != want {
			t.Errorf("%s: %+v %v, want %s", location, out, reason, want)
		}
	}
}

func TestAMalformedLocationIsNotOnRecord(t *testing.T) {
	s := newStage(t)
	for _, location := range []string{"/x%zz?access_token=SECRET", "/%SE", "//one.example.com:SECRET/", "https://one.example.com:SECRET/", "https://user:SECRET", "?SECRET\\"} {
		_, reason := answered(t, s.d, "net_http_get", map[string]any{"url": s.to(302, location)})
		if reason == nil || reason.Code != deny.BadTarget || strings.Contains(reason.Error(), "SE") {
			t.Errorf("%s: %v", location, reason)
		}
	}
	if text := fmt.Sprint(s.decided.take()) + string(object(t, s.journal.take())); strings.Contains(text, "SECRET") {
		t.Error(text)
	}
}

func TestSecretsStayWithTheirOrigin(t *testing.T) {
	s := newStage(t)
	secrets := map[string]string{"authorization": "t", "cookie": "c", "x-api-key": "k", "accept": "a/b", "user-agent": "me"}
	for name, to := range map[string]string{
		"another host":   s.two + "/",
		"there and back": s.one + "/to?status=307&location=" + url.QueryEscape(s.one+"/echo"),
	} {
		start := s.to(307, to)
		if name == "there and back" { // 127.0.0.1 is another origin on the same server
			other := fmt.Sprintf("https://127.0.0.1:%d", s.onePort)
			start = s.to(307, other+"/to?status=307&location="+url.QueryEscape(s.one+"/echo"))
		}
		out, reason := answered(t, s.d, "net_http_post", map[string]any{"url": start, "headers": secrets, "body": "b"})
		if reason != nil {
			t.Fatal(reason)
		}
		e := readEcho(t, out)
		if e.Header.Get("Authorization")+e.Header.Get("Cookie")+e.Header.Get("X-Api-Key") != "" || e.Header.Get("Accept") != "a/b" || e.Header.Get("User-Agent") != "me" {
			t.Errorf("%s: %v", name, e.Header)
		}
		if e.Method != "POST" || e.Body != "b" || e.Header.Get("Referer") != "" || strings.Contains(e.Path, "secret") {
			t.Errorf("%s: %+v", name, e)
		}
	}
}
