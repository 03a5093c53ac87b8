package tool

import "encoding/json"

// Input is a validated input: names are those of the table, defaults are
// filled in, and a value has the Go type of its field: string, int64, float64,
// bool, []byte for Bytes, Input for an Object with fields, json.RawMessage for
// Any and for an Object without, []any of those for an Array.
type Input map[string]any

// Has says whether a field was given or has a default.
func (in Input) Has(name string) bool { _, ok := in[name]; return ok }

// String gives a String field; empty when absent.
func (in Input) String(name string) string { s, _ := in[name].(string); return s }

// Int gives an Integer field; 0 when absent.
func (in Input) Int(name string) int64 { n, _ := in[name].(int64); return n }

// Number gives a Number field; 0 when absent.
func (in Input) Number(name string) float64 { n, _ := in[name].(float64); return n }

// Bool gives a Boolean field; false when absent.
func (in Input) Bool(name string) bool { b, _ := in[name].(bool); return b }

// Bytes gives a Bytes field, decoded; nil when absent.
func (in Input) Bytes(name string) []byte { b, _ := in[name].([]byte); return b }

// Raw gives an Any field, or an Object without fields, as it was written; nil
// when absent.
func (in Input) Raw(name string) json.RawMessage { r, _ := in[name].(json.RawMessage); return r }

// Object gives an Object with fields; nil when absent.
func (in Input) Object(name string) Input { o, _ := in[name].(Input); return o }

// List gives an Array; nil when absent.
func (in Input) List(name string) []any { l, _ := in[name].([]any); return l }

// Strings gives an Array of String; nil when absent.
func (in Input) Strings(name string) []string {
	l := in.List(name)
	if l == nil {
		return nil
	}
	out := make([]string, 0, len(l))
	for _, v := range l {
		if s, ok := v.(string); ok {
			out = append(out, s)
		}
	}
	return out
}
