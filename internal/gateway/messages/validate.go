package messages

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/deny"
	"bulkhead/internal/tool"
)

// strict decodes one JSON object and names every field that does not fit, or
// that into does not have. The usual case is one pass.
func strict(text []byte, into any) []deny.Field {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil {
		if _, err = d.Token(); errors.Is(err, io.EOF) {
			return nil
		}
		return []deny.Field{{Name: "(body)", Why: "something follows the JSON object"}}
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil || all == nil {
		why := "it is not a JSON object"
		if err != nil {
			why += ": " + err.Error()
		}
		return []deny.Field{{Name: "(body)", Why: why}}
	}
	return failing(all, reflect.TypeOf(into).Elem())
}

// failing tries each field on its own.
func failing(all map[string]json.RawMessage, t reflect.Type) []deny.Field {
	var out []deny.Field
	for name, raw := range all {
		f, ok := field(t, name)
		if !ok {
			out = append(out, deny.Field{Name: clip(name), Why: "there is no such field"})
			continue
		}
		v := reflect.New(f.Type)
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		if err := d.Decode(v.Interface()); err != nil {
			out = append(out, deny.Field{Name: name, Why: wrong(err)})
		}
	}
	slices.SortFunc(out, func(x, y deny.Field) int { return strings.Compare(x.Name, y.Name) })
	out = out[:min(len(out), tool.MaxFaults)]
	if len(out) == 0 {
		return []deny.Field{{Name: "(body)", Why: "a field is given twice, with different types"}}
	}
	return out
}

// field finds a field as encoding/json does.
func field(t reflect.Type, name string) (reflect.StructField, bool) {
	for f := range t.Fields() {
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); strings.EqualFold(tag, name) {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

func wrong(err error) string {
	var t *json.UnmarshalTypeError
	if errors.As(err, &t) {
		return fmt.Sprintf("a %s does not fit, %s is wanted", t.Value, kind(t.Type))
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// kind names a Go type as JSON does.
func kind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Bool:
		return "true or false"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number that is not negative"
	}
	return "a whole number"
}

func clip(s string) string {
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return s
}

// check gives every field of a draft whose form is wrong. What it may say, and
// to whom, the adapter decides.
func check(d *adapter.Draft) []deny.Field {
	var out []deny.Field
	bad := func(name, why string) { out = append(out, deny.Field{Name: name, Why: why}) }
	if !isUUID(d.IdempotencyKey) {
		bad("idempotency_key", "it is not a UUID like 6ba7b810-9dad-41d1-80b4-00c04fd430c8")
	}
	switch {
	case d.To == "" && d.Channel == "":
		bad("to", "give either to (an agent) or channel")
	case d.To != "" && d.Channel != "":
		bad("channel", "give to or channel, not both")
	}
	if len(d.To) > 128 {
		bad("to", "it is longer than 128 characters")
	}
	if len(d.Channel) > 128 {
		bad("channel", "it is longer than 128 characters")
	}
	if !isType(string(d.Type)) {
		bad("type", "it is not a small letter and then up to 63 small letters, digits and underscores")
	}
	switch d.Priority {
	case "", adapter.Low, adapter.Normal, adapter.High:
	default:
		bad("priority", "it is not low, normal or high")
	}
	if len(d.Body) == 0 {
		bad("body", "it is missing; any JSON value will do")
	}
	return out
}

func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
				return false
			}
		}
	}
	return true
}

func isType(s string) bool {
	if s == "" || len(s) > 64 || s[0] < 'a' || s[0] > 'z' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}

// draft reads one draft from text.
func draft(r *http.Request, text []byte) (adapter.Draft, *deny.Reason) {
	d, usual := protocol.ScanDraft(text)
	var fields []deny.Field
	if !usual {
		d = adapter.Draft{}
		fields = strict(text, &d)
	}
	if len(fields) > 0 {
		// What does fit is looked at as well, so that all is said at once.
		var all map[string]json.RawMessage
		if json.Unmarshal(text, &all) == nil && all != nil {
			fields = append(fields, missing(all, fields)...)
		}
		return d, invalid(r, "the message does not fit", fields...)
	}
	if len(d.Body) > adapter.MaxBody {
		return d, tooLarge(r, adapter.MaxBody)
	}
	if fields := check(&d); len(fields) > 0 {
		return d, invalid(r, "the message does not fit", fields...)
	}
	if d.Priority == "" {
		d.Priority = adapter.Normal
	}
	return d, nil
}

// missing checks the fields that decode, beside those that are known to fail.
func missing(all map[string]json.RawMessage, known []deny.Field) []deny.Field {
	var d adapter.Draft
	t := reflect.TypeFor[adapter.Draft]()
	v := reflect.ValueOf(&d).Elem()
	for name, raw := range all {
		if f, ok := field(t, name); ok {
			_ = json.Unmarshal(raw, v.FieldByIndex(f.Index).Addr().Interface()) // known has it when it fails
		}
	}
	return slices.DeleteFunc(check(&d), func(f deny.Field) bool {
		return slices.ContainsFunc(known, func(k deny.Field) bool { return k.Name == f.Name })
	})
}
