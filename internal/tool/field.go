package tool

import (
	"regexp"
	"time"
)

// NoteDelay bounds how long the record of a call that only read may stay in
// memory.
const NoteDelay = 50 * time.Millisecond

// Type is the JSON type of a field.
type Type string

// The types. Bytes is a JSON string in standard base64, with or without
// padding; its bounds count decoded bytes. Any is every JSON value, kept as it
// was written, so that numbers keep their digits.
const (
	String  Type = "string"
	Integer Type = "integer"
	Number  Type = "number"
	Boolean Type = "boolean"
	Object  Type = "object"
	Array   Type = "array"
	Bytes   Type = "bytes"
	Any     Type = "any"
)

// Field is one field of a tool's input.
type Field struct {
	Name     string
	Aliases  []string // other names that clients use; a call that gives two of them is refused
	Type     Type
	Doc      string
	Required bool
	Default  any // string, int64, float64, bool; taken when the field is absent
	// Min and Max bound an Integer or Number by value, a String by characters,
	// Bytes by decoded bytes, an Array by elements, an Object or Any by the
	// bytes of its JSON. Max 0: not bounded from above (the request's body is).
	Min, Max int64
	Enum     []string
	// Pattern must match the whole string; PatternDoc says it in words.
	Pattern    *regexp.Regexp
	PatternDoc string
	Items      *Field  // what an Array holds; nil: Any
	Fields     []Field // what an Object holds; nil: any members
	// Shown says that the value may stand in records. Else its size and a
	// keyed hash do: contents, SQL and code never leave the agent's own store.
	Shown bool
	// Show, when set, gives what records hold of a string instead of its size and
	// hash: as much of it as is no secret.
	Show func(string) string
}
