package tool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// everything has a field of each type.
var everything = Tool{Name: "mem_set", Group: Memory, Fields: []Field{
	{Name: "key", Type: String, Required: true, Min: 1, Max: 5, Pattern: regexp.MustCompile(`[a-z]+`), PatternDoc: "small letters", Shown: true},
	{Name: "kind", Type: String, Enum: []string{"one", "two"}, Default: "one", Shown: true},
	{Name: "n", Aliases: []string{"by", "amount"}, Type: Integer, Min: -5, Max: 10, Default: int64(1)},
	{Name: "big", Type: Integer},
	{Name: "f", Type: Number},
	{Name: "b", Type: Boolean},
	{Name: "data", Type: Bytes, Max: 4},
	{Name: "any", Type: Any, Max: 64},
	{Name: "o", Type: Object, Fields: []Field{{Name: "x", Type: Integer, Required: true}, {Name: "y", Type: String}}},
	{Name: "free", Type: Object, Max: 64},
	{Name: "list", Type: Array, Max: 3, Items: &Field{Type: String, Min: 1, Shown: true}},
	{Name: "rows", Type: Array, Items: &Field{Type: Object, Fields: []Field{{Name: "x", Type: Integer}}}},
}}

func TestInputsThatFit(t *testing.T) {
	for text, want := range map[string]Input{
		`{"key":"a"}`:                            {"key": "a", "kind": "one", "n": int64(1)},
		`{"key":"a","by":3,"kind":"two"}`:        {"key": "a", "kind": "two", "n": int64(3)},
		`{"key":"a","n":3.0}`:                    {"key": "a", "kind": "one", "n": int64(3)},
		`{"key":"a","big":9223372036854775807}`:  {"key": "a", "kind": "one", "n": int64(1), "big": int64(9223372036854775807)},
		`{"key":"a","big":1e3}`:                  {"key": "a", "kind": "one", "n": int64(1), "big": int64(1000)},
		`{"key":"a","f":-1.5e2,"b":true}`:        {"key": "a", "kind": "one", "n": int64(1), "f": -150.0, "b": true},
		`{"key":"a","data":"aGk="}`:              {"key": "a", "kind": "one", "n": int64(1), "data": []byte("hi")},
		`{"key":"a","data":"aGk"}`:               {"key": "a", "kind": "one", "n": int64(1), "data": []byte("hi")},
		`{"key":"a","any":null}`:                 {"key": "a", "kind": "one", "n": int64(1), "any": json.RawMessage("null")},
		`{"key":"a","any":1.10}`:                 {"key": "a", "kind": "one", "n": int64(1), "any": json.RawMessage("1.10")},
		`{"key":"a","o":{"x":1},"free":{"q":1}}`: {"key": "a", "kind": "one", "n": int64(1), "o": Input{"x": int64(1)}, "free": json.RawMessage(`{"q":1}`)},
		`{"key":"a","list":["x","y"]}`:           {"key": "a", "kind": "one", "n": int64(1), "list": []any{"x", "y"}},
		`{"key":"a","rows":[{"x":1},{}]}`:        {"key": "a", "kind": "one", "n": int64(1), "rows": []any{Input{"x": int64(1)}, Input{}}},
		`{"key":"a","big":null}`:                 {"key": "a", "kind": "one", "n": int64(1)},
	} {
		got, reason := everything.Parse([]byte(text))
		if reason != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %#v, %+v; want %#v", text, got, reason, want)
		}
	}
}

func TestEveryFaultIsNamed(t *testing.T) {
	for text, want := range map[string][]string{
		``:                                      {"key: it is missing"},
		`[]`:                                    {"(input): a JSON object is wanted"},
		`{"key":"a"} x`:                         {"(input): something follows the object"},
		`{"key":"a"`:                            {"(input): it is not JSON: EOF"},
		"{\"key\":\"\xff\"}":                    {"(input): it is not UTF-8"},
		`{"key":"a","key":"b"}`:                 {"key: it is given twice"},
		`{"key":null}`:                          {"key: it is missing"},
		`{"key":"","kind":"three","n":11}`:      {"key: it has 0 characters; at least 1 are wanted", "key: small letters", "kind: it is none of one, two", "n: it is not between -5 and 10"},
		`{"key":"a","n":1,"amount":2}`:          {"n: it is given 2 times, under other names: n, by, amount"},
		`{"key":"a","by":"1","f":"1","b":0}`:    {"by: an integer is wanted", "f: a number is wanted", "b: true or false is wanted"},
		`{"key":"a","big":1.5}`:                 {"big: an integer is wanted"},
		`{"key":"a","big":1e30}`:                {"big: an integer is wanted"},
		`{"key":"a","big":9223372036854775808}`: {"big: an integer is wanted"},
		`{"key":"a","f":1e999}`:                 {"f: a number is wanted"},
		`{"key":"a","data":"aGk*"}`:             {"data: it is not standard base64: illegal base64 data at input byte 3"},
		`{"key":"a","data":"aGVsbG8="}`:         {"data: it has 5 bytes; at most 4 are taken"},
		`{"key":"a","o":{"y":1,"z":2}}`:         {"o.x: it is missing", "o.y: a string is wanted", "o.z: there is no such field"},
		`{"key":"a","list":["",null,1,"x"]}`:    {"list: it has 4 elements; at most 3 are taken", "list[0]: it has 0 characters; at least 1 are wanted", "list[1]: it is null", "list[2]: a string is wanted"},
		`{"key":"a","rows":[{"x":1,"x":2}]}`:    {"rows[0].x: it is given twice"},
		`{"key":"a\n"}`:                         {"key: small letters"},
		`{"key":"\ud800"}`:                      {"key: it has half a surrogate pair"},
		`{"key":"\ufffd\ud800"}`:                {"key: it has half a surrogate pair"},
		`{"key":"\udc00\ud800"}`:                {"key: it has half a surrogate pair"},
		`{"key":"\\ud800"}`:                     {"key: it has 6 characters; at most 5 are taken", "key: small letters"},
		`{"kee":1}`:                             {"key: it is missing", "kee: there is no such field"},
	} {
		in, reason := everything.Parse([]byte(text))
		if reason == nil {
			t.Errorf("%s was taken: %v", text, in)
			continue
		}
		var got []string
		for _, f := range reason.Fields {
			got = append(got, f.Name+": "+f.Why)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n got %q\nwant %q", text, got, want)
		}
	}
	if in, reason := everything.Parse([]byte(`{"key":"\ud83d\ude00"}`)); reason == nil || reason.Fields[0].Why != "small letters" {
		t.Errorf("a whole pair: %v, %v", in, reason)
	}
	var b strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&b, `,"x%d":1`, i)
	}
	if _, reason := everything.Parse([]byte(`{"key":"a"` + b.String() + `}`)); reason == nil || len(reason.Fields) != MaxFaults {
		t.Error("faults are not bounded")
	}
}

// FuzzParse holds that what is taken fits its fields, and reads the same again
// when it is written out.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `{"key":"a"}`, `{"key":"a","n":1,"by":2}`, `{"key":"a","data":"aGk=","any":[1,{"a":null}],"o":{"x":1},"list":["x"],"rows":[{}]}`,
		`{"key":"\ud800"}`, `{"key":"a","big":1e3,"f":0.1}`, "{\"key\":\"\xff\"}", `{"key":"a"}{}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in, reason := everything.Parse(data)
		if reason != nil {
			if len(reason.Fields) == 0 || len(reason.Fields) > MaxFaults {
				t.Errorf("%d faults", len(reason.Fields))
			}
			return
		}
		if k := in.String("key"); k == "" || len(k) > 5 || in.Int("n") < -5 || in.Int("n") > 10 || len(in.Bytes("data")) > 4 || len(in.List("list")) > 3 {
			t.Errorf("%v does not fit", in)
		}
		out, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		again, reason := everything.Parse(out)
		if reason != nil || !reflect.DeepEqual(compact(t, in), compact(t, again)) {
			t.Errorf("%s became %s: %v", data, out, reason)
		}
		if _, err := json.Marshal(newShower().object(everything.Fields, in)); err != nil {
			t.Error(err)
		}
	})
}

// compact makes two inputs comparable whose raw JSON has other spaces.
func compact(t *testing.T, in Input) string {
	raw, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTheSchemaSaysWhatIsTaken(t *testing.T) {
	raw, err := json.Marshal(everything.Schema())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"additionalProperties":false`, `"required":["key"]`, `"key":{"maxLength":5,"minLength":1,"pattern":"^(?:[a-z]+)$","type":"string"}`,
		`"n":{"default":1,"maximum":10,"minimum":-5,"type":"integer"}`, `"data":{"contentEncoding":"base64","maxLength":8,"type":"string"}`,
		`"o":{"additionalProperties":false,"properties":{"x":{"type":"integer"},"y":{"type":"string"}},"required":["x"],"type":"object"}`,
		`"list":{"items":{"minLength":1,"type":"string"},"maxItems":3,"type":"array"}`, `"any":{}`,
	} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("no %s in %s", want, raw)
		}
	}
	if strings.Contains(string(raw), "amount") {
		t.Error("an alias is shown")
	}
}

func TestARecordHoldsNoContents(t *testing.T) {
	s := newShower()
	in, reason := everything.Parse([]byte(`{"key":"a","any":"secret","data":"c2Vj","free":{"secret":1},"o":{"x":1,"y":"secret"},"list":["shown"],"f":1.5}`))
	if reason != nil {
		t.Fatal(reason)
	}
	out := string(s.show(everything.Fields, in))
	for _, no := range []string{"secret", "c2Vj", "sec", "1.5"} {
		if strings.Contains(out, no) {
			t.Errorf("%s holds %s", out, no)
		}
	}
	for _, yes := range []string{`"key":"a"`, `"list":["shown"]`, `"size":8`, `"hash":"`} {
		if !strings.Contains(out, yes) {
			t.Errorf("%s holds no %s", out, yes)
		}
	}
	if again := string(s.show(everything.Fields, in)); again != out {
		t.Error("the same input is shown in two ways")
	}
	if other := string(newShower().show(everything.Fields, in)); other == out {
		t.Error("another process gives the same hashes")
	}
}

// What is too long is refused before anything is made of it.
func TestLongListsAndObjectsCostNothing(t *testing.T) {
	tool := Tool{Name: "x", Fields: []Field{
		{Name: "list", Type: Array, Max: 1000, Items: &Field{Type: Any}},
		{Name: "row", Type: Object, Fields: nil},
	}}
	var members strings.Builder
	for i := range 400_000 {
		fmt.Fprintf(&members, `,"%x":1`, i)
	}
	for name, in := range map[string]string{
		"list": `{"list":[1` + strings.Repeat(",1", 2<<20) + `]}`,
		"row":  `{"row":{` + members.String()[1:] + `}}`,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, reason := tool.Parse([]byte(in))
		runtime.ReadMemStats(&after)
		if reason == nil || len(reason.Fields) != 1 || reason.Fields[0].Name != name || !strings.Contains(reason.Fields[0].Why, "000") {
			t.Errorf("%s: %+v", name, reason)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > 6*uint64(len(in)) {
			t.Errorf("%s: %d bytes of input took %d", name, len(in), got)
		}
	}
}
