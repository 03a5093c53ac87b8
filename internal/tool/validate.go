package tool

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"bulkhead/internal/deny"
	"bulkhead/internal/jsonscan"
)

// Bounds of what an answer names: an input may have any number of faults.
const (
	MaxFaults = 64 // fields
	maxNamed  = 80 // bytes of a name that somebody else chose
)

// maxMembers bounds what is taken apart: a name and a value of four bytes take a hundred.
const maxMembers = 20_000

// Parse reads the input of a tool. Every failing field is named in the reason.
// A JSON object that has a name twice is refused: what one reader takes for
// the value is not what another does.
func (t *Tool) Parse(data []byte) (Input, *deny.Reason) {
	r := reader{}
	if len(bytes.TrimSpace(data)) == 0 {
		data = []byte("{}")
	}
	in := r.object("", t.Fields, data)
	if len(r.faults) == 0 {
		return in, nil
	}
	reason := Refuse(deny.ToolInvalid, t.Name, "the input is not what this tool takes", "send the fields that GET /v1/openapi.json or tools/list shows for it")
	reason.Fields = r.faults
	return nil, reason
}

type reader struct{ faults []deny.Field }

func (r *reader) fault(path, format string, args ...any) {
	if len(r.faults) < MaxFaults {
		if path == "" {
			path = "(input)"
		}
		r.faults = append(r.faults, deny.Field{Name: path, Why: fmt.Sprintf(format, args...)})
	}
}

// object reads an object with known fields.
func (r *reader) object(path string, fields []Field, data []byte) Input {
	given, ok := r.members(path, data)
	if !ok {
		return nil
	}
	in := Input{}
	for i := range fields {
		f := &fields[i]
		at := join(path, f.Name)
		name, value, n := f.Name, json.RawMessage(nil), 0
		take := func(a string) {
			if v, ok := given[a]; ok {
				name, value = a, v
				n++
				delete(given, a)
			}
		}
		take(f.Name)
		for _, a := range f.Aliases {
			take(a)
		}
		switch {
		case n > 1:
			r.fault(at, "it is given %d times, under other names: %s", n, strings.Join(append([]string{f.Name}, f.Aliases...), ", "))
		case n == 0 || isNull(value) && f.Type != Any:
			if f.Required {
				r.fault(at, "it is missing")
			} else if f.Default != nil {
				in[f.Name] = f.Default
			}
		default:
			if v, ok := r.value(join(path, name), f, value); ok {
				in[f.Name] = v
			}
		}
	}
	if len(given) == 0 {
		return in
	}
	unknown := make([]string, 0, len(given))
	for name := range given {
		unknown = append(unknown, name)
	}
	slices.Sort(unknown)
	for _, name := range unknown {
		r.fault(join(path, clip(name)), "there is no such field")
	}
	return in
}

// members splits an object, whose names must differ.
func (r *reader) members(path string, data []byte) (map[string]json.RawMessage, bool) {
	if !utf8.Valid(data) {
		r.fault(path, "it is not UTF-8")
		return nil, false
	}
	if out, ok := quickly(data); ok {
		return out, true
	}
	d := json.NewDecoder(bytes.NewReader(data))
	t, err := d.Token()
	if err != nil || t != json.Delim('{') {
		r.fault(path, "a JSON object is wanted")
		return nil, false
	}
	out := map[string]json.RawMessage{}
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			r.fault(path, "it is not JSON: %v", err)
			return nil, false
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			r.fault(join(path, clip(name)), "it is not JSON: %v", err)
			return nil, false
		}
		if _, ok := out[name]; ok {
			r.fault(join(path, clip(name)), "it is given twice")
			continue
		}
		if len(out) == maxMembers {
			r.fault(path, "it has more than %d members", maxMembers)
			return nil, false
		}
		out[name] = v
	}
	if _, err := d.Token(); err != nil {
		r.fault(path, "it is not JSON: %v", err)
		return nil, false
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		r.fault(path, "something follows the object")
		return nil, false
	}
	return out, true
}

// quickly splits an object that has nothing unusual and no fault.
func quickly(data []byte) (out map[string]json.RawMessage, ok bool) {
	out = make(map[string]json.RawMessage, 4)
	ok = jsonscan.Object(data, func(name, value []byte) bool {
		if _, again := out[string(name)]; again || len(out) == maxMembers {
			return false
		}
		out[string(name)] = value
		return true
	})
	return out, ok
}

func (r *reader) value(path string, f *Field, data json.RawMessage) (any, bool) {
	before := len(r.faults)
	v := r.typed(path, f, data)
	return v, len(r.faults) == before && v != nil
}

func (r *reader) typed(path string, f *Field, data json.RawMessage) any {
	switch f.Type {
	case String:
		s, ok := r.text(path, data)
		if !ok {
			return nil
		}
		r.within(path, f, int64(utf8.RuneCountInString(s)), "characters")
		if f.Enum != nil && !slices.Contains(f.Enum, s) {
			r.fault(path, "it is none of %s", strings.Join(f.Enum, ", "))
		}
		if f.Pattern != nil && !whole(f, s) {
			r.fault(path, "%s", f.PatternDoc)
		}
		return s
	case Bytes:
		s, ok := r.text(path, data)
		if !ok {
			return nil
		}
		b, err := base64.RawStdEncoding.Strict().DecodeString(strings.TrimRight(s, "="))
		if err != nil {
			r.fault(path, "it is not standard base64: %v", err)
			return nil
		}
		r.within(path, f, int64(len(b)), "bytes")
		return b
	case Integer:
		n, ok := integer(data)
		if !ok {
			r.fault(path, "an integer is wanted")
			return nil
		}
		r.between(path, f, float64(n))
		return n
	case Number:
		n, err := strconv.ParseFloat(string(data), 64)
		if err != nil || math.IsInf(n, 0) || math.IsNaN(n) || data[0] == '"' {
			r.fault(path, "a number is wanted")
			return nil
		}
		r.between(path, f, n)
		return n
	case Boolean:
		switch string(data) {
		case "true":
			return true
		case "false":
			return false
		}
		r.fault(path, "true or false is wanted")
		return nil
	case Array:
		return r.array(path, f, data)
	case Object:
		if f.Fields != nil {
			if o := r.object(path, f.Fields, data); o != nil {
				return o
			}
			return nil
		}
		if _, ok := r.members(path, data); !ok {
			return nil
		}
		r.within(path, f, int64(len(data)), "bytes of JSON")
		return data
	case Any:
		r.within(path, f, int64(len(data)), "bytes of JSON")
		return data
	}
	r.fault(path, "the tool has a field of unknown type %q", f.Type)
	return nil
}

func (r *reader) array(path string, f *Field, data json.RawMessage) any {
	n := int64(0)
	var items []json.RawMessage // no more than may be there: one of two bytes would take fifty
	if !jsonscan.Array(data, func(v []byte) bool {
		if n++; f.Max == 0 || n <= f.Max {
			items = append(items, v)
		}
		return true
	}) {
		r.fault(path, "an array is wanted")
		return nil
	}
	r.within(path, f, n, "elements")
	item := f.Items
	if item == nil {
		item = &Field{Type: Any}
	}
	out := make([]any, 0, len(items))
	for i, v := range items {
		if len(r.faults) >= MaxFaults {
			break
		}
		at := fmt.Sprintf("%s[%d]", path, i)
		if isNull(v) && item.Type != Any {
			r.fault(at, "it is null")
			continue
		}
		if v, ok := r.value(at, item, v); ok {
			out = append(out, v)
		}
	}
	return out
}

// text reads a JSON string. A lone surrogate, which Go would replace in
// silence, is refused.
func (r *reader) text(path string, data json.RawMessage) (string, bool) {
	if s, ok := jsonscan.Plain(data); ok {
		return string(s), true
	}
	var s string
	if len(data) == 0 || data[0] != '"' || json.Unmarshal(data, &s) != nil {
		r.fault(path, "a string is wanted")
		return "", false
	}
	if loneSurrogate(data) {
		r.fault(path, "it has half a surrogate pair")
		return "", false
	}
	return s, true
}

// loneSurrogate looks for an escaped half of a UTF-16 pair (RFC 8259, 8.2) in
// a JSON string.
func loneSurrogate(data []byte) bool {
	high := false // the escape before was the first half
	for i := 0; i < len(data); i++ {
		unit := uint64(0)
		if data[i] == '\\' {
			if data[i+1] == 'u' {
				unit, _ = strconv.ParseUint(string(data[i+2:i+6]), 16, 32) // four digits, or it were no JSON
				i += 4
			}
			i++
		}
		low := unit >= 0xdc00 && unit < 0xe000
		if low != high {
			return true
		}
		high = unit >= 0xd800 && unit < 0xdc00
	}
	return high
}

// integer reads a JSON number without a fraction, as JSON Schema has it: 1.0 and
// 1e3 are integers, as far as a float64 holds each one exactly.
func integer(data json.RawMessage) (int64, bool) {
	if n, err := strconv.ParseInt(string(data), 10, 64); err == nil {
		return n, true
	}
	if len(data) == 0 || data[0] == '"' {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(data), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int64(f), true
}

func (r *reader) within(path string, f *Field, n int64, unit string) {
	switch {
	case n < f.Min:
		r.fault(path, "it has %d %s; at least %d are wanted", n, unit, f.Min)
	case f.Max > 0 && n > f.Max:
		r.fault(path, "it has %d %s; at most %d are taken", n, unit, f.Max)
	}
}

func (r *reader) between(path string, f *Field, n float64) {
	if f.Min == 0 && f.Max == 0 {
		return
	}
	if n < float64(f.Min) || n > float64(f.Max) {
		r.fault(path, "it is not between %d and %d", f.Min, f.Max)
	}
}

func whole(f *Field, s string) bool {
	at := f.Pattern.FindStringIndex(s)
	return at != nil && at[0] == 0 && at[1] == len(s)
}

func isNull(v json.RawMessage) bool { return string(v) == "null" }

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func clip(s string) string {
	if len(s) > maxNamed {
		return s[:maxNamed] + "…"
	}
	return s
}
