package page_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/attest"
	"bulkhead/internal/attest/page"
)

func written(t *testing.T) string {
	t.Helper()
	read := func(name string) json.RawMessage {
		raw, err := os.ReadFile("../testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	digest := map[string]string{"sha256": strings.Repeat("ab", 32)}
	s, err := attest.New([]attest.Resource{{Name: "manifest", Digest: digest}}, nil, attest.Evidence{
		Team: `"><script>alert(2)</script>`, Time: time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC),
		Verify: read("verify.json"), Prove: read("prove.json"), NotCovered: []string{"Landlock, which no kernel reads back"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := page.Write(&b, &attest.Opened{KeyID: strings.Repeat("0", 64), Statement: s}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestThePageShowsWhatIsNotWell(t *testing.T) {
	text := written(t)
	for _, want := range []string{
		"FAILED", "NOT DENIED 1 of 1", "denied 1 of 1", "did not bite", "this host has no spare ids", "this kernel has no vsock",
		"Does not hold", "pids.max holds", "premise: no other rule", "Landlock, which no kernel reads back", "tcp to 192.0.2.1 port 443",
		strings.Repeat("ab", 32), strings.Repeat("0", 64), "2026-11-30 08:00:00 UTC",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

// Whatever agents and attacks say is text on the page, and the page fetches
// nothing: no element or attribute is there that could.
func TestThePageRunsAndFetchesNothing(t *testing.T) {
	text := written(t)
	allowed := regexp.MustCompile(`^(html|head|meta|title|style|body|h[123]|p|br|span|code|table|thead|tbody|tr|th|td|ul|li|div|b)$`)
	d := xml.NewDecoder(strings.NewReader(text))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	n := 0
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		el, ok := tok.(xml.StartElement)
		if !ok {
			continue
		}
		n++
		if !allowed.MatchString(el.Name.Local) {
			t.Errorf("the page holds an element %s", el.Name.Local)
		}
		for _, a := range el.Attr {
			switch a.Name.Local {
			case "class", "lang", "charset", "content", "name", "http-equiv":
			default:
				t.Errorf("%s has the attribute %s", el.Name.Local, a.Name.Local)
			}
		}
	}
	if n < 50 {
		t.Errorf("only %d elements", n)
	}
	if strings.Contains(text, "url(") || strings.Contains(text, "@import") {
		t.Error("the style fetches something")
	}
	for _, said := range []string{"<script", "<img"} {
		if strings.Contains(strings.ToLower(text), said) {
			t.Errorf("the page holds %s", said)
		}
	}
}
