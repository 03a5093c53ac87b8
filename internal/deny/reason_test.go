package deny

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite golden files")

const contracts = "../../docs/contracts/"

// declared reads the codes out of the source, so that Codes cannot forget one.
func declared(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || v.Type == nil || len(v.Values) != 1 {
			return true
		}
		if id, ok := v.Type.(*ast.Ident); ok && id.Name == "Code" {
			if lit, ok := v.Values[0].(*ast.BasicLit); ok {
				out = append(out, strings.Trim(lit.Value, `"`))
			}
		}
		return true
	})
	return out
}

func TestCodesListsEveryDeclaredCodeAndTheContractExplainsEach(t *testing.T) {
	var listed []string
	for _, c := range Codes() {
		listed = append(listed, string(c))
	}
	if want := declared(t); len(want) == 0 || !slices.Equal(want, listed) {
		t.Errorf("declared %v, Codes() gives %v", want, listed)
	}
	page, err := os.ReadFile(contracts + "deny.md")
	if err != nil {
		t.Fatal(err)
	}
	var explained []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+\\.[a-z_]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		explained = append(explained, m[1])
	}
	slices.Sort(explained)
	slices.Sort(listed)
	if diff := cmp.Diff(listed, explained); diff != "" {
		t.Errorf("docs/contracts/deny.md explains other codes (-code +page):\n%s", diff)
	}
	for _, l := range []Layer{LayerHost, LayerAccount, LayerPod, LayerMessages, LayerKnowledge, LayerEgress, LayerVault} {
		if !strings.Contains(string(page), "`"+string(l)+"`") {
			t.Errorf("docs/contracts/deny.md does not name the layer %s", l)
		}
	}
}

func TestEnvelopeContract(t *testing.T) {
	var out []Envelope
	for _, c := range Codes() {
		layer := LayerEgress
		switch {
		case strings.HasPrefix(string(c), "identity."), strings.HasPrefix(string(c), "messages."):
			layer = LayerMessages
		case !strings.HasPrefix(string(c), "egress."):
			layer = LayerHost
		}
		r := &Reason{Layer: layer, Code: c, What: "CONNECT evil.example:443", Why: "the rule", Mend: "the change"}
		switch c {
		case MessageInvalid:
			r.Fields = []Field{{Name: "to", Why: "no such agent"}, {Name: "type", Why: "empty"}}
		case MessageQueueFull, MessageQuota, MessageUnavailable:
			r.RetryAfter = 2
		}
		e := r.Envelope()
		if e.StatusCode < 400 || e.StatusCode > 599 || e.Code == "" || e.Message == "" || e.Where == "" {
			t.Errorf("%s: incomplete envelope %+v", c, e)
		}
		out = append(out, e)
	}
	got, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	file := contracts + "golden/envelopes.json"
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("the contract changed (-golden +now):\n%s", diff)
	}
}

func TestAReasonTravelsInsideOtherErrors(t *testing.T) {
	in := &Reason{Layer: LayerEgress, Code: NotListed, What: "CONNECT evil.example:443", Why: "not in the manifest", Mend: "add evil.example:443 to agents.writer.egress"}
	var out *Reason
	if !errors.As(fmt.Errorf("dial: %w", in), &out) || out != in {
		t.Error("errors.As does not find it")
	}
	for _, part := range []string{in.What, string(in.Layer), string(in.Code), in.Why, in.Mend} {
		if !strings.Contains(in.Error(), part) {
			t.Errorf("%q lacks %q", in.Error(), part)
		}
	}
}

func TestWhatWouldAllowItCanStandOnALineOfItsOwn(t *testing.T) {
	r := &Reason{Layer: LayerEgress, Code: NotListed, What: "CONNECT evil.example:443", Why: "not in the manifest", Mend: "add it"}
	if got := WithoutMend(r.Error(), r.Mend); got != "CONNECT evil.example:443: denied by layer egress (egress.not_listed): not in the manifest" {
		t.Error(got)
	}
	for _, other := range []string{"", "add it", r.Error() + "\n" + "more"} {
		if got := WithoutMend(other, r.Mend); got != other {
			t.Errorf("%q became %q", other, got)
		}
	}
}

func FuzzReasonJSON(f *testing.F) {
	f.Add("egress", "egress.not_listed", "a", "b", "c", "", 0)
	f.Add("messages", "messages.invalid", "a", "b", "c", "to", 0)
	f.Add("messages", "messages.quota", "a", "b", "c", "", 5)
	f.Fuzz(func(t *testing.T, layer, code, what, why, mend, field string, after int) {
		in := Reason{Layer: Layer(layer), Code: Code(code), What: what, Why: why, Mend: mend, RetryAfter: after}
		if field != "" {
			in.Fields = []Field{{Name: field, Why: why}}
		}
		raw, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		var out Reason
		if err := json.Unmarshal(raw, &out); err != nil {
			t.Fatal(err)
		}
		if e := out.Envelope(); e.StatusCode == 0 {
			t.Error("an unknown code has no status")
		}
		if again, err := json.Marshal(out); err != nil || string(again) != string(raw) {
			t.Errorf("%s became %s, %v", raw, again, err)
		}
	})
}

// FuzzUnquoted holds that nothing of a quoted text is left, also when its end was cut.
func FuzzUnquoted(f *testing.F) {
	f.Add("Set-Cookie secret", 3)
	f.Add(`a"b\c`, 0)
	f.Fuzz(func(t *testing.T, secret string, cut int) {
		text := fmt.Sprintf("malformed %q", secret)
		want := "malformed (left out)"
		if got := Unquoted(text); got != want {
			t.Errorf("%s: %s", text, got)
		}
		if cut = min(max(cut, 0), len(secret)); !strings.HasSuffix(text[:len(text)-1-cut], `\`) && len(text)-1-cut > len(`malformed "`) {
			if got := Unquoted(text[:len(text)-1-cut]); got != want {
				t.Errorf("cut: %s: %s", text, got)
			}
		}
	})
}
