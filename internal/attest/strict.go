package attest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxDepth bounds how deep JSON may be nested; what we write is a handful deep.
const maxDepth = 32

// decode reads one JSON document and nothing behind it. encoding/json lets the
// last of two equal keys win and takes keys of another case for the same, so that
// two readers can see two documents in one signed text: such texts are refused.
func decode(text []byte, into any, known bool) error {
	if err := unambiguous(text); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if known {
		d.DisallowUnknownFields()
	}
	return d.Decode(into)
}

func unambiguous(text []byte) error {
	if !utf8.Valid(text) {
		return errors.New("it is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := value(d, 0); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows its end")
	}
	return nil
}

// value walks over one JSON value.
func value(d *json.Decoder, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("it is nested deeper than %d", maxDepth)
	}
	t, err := d.Token()
	if err != nil {
		return err
	}
	switch t {
	case json.Delim('{'):
		seen := map[string]bool{}
		for d.More() {
			k, err := d.Token()
			if err != nil {
				return err
			}
			key, ok := k.(string)
			if !ok {
				return fmt.Errorf("%v is no key", k)
			}
			f := fold(key)
			if seen[f] {
				return fmt.Errorf("the key %.80q is there twice", key)
			}
			seen[f] = true
			if err := value(d, depth+1); err != nil {
				return err
			}
		}
		_, err = d.Token()
	case json.Delim('['):
		for d.More() {
			if err := value(d, depth+1); err != nil {
				return err
			}
		}
		_, err = d.Token()
	}
	return err
}

// fold gives keys that encoding/json would take for the same the same form: each
// letter becomes the smallest of those that differ by case alone.
func fold(key string) string {
	return strings.Map(func(r rune) rune {
		for {
			next := unicode.SimpleFold(r)
			if next <= r {
				return next
			}
			r = next
		}
	}, key)
}
