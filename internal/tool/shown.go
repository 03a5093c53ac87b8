package tool

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
)

// Bounds of an input in a record.
const (
	maxShownText  = 256 // bytes of one value
	maxShownItems = 8
)

// hidden stands in a record for what must not be in it. The hash has a key of
// this process, so that short secrets cannot be guessed from it; it tells
// whether two calls gave the same.
type hidden struct {
	Size int64  `json:"size"`
	Hash string `json:"hash,omitempty"`
}

// shower makes what records hold of an input.
type shower struct{ key []byte }

func newShower() *shower {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // never fails
	return &shower{key}
}

// show gives the input as a record may hold it.
func (s *shower) show(fields []Field, in Input) json.RawMessage {
	if len(in) == 0 {
		return nil
	}
	out, err := json.Marshal(s.object(fields, in))
	if err != nil {
		return nil // only values that were JSON before
	}
	return out
}

func (s *shower) object(fields []Field, in Input) map[string]any {
	out := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(in)) {
		i := slices.IndexFunc(fields, func(f Field) bool { return f.Name == name })
		if i < 0 {
			continue
		}
		out[name] = s.value(&fields[i], in[name])
	}
	return out
}

func (s *shower) value(f *Field, v any) any {
	switch v := v.(type) {
	case Input:
		return s.object(f.Fields, v)
	case []any:
		if f.Items == nil || !f.Items.Shown && f.Items.Fields == nil || len(v) > maxShownItems {
			return hidden{Size: int64(len(v))}
		}
		out := make([]any, len(v))
		for i := range v {
			out[i] = s.value(f.Items, v[i])
		}
		return out
	case string:
		if f.Show != nil {
			v = f.Show(v)
		}
		if (f.Shown || f.Show != nil) && len(v) <= maxShownText {
			return v
		}
		return s.hide([]byte(v))
	case []byte:
		return s.hide(v)
	case json.RawMessage:
		return s.hide(v)
	}
	if f.Shown || f.Type == Boolean || f.Type == Integer {
		return v
	}
	return nil
}

func (s *shower) hide(b []byte) hidden {
	h := hmac.New(sha256.New, s.key)
	_, _ = h.Write(b)
	return hidden{Size: int64(len(b)), Hash: hex.EncodeToString(h.Sum(nil)[:8])}
}
