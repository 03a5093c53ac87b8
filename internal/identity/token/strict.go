package token

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// headerNames are the only members of a header. Every other one of RFC 7515
// would let the token say how it is to be checked.
var headerNames = []string{"alg", "kid", "typ"}

// claimNames and quotaNames are the only members of a payload and of its
// quotas. Encoding/json takes names in any case; these do not.
var (
	claimNames = []string{"sub", "team", "aud", "allowedDomains", "quotas", "exp", "nbf", "iat", "jti", "epoch"}
	quotaNames = []string{"storageQuotaBytes", "memoryQuotaBytes", "rateLimitPerMin"}
	// wantedNames must be there.
	wantedNames = []string{"sub", "team", "aud", "exp", "nbf", "iat", "jti", "epoch"}
)

// header is what the parts of a token say of themselves. Only the key id is
// believed, and only to look the key up.
type header struct {
	Alg string `json:"alg"`
	Kid string `json:"kid"`
	Typ string `json:"typ"`
}

// read takes a token apart without judging its signature or times: whatever
// has two readings is refused here.
func read(text string) (header, Claims, error) {
	var h header
	var c Claims
	switch {
	case text == "":
		return h, c, errors.New("it is empty")
	case len(text) > MaxSize:
		return h, c, fmt.Errorf("it has more than %d bytes", MaxSize)
	}
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return h, c, fmt.Errorf("it has %d segments, not three", len(parts))
	}
	var raw [3][]byte
	for i, p := range parts {
		// The decoder skips line breaks (encoding/base64, DecodeString).
		if strings.ContainsAny(p, "\r\n") {
			return h, c, fmt.Errorf("segment %d has a line break", i+1)
		}
		b, err := base64.RawURLEncoding.Strict().DecodeString(p)
		if err != nil || len(b) == 0 {
			return h, c, fmt.Errorf("segment %d is empty, or not canonical base64url", i+1)
		}
		raw[i] = b
	}
	members, err := object(raw[0], headerNames)
	if err != nil {
		return h, c, fmt.Errorf("header: %w", err)
	}
	if err := json.Unmarshal(raw[0], &h); err != nil || len(members) != len(headerNames) {
		return h, c, errors.New("header: alg, kid and typ must be there, each a string")
	}
	if h.Typ != "JWT" {
		return h, c, errors.New("header: typ is not JWT")
	}
	return h, c, payload(raw[1], &c)
}

func payload(raw []byte, c *Claims) error {
	members, err := object(raw, claimNames)
	if err != nil {
		return fmt.Errorf("payload: %w", err)
	}
	for _, name := range wantedNames {
		if _, ok := members[name]; !ok {
			return fmt.Errorf("payload: %s is missing", name)
		}
	}
	for name, v := range members {
		if string(v) == "null" {
			return fmt.Errorf("payload: %s is null", name)
		}
	}
	if q, ok := members["quotas"]; ok {
		inner, err := object(q, quotaNames)
		if err != nil {
			return fmt.Errorf("payload: quotas: %w", err)
		}
		for name, v := range inner {
			if string(v) == "null" {
				return fmt.Errorf("payload: quotas: %s is null", name)
			}
		}
	}
	// Integers only: Go refuses fractions, exponents and what does not fit.
	if err := json.Unmarshal(raw, c); err != nil {
		return errors.New("payload: a claim has the wrong type")
	}
	if err := c.check(); err != nil {
		return fmt.Errorf("payload: %w", err)
	}
	return nil
}

// object splits a JSON object whose members must be among names, spelt so, and
// each given once.
func object(raw []byte, names []string) (map[string]json.RawMessage, error) {
	if !utf8.Valid(raw) {
		return nil, errors.New("it is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("it is no JSON object")
	}
	out := make(map[string]json.RawMessage, len(names))
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return nil, errors.New("it is not JSON")
		}
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("%.40q is not taken", name)
		}
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("%s is given twice", name)
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return nil, errors.New("it is not JSON")
		}
		out[name] = v
	}
	if _, err := d.Token(); err != nil {
		return nil, errors.New("it is not JSON")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the object")
	}
	return out, nil
}
