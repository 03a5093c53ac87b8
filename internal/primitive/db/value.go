package db

import (
	"bytes"
	"database/sql/driver"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// exact is the largest whole number that every JSON reader keeps
// (2^53-1, RFC 8259, 6). Larger ones are given and taken as strings of digits.
const exact = 1<<53 - 1

// blobKey marks bytes in JSON: {"$base64": "…"}.
const blobKey = "$base64"

// bind turns a JSON value into SQLite's: null, booleans as 0 and 1, whole numbers as
// integers, other numbers as reals, strings as text, {"$base64"} as a blob,
// every other object and array as the text of its JSON.
func bind(raw json.RawMessage) (driver.Value, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return nil, fmt.Errorf("it is missing")
	}
	switch raw[0] {
	case 'n':
		return nil, nil
	case 't':
		return int64(1), nil
	case 'f':
		return int64(0), nil
	case '"':
		return text(raw)
	case '{':
		var o map[string]json.RawMessage
		if err := json.Unmarshal(raw, &o); err != nil {
			return nil, fmt.Errorf("it is not JSON: %w", err)
		}
		if b, ok := o[blobKey]; ok {
			return blobOf(o, b)
		}
		return compact(raw)
	case '[':
		return compact(raw)
	}
	if !bytes.ContainsAny(raw, ".eE") {
		n, err := strconv.ParseInt(string(raw), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("it is a whole number of more than 64 bits")
		}
		return n, nil
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || math.IsInf(f, 0) {
		return nil, fmt.Errorf("it is no number that fits")
	}
	return f, nil
}

// text reads a JSON string, but not half a surrogate pair, which Go replaces in silence.
func text(raw json.RawMessage) (string, error) {
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", fmt.Errorf("it is no string: %w", err)
	}
	if strings.ContainsRune(s, utf8.RuneError) && !bytes.ContainsRune(raw, utf8.RuneError) && !bytes.Contains(bytes.ToLower(raw), []byte(`\ufffd`)) {
		return "", fmt.Errorf("it has half a surrogate pair")
	}
	return s, nil
}

func blobOf(o map[string]json.RawMessage, raw json.RawMessage) (driver.Value, error) {
	s, err := text(raw)
	if err != nil || len(o) != 1 {
		return nil, fmt.Errorf(`{%q: "…"} has a string, and nothing besides`, blobKey)
	}
	b, err := base64.RawStdEncoding.Strict().DecodeString(strings.TrimRight(s, "="))
	if err != nil {
		return nil, fmt.Errorf("it is not standard base64: %w", err)
	}
	return b, nil // an empty blob is not NULL
}

func compact(raw json.RawMessage) (driver.Value, error) {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil, fmt.Errorf("it is not JSON: %w", err)
	}
	return b.String(), nil
}

// appendValue appends a value of SQLite as JSON. typ is the declared type of
// its column.
func appendValue(out []byte, v driver.Value, typ string) []byte {
	switch v := v.(type) {
	case int64:
		switch {
		case strings.HasPrefix(typ, "BOOLEAN") && (v == 0 || v == 1):
			return strconv.AppendBool(out, v == 1)
		case v > exact || v < -exact:
			return append(strconv.AppendInt(append(out, '"'), v, 10), '"')
		}
		return strconv.AppendInt(out, v, 10)
	case float64:
		return appendReal(out, v)
	case string:
		if !utf8.ValidString(v) {
			return appendBlob(out, []byte(v))
		}
		if strings.HasPrefix(typ, "JSONB") {
			if b, err := json.Marshal(json.RawMessage(v)); err == nil { // compact, and escaped as all of an answer is
				return append(out, b...)
			}
		}
		return appendText(out, v)
	case []byte:
		return appendBlob(out, v)
	}
	return append(out, "null"...)
}

// appendReal writes the shortest digits that read as the same number. SQLite
// has no NaN (it is NULL); the infinities, which JSON does not have, are strings.
func appendReal(out []byte, v float64) []byte {
	switch {
	case math.IsInf(v, 1):
		return append(out, `"Infinity"`...)
	case math.IsInf(v, -1):
		return append(out, `"-Infinity"`...)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return append(out, "null"...) // NaN, which SQLite never gives
	}
	return append(out, b...)
}

func appendBlob(out, v []byte) []byte {
	out = append(out, `{"`+blobKey+`":"`...)
	out = base64.StdEncoding.AppendEncode(out, v)
	return append(out, `"}`...)
}

// appendText adds a string as encoding/json writes it.
func appendText(out []byte, v string) []byte {
	if unescaped(v) {
		return append(append(append(out, '"'), v...), '"')
	}
	b, err := json.Marshal(v)
	if err != nil {
		return append(out, `""`...) // a string always can
	}
	return append(out, b...)
}

// unescaped says whether a string stands in JSON as it is.
func unescaped(v string) bool {
	for i := range len(v) {
		if ch := v[i]; ch < ' ' || ch >= 0x7f || ch == '"' || ch == '\\' || ch == '<' || ch == '>' || ch == '&' {
			return false
		}
	}
	return true
}
